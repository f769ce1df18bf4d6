/* The content policy's usual case, and how much attributes weigh: twins of `engine.content` and
 * `engine.sizes`. */
#include "native.h"

enum { ATTRIBUTE = 24, PAIR = 48, ITEM = 12 };

/* Is this text short, and ASCII only?  -1 with an exception. */
static int
is_short(PyObject *text, Py_ssize_t limit)
{
    Py_ssize_t length = PyUnicode_GetLength(text), size;
    if (length < 0)
        return -1;
    if (length > limit)
        return 0;
    if (PyUnicode_AsUTF8AndSize(text, &size) == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
            return -1;
        PyErr_Clear(); /* a lone surrogate */
        return 0;
    }
    return size == length;
}

/* May a public attribute's value stay as it is?  -1 with an exception. */
static int
is_plain(PyObject *value, Py_ssize_t limit)
{
    if (PyUnicode_CheckExact(value))
        return is_short(value, limit);
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value) || value == Py_True || value == Py_False)
        return 1;
    if (!PyList_CheckExact(value) || PyList_Size(value) > 1)
        return 0;
    if (PyList_Size(value) == 0)
        return 1;
    PyObject *first = PyList_GetItem(value, 0);
    return first != NULL && PyUnicode_CheckExact(first) ? is_short(first, limit) : 0;
}

typedef struct {
    PyObject *kept, *classes, *public, *keep, *content, *truncated;
    Py_ssize_t limit;
} Mask;

static int
mask_one(const Mask *mask, PyObject *key, PyObject *value)
{
    PyObject *class = PyDict_GetItemWithError(mask->classes, key);
    if (class == NULL && PyErr_Occurred())
        return -1;
    if (class == mask->public) {
        int plain = is_plain(value, mask->limit);
        if (plain < 0)
            return -1;
        if (plain)
            return PyDict_SetItem(mask->kept, key, value);
    }
    PyObject *done = PyObject_CallFunctionObjArgs(mask->keep, key, value, mask->content, mask->kept,
                                                  mask->truncated, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
mask_all(const Mask *mask, PyObject *attributes)
{
    PyObject *key, *value;
    int done = 0;
    if (PyDict_CheckExact(attributes)) {
        Py_ssize_t at = 0;
        while (done == 0 && PyDict_Next(attributes, &at, &key, &value)) {
            Py_INCREF(key); /* a redactor is the user's code */
            Py_INCREF(value);
            done = mask_one(mask, key, value);
            Py_DECREF(key);
            Py_DECREF(value);
        }
        return done;
    }
    PyObject *pairs = PyMapping_Items(attributes);
    if (pairs == NULL)
        return -1;
    for (Py_ssize_t i = 0; done == 0 && i < PyList_Size(pairs); i++) {
        PyObject *pair = PyList_GetItem(pairs, i);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "items of a mapping must be pairs");
            done = -1;
        } else {
            done = mask_one(mask, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
        }
    }
    Py_DECREF(pairs);
    return done;
}

/* mask(attributes, classes, public, limit, keep, content, truncated) -> kept
 *
 * Attributes whose class is `public` and whose values are plain and short stay; `keep(key, value, content,
 * kept, truncated)` decides on all others. */
PyObject *
ns_mask(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("mask", n, 7))
        return NULL;
    if (!PyDict_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "classes must be a dictionary");
    Mask mask = {NULL, args[1], args[2], args[4], args[5], args[6], PyLong_AsSsize_t(args[3])};
    if (mask.limit == -1 && PyErr_Occurred())
        return NULL;
    mask.kept = PyDict_New();
    if (mask.kept != NULL && mask_all(&mask, args[0]) < 0)
        Py_CLEAR(mask.kept);
    return mask.kept;
}

/* What a value weighs beyond `ATTRIBUTE`; -1 with an exception. */
static Py_ssize_t
weight(PyObject *value)
{
    if (PyUnicode_Check(value))
        return PyUnicode_GetLength(value);
    int is_list = PyList_Check(value);
    if (!is_list && !PyTuple_Check(value))
        return 0;
    Py_ssize_t size = 0, count = is_list ? PyList_Size(value) : PyTuple_Size(value);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = is_list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
        if (item == NULL)
            return -1;
        size += ITEM + (PyUnicode_Check(item) ? PyUnicode_GetLength(item) : 0);
    }
    return size;
}

/* attributes_bytes(attributes) -> about how many bytes they take when encoded */
PyObject *
ns_attributes_bytes(PyObject *Py_UNUSED(module), PyObject *attributes)
{
    Py_ssize_t size = 0, one = 0;
    PyObject *key, *value;
    if (PyDict_CheckExact(attributes)) {
        Py_ssize_t at = 0;
        while (PyDict_Next(attributes, &at, &key, &value)) { /* runs no Python code */
            if ((one = weight(value)) < 0)
                return NULL;
            size += PAIR + one;
        }
        return PyLong_FromSsize_t(size);
    }
    PyObject *values = PyMapping_Values(attributes);
    if (values == NULL)
        return NULL;
    for (Py_ssize_t i = 0; one >= 0 && i < PyList_Size(values); i++) {
        one = weight(PyList_GetItem(values, i));
        size += PAIR + one;
    }
    Py_DECREF(values);
    return one < 0 ? NULL : PyLong_FromSsize_t(size);
}
