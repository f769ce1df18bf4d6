/* What is noted of a call while it is made: its HTTP response. */
#include "entry.h"

enum { GET_CURRENT, CURRENT_KEY, LIGHT, CALL, LIBRARY, RESPONSE, RESENDS, TWIN, NOTED_END };

/* Put a keyword argument into a field; None if it was not given. */
static int
put_keyword(PyObject *call, int which, PyObject *kwargs, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(kwargs, name);
    if (value == NULL && PyErr_Occurred())
        return -1;
    ns_put(call, which, Py_NewRef(value == NULL ? Py_None : value));
    return 0;
}

/* Note it on the current span's call; 0: Python decides. */
static int
note_usually(PyObject *tools, PyObject *kwargs)
{
    PyObject *current = PyObject_CallNoArgs(PyTuple_GetItem(tools, GET_CURRENT)), *span, *library, *call;
    if (current == NULL)
        return -1;
    span = PyDict_Check(current) ? PyDict_GetItemWithError(current, PyTuple_GetItem(tools, CURRENT_KEY)) : NULL;
    Py_XINCREF(span);
    Py_DECREF(current);
    if (span == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int is = 0;
    if ((PyObject *)Py_TYPE(span) == PyTuple_GetItem(tools, LIGHT) && ns_field(span, S_END) == Py_None &&
        (library = ns_field(span, S_LIBRARY)) != NULL && (call = ns_field(span, S_CALL)) != NULL &&
        (PyObject *)Py_TYPE(call) == PyTuple_GetItem(tools, CALL)) {
        Py_INCREF(call);
        is = PyObject_RichCompareBool(library, PyTuple_GetItem(tools, LIBRARY), Py_EQ);
        if (is > 0 && (put_keyword(call, C_HTTP, kwargs, PyTuple_GetItem(tools, RESPONSE)) < 0 ||
                       put_keyword(call, C_RESENDS, kwargs, PyTuple_GetItem(tools, RESENDS)) < 0))
            is = -1;
        Py_DECREF(call);
    }
    Py_DECREF(span);
    return is;
}

/* note(kwargs): guarded, as its twin is, who also gets whatever fails here. */
static PyObject *
note(PyObject *tools, PyObject *kwargs)
{
    if (!PyDict_Check(kwargs))
        return PyErr_Format(PyExc_TypeError, "note takes a dictionary");
    int is = note_usually(tools, kwargs);
    if (is > 0)
        Py_RETURN_NONE;
    if (is < 0)
        PyErr_Clear();
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(tools, TWIN), kwargs, NULL);
}

static PyMethodDef note_function = {"note", note, METH_O, NULL};

/* make_note((get current, key of the current span, span's type, call's type, library, names of two keywords, twin))
 * -> note */
PyObject *
ns_make_note(PyObject *Py_UNUSED(module), PyObject *tools)
{
    if (!PyTuple_Check(tools) || PyTuple_Size(tools) != NOTED_END)
        return PyErr_Format(PyExc_TypeError, "make_note takes %d things", NOTED_END);
    PyObject *span = PyTuple_GetItem(tools, LIGHT), *call = PyTuple_GetItem(tools, CALL);
    if (!PyType_Check(span) || !PyType_IsSubtype((PyTypeObject *)span, ns_span_type) || !PyType_Check(call) ||
        !PyType_IsSubtype((PyTypeObject *)call, ns_call_type))
        return PyErr_Format(PyExc_TypeError, "make_note takes the types of spans and calls");
    return PyCFunction_New(&note_function, tools);
}
