/* About how much plain values hold: the twin of `engine.sizes.held_bytes_in_python`. */
#include "native.h"

enum { SAMPLE = 4, DEPTH = 4 }; /* as there */
enum { FAILED = -1 };

static Py_ssize_t held(PyObject *twin, PyObject *value, int depth);

/* What is no plain value: Python weighs it. */
static Py_ssize_t
held_in_python(PyObject *twin, PyObject *value, int depth)
{
    PyObject *left = PyLong_FromLong(depth);
    PyObject *size = left == NULL ? NULL : PyObject_CallFunctionObjArgs(twin, value, left, NULL);
    Py_ssize_t found = size == NULL ? FAILED : PyLong_AsSsize_t(size);
    Py_XDECREF(left);
    Py_XDECREF(size);
    return found;
}

/* The sum of two sizes, of which either may be FAILED. */
static Py_ssize_t
sum(Py_ssize_t one, Py_ssize_t other)
{
    if (one < 0 || other < 0)
        return FAILED;
    if (one <= PY_SSIZE_T_MAX - other)
        return one + other;
    PyErr_SetString(PyExc_OverflowError, "held_bytes: more than there can be");
    return FAILED;
}

static Py_ssize_t
held_by_dict(PyObject *twin, PyObject *value, int depth)
{
    Py_ssize_t size = 0, at = 0;
    PyObject *key, *item;
    while (size >= 0 && PyDict_Next(value, &at, &key, &item)) {
        Py_INCREF(item); /* the twin may run the user's code */
        size = sum(size, held(twin, item, depth - 1));
        Py_DECREF(item);
    }
    return size;
}

/* Of long ones the first and the last few stand for all. */
static Py_ssize_t
held_by_list(PyObject *twin, PyObject *value, int depth)
{
    int is_list = PyList_Check(value);
    Py_ssize_t whole = is_list ? PyList_Size(value) : PyTuple_Size(value), size = 0;
    Py_ssize_t looked = whole > SAMPLE ? SAMPLE : whole;
    for (Py_ssize_t i = 0; size >= 0 && i < looked; i++) {
        Py_ssize_t at = i == 0 ? 0 : whole - looked + i;
        PyObject *item = is_list ? PyList_GetItem(value, at) : PyTuple_GetItem(value, at);
        if (item == NULL) /* the list has become shorter meanwhile */
            return FAILED;
        Py_INCREF(item);
        size = sum(size, held(twin, item, depth - 1));
        Py_DECREF(item);
    }
    if (size < 0 || whole <= SAMPLE)
        return size;
    if (size > PY_SSIZE_T_MAX / whole)
        return held_in_python(twin, value, depth);
    return size * whole / SAMPLE;
}

/* -1 with an exception. */
static Py_ssize_t
held(PyObject *twin, PyObject *value, int depth)
{
    if (PyUnicode_CheckExact(value))
        return PyUnicode_GetLength(value);
    if (PyBytes_CheckExact(value))
        return PyBytes_Size(value);
    if (depth <= 0 || value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value))
        return 0;
    if (PyDict_CheckExact(value))
        return held_by_dict(twin, value, depth);
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value))
        return held_by_list(twin, value, depth);
    return held_in_python(twin, value, depth);
}

static PyObject *
held_bytes(PyObject *twin, PyObject *value)
{
    Py_ssize_t size = held(twin, value, DEPTH);
    if (size >= 0)
        return PyLong_FromSsize_t(size);
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
        return NULL;
    PyErr_Clear(); /* one text in very many places: Python's numbers have no end */
    return PyObject_CallFunctionObjArgs(twin, value, NULL);
}

static PyMethodDef held_bytes_function = {"held_bytes", held_bytes, METH_O, NULL};

/* make_held_bytes(twin) -> `held_bytes` with this twin */
PyObject *
ns_make_held_bytes(PyObject *Py_UNUSED(module), PyObject *twin)
{
    return PyCFunction_New(&held_bytes_function, twin);
}
