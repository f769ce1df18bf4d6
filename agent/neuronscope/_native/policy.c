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

/* Leave a pair that is in `kept` there, or have Python decide. */
static int
mask_one(const Mask *mask, PyObject *key, PyObject *value)
{
    PyObject *class = PyDict_GetItemWithError(mask->classes, key);
    if (class == NULL && PyErr_Occurred())
        return -1;
    if (class == mask->public) {
        int plain = is_plain(value, mask->limit);
        if (plain != 0)
            return plain < 0 ? -1 : 0;
    }
    if (PyDict_DelItem(mask->kept, key) < 0)
        return -1;
    PyObject *done = PyObject_CallFunctionObjArgs(mask->keep, key, value, mask->content, mask->kept,
                                                  mask->truncated, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
mask_all(const Mask *mask, PyObject *attributes)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int done = 0;
    while (done == 0 && PyDict_Next(attributes, &at, &key, &value)) {
        Py_INCREF(key); /* a redactor is the user's code */
        Py_INCREF(value);
        done = mask_one(mask, key, value);
        Py_DECREF(key);
        Py_DECREF(value);
    }
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
    PyObject *all = args[0];
    if (PyDict_CheckExact(all)) {
        Py_INCREF(all);
    } else { /* the attributes of an SDK's span */
        all = PyDict_New();
        if (all != NULL && PyDict_Update(all, args[0]) < 0)
            Py_CLEAR(all);
    }
    mask.kept = all == NULL ? NULL : PyDict_Copy(all);
    if (mask.kept != NULL && mask_all(&mask, all) < 0)
        Py_CLEAR(mask.kept);
    Py_XDECREF(all);
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
