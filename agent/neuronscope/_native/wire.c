#include "wire.h"

int
ns_grow(Buffer *out, size_t more)
{
    if (more > (size_t)PY_SSIZE_T_MAX - out->size) {
        PyErr_NoMemory();
        return -1;
    }
    size_t needed = out->size + more;
    size_t room = needed > (size_t)PY_SSIZE_T_MAX / 2 ? needed : 2 * needed;
    char *data;
    if (out->data == out->first) {
        data = PyMem_Malloc(room);
        if (data != NULL)
            memcpy(data, out->first, out->size);
    } else {
        data = PyMem_Realloc(out->data, room);
    }
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    out->data = data;
    out->room = room;
    return 0;
}

const char *
ns_utf8(PyObject *text, PyObject *utf8, Py_ssize_t *size, PyObject **held)
{
    *held = NULL;
    const char *found = PyUnicode_AsUTF8AndSize(text, size);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return found;
    PyErr_Clear();
    PyObject *bytes = PyObject_CallFunctionObjArgs(utf8, text, NULL);
    char *begin;
    if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &begin, size) < 0) {
        Py_XDECREF(bytes);
        return NULL;
    }
    *held = bytes;
    return begin;
}

int
ns_text(Buffer *out, unsigned char tag, PyObject *text, PyObject *utf8)
{
    PyObject *held;
    Py_ssize_t size;
    const char *bytes = ns_utf8(text, utf8, &size, &held);
    if (bytes == NULL)
        return -1;
    int done = ns_delimited(out, tag, bytes, (size_t)size);
    Py_XDECREF(held);
    return done;
}

int
ns_uint64(PyObject *number, uint64_t *found)
{
    if (PyLong_Check(number)) {
        *found = PyLong_AsUnsignedLongLong(number);
    } else {
        PyObject *whole = PyNumber_Index(number);
        if (whole == NULL)
            return -1;
        *found = PyLong_AsUnsignedLongLong(whole);
        Py_DECREF(whole);
    }
    return *found == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}
