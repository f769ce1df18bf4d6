/* Facts of a call: fields that become attributes as they are, and small readings of foreign values.  Twins of
 * `engine.facts` and `neuronscope_instrumentation.common.fields`. */
#include "native.h"

/* add_fields(attributes, facts, table): each field that is not None becomes an attribute.
 *
 * table: field, key, field, key, … */
PyObject *
ns_add_fields(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("add_fields", n, 3))
        return NULL;
    if (!PyDict_Check(args[0]) || !PyTuple_Check(args[2]) || PyTuple_Size(args[2]) % 2 != 0)
        return PyErr_Format(PyExc_TypeError, "add_fields takes a dictionary, facts, and pairs");
    for (Py_ssize_t i = 0; i < PyTuple_Size(args[2]); i += 2) {
        PyObject *value = PyObject_GetAttr(args[1], PyTuple_GetItem(args[2], i));
        if (value == NULL)
            return NULL;
        int done = value == Py_None ? 0 : PyDict_SetItem(args[0], PyTuple_GetItem(args[2], i + 1), value);
        Py_DECREF(value);
        if (done < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

/* text(value) -> a string that is not empty, or None */
PyObject *
ns_text_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (PyUnicode_Check(value)) {
        int full = PyUnicode_CheckExact(value) ? PyUnicode_GetLength(value) > 0 : PyObject_IsTrue(value);
        if (full < 0)
            return NULL;
        if (full)
            return Py_NewRef(value);
    }
    Py_RETURN_NONE;
}

/* number(value) -> an int or a float, or None; booleans are neither */
PyObject *
ns_number_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    if ((PyFloat_Check(value) || PyLong_Check(value)) && value != Py_True && value != Py_False)
        return Py_NewRef(value);
    Py_RETURN_NONE;
}

/* count(value) -> an int, or None; booleans are none */
PyObject *
ns_count_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (PyLong_Check(value) && value != Py_True && value != Py_False)
        return Py_NewRef(value);
    Py_RETURN_NONE;
}

/* items(value) -> a list or tuple as it is, or () */
PyObject *
ns_items_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    return PyList_Check(value) || PyTuple_Check(value) ? Py_NewRef(value) : PyTuple_New(0);
}

/* known(facts) -> the facts without those that are None */
PyObject *
ns_known(PyObject *Py_UNUSED(module), PyObject *facts)
{
    PyObject *key, *value, *found = PyDict_New();
    if (found == NULL)
        return NULL;
    Py_ssize_t at = 0;
    if (!PyDict_CheckExact(facts)) {
        PyErr_SetString(PyExc_TypeError, "known takes a dictionary");
        Py_DECREF(found);
        return NULL;
    }
    while (PyDict_Next(facts, &at, &key, &value))
        if (value != Py_None && PyDict_SetItem(found, key, value) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    return found;
}
