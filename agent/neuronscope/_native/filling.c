/* Attributes on a span of the SDK's: the twin of `engine.filling.set_attributes_in_python`. */
#include "native.h"

/* What it is made with. */
enum { TWIN, SPANS, BOUNDED, LOCK, TOOLS_END };

#define NAMES(NAME) NAME(_attributes) NAME(_dict) NAME(maxlen) NAME(max_value_len) NAME(_lock) NAME(_end_time) NAME(locked)
#define AS_INDEX(name) N_##name,
#define AS_TEXT(name) #name,
enum { NAMES(AS_INDEX) NAMES_END };
static const char *const TEXTS[] = {NAMES(AS_TEXT)};
static PyObject *names[NAMES_END];

int
ns_filling_ready(void)
{
    return ns_intern(names, TEXTS, NAMES_END);
}

/* All of these: 1, yes; 0, no, and the twin decides; -1 with an exception. */

static int
is_plain(PyObject *value)
{
    return PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value);
}

/* Does the SDK keep this as it is, or as a tuple: a plain value, or a list of such of one kind? */
static int
is_kept(PyObject *value)
{
    if (is_plain(value))
        return 1;
    if (!PyList_CheckExact(value))
        return 0;
    for (Py_ssize_t i = 0, count = PyList_Size(value); i < count; i++)
        if (!is_plain(PyList_GetItem(value, i)) || Py_TYPE(PyList_GetItem(value, i)) != Py_TYPE(PyList_GetItem(value, 0)))
            return 0;
    return 1;
}

/* Was the span told this value under this key? */
static int
was_told(PyObject *told, PyObject *key, PyObject *value)
{
    PyObject *before = told == NULL ? NULL : PyDict_GetItemWithError(told, key);
    return before == NULL ? (PyErr_Occurred() ? -1 : 0) : before == value;
}

static int
are_kept(PyObject *attributes)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(attributes, &at, &key, &value))
        if (!PyUnicode_CheckExact(key) || PyUnicode_GetLength(key) == 0 || !is_kept(value))
            return 0;
    return 1;
}

/* Is there room for `count` attributes more, and is none to be cut? */
static int
has_room(PyObject *values, PyObject *taken, Py_ssize_t count)
{
    PyObject *cut = PyObject_GetAttr(values, names[N_max_value_len]), *room;
    Py_XDECREF(cut);
    if (cut != Py_None)
        return cut == NULL ? -1 : 0;
    if ((room = PyObject_GetAttr(values, names[N_maxlen])) == NULL)
        return -1;
    int is = room == Py_None;
    if (PyLong_CheckExact(room)) {
        Py_ssize_t most = PyLong_AsSsize_t(room);
        is = most == -1 && PyErr_Occurred() ? -1 : PyDict_Size(taken) + count <= most;
    }
    Py_DECREF(room);
    return is;
}

/* Does nobody hold its lock?  Then nobody does until we let go of the GIL, which nothing here does. */
static int
is_free(PyObject *tools, PyObject *of)
{
    PyObject *lock = PyObject_GetAttr(of, names[N__lock]), *held;
    if (lock == NULL)
        return -1;
    int is = 0;
    if ((PyObject *)Py_TYPE(lock) == PyTuple_GetItem(tools, LOCK)) {
        held = PyObject_CallMethodObjArgs(lock, names[N_locked], NULL);
        is = held == NULL ? -1 : held == Py_False;
        Py_XDECREF(held);
    }
    Py_DECREF(lock);
    return is;
}

/* Put all in that the span was not told. */
static int
put(PyObject *taken, PyObject *attributes, PyObject *told)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int done = 0;
    while (done == 0 && PyDict_Next(attributes, &at, &key, &value)) {
        int is = was_told(told, key, value);
        if (is != 0) {
            done = is < 0 ? -1 : 0;
            continue;
        }
        if (!PyList_CheckExact(value)) {
            done = PyDict_SetItem(taken, key, value);
            continue;
        }
        PyObject *fixed = PyList_AsTuple(value);
        done = fixed == NULL ? -1 : PyDict_SetItem(taken, key, fixed);
        Py_XDECREF(fixed);
    }
    return done < 0 ? -1 : 1;
}

static int
put_in(PyObject *tools, PyObject *span, PyObject *values, PyObject *taken, PyObject *attributes, PyObject *told)
{
    if (!PyDict_CheckExact(taken))
        return 0;
    if (told != NULL && PyDict_Size(taken) < PyDict_Size(told))
        told = NULL; /* a sampler has dropped some of them */
    int is = has_room(values, taken, PyDict_Size(attributes));
    if (is > 0)
        is = is_free(tools, span);
    if (is > 0)
        is = is_free(tools, values);
    if (is <= 0)
        return is;
    PyObject *ended = PyObject_GetAttr(span, names[N__end_time]);
    Py_XDECREF(ended);
    if (ended != Py_None)
        return ended == NULL ? -1 : 1; /* it stays as it is */
    return put(taken, attributes, told);
}

static int
set_usually(PyObject *tools, PyObject *span, PyObject *attributes, PyObject *told)
{
    int is = PySet_Contains(PyTuple_GetItem(tools, SPANS), (PyObject *)Py_TYPE(span));
    if (is <= 0 || !are_kept(attributes))
        return is < 0 ? -1 : 0;
    PyObject *values = PyObject_GetAttr(span, names[N__attributes]), *taken;
    if (values == NULL)
        return -1;
    is = 0;
    if ((PyObject *)Py_TYPE(values) == PyTuple_GetItem(tools, BOUNDED)) {
        taken = PyObject_GetAttr(values, names[N__dict]);
        is = taken == NULL ? -1 : put_in(tools, span, values, taken, attributes, told);
        Py_XDECREF(taken);
    }
    Py_DECREF(values);
    return is;
}

/* set_attributes(span, attributes, told) */
static PyObject *
set_attributes(PyObject *tools, Args args, Py_ssize_t n)
{
    if (n == 2) {
        if (!PyDict_CheckExact(args[1]))
            return PyErr_Format(PyExc_TypeError, "set_attributes takes dictionaries");
    } else if (!ns_takes("set_attributes", n, 3)) {
        return NULL;
    } else if (!PyDict_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
        return PyErr_Format(PyExc_TypeError, "set_attributes takes dictionaries");
    }
    int is = set_usually(tools, args[0], args[1], n == 3 ? args[2] : NULL);
    if (is < 0 && PyErr_ExceptionMatches(PyExc_AttributeError)) { /* a release of the SDK that keeps them elsewhere */
        PyErr_Clear();
        is = 0;
    }
    if (is != 0)
        return is < 0 ? NULL : Py_NewRef(Py_None);
    return PyObject_CallFunctionObjArgs(PyTuple_GetItem(tools, TWIN), args[0], args[1], n == 3 ? args[2] : NULL, NULL);
}

static PyMethodDef set_function = {"set_attributes", (PyCFunction)(void (*)(void))set_attributes, METH_FASTCALL, NULL};

/* make_set_attributes((twin, classes of spans, BoundedAttributes, class of locks)) -> set_attributes */
PyObject *
ns_make_set_attributes(PyObject *Py_UNUSED(module), PyObject *tools)
{
    if (!PyTuple_Check(tools) || PyTuple_Size(tools) != TOOLS_END || !PyAnySet_Check(PyTuple_GetItem(tools, SPANS)))
        return PyErr_Format(PyExc_TypeError, "make_set_attributes takes a function, a set and two classes");
    return PyCFunction_New(&set_function, tools);
}
