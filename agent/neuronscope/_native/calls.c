/* The hot path of a call: twins of `engine.seam`, `engine.opening` and `engine.ids`. */
#include "native.h"

PyObject *
ns_named(PyObject *names, Py_ssize_t first, PyObject *given, PyObject *kwargs)
{
    PyObject *found = PyDict_Size(kwargs) != 0 ? PyDict_Copy(kwargs) : PyDict_New();
    if (found == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(given) - first;
    if (count > PyTuple_Size(names))
        count = PyTuple_Size(names);
    int done = 0;
    for (Py_ssize_t i = 0; i < count && done == 0; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        int told = PyDict_Size(kwargs) != 0 ? PyDict_Contains(kwargs, name) : 0; /* keywords win */
        done = told != 0 ? (told < 0 ? -1 : 0) : PyDict_SetItem(found, name, PyTuple_GetItem(given, first + i));
    }
    if (done < 0)
        Py_CLEAR(found);
    return found;
}

/* arguments(parameters, first, args, kwargs) -> the arguments of a call by name; `first` of `args` are left out */
PyObject *
ns_arguments(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("arguments", n, 4))
        return NULL;
    if (!PyTuple_Check(args[0]) || !PyTuple_Check(args[2]) || !PyDict_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "arguments takes names, a number, a tuple and a dictionary");
    Py_ssize_t first = PyLong_AsSsize_t(args[1]);
    if (first == -1 && PyErr_Occurred())
        return NULL;
    if (first < 0)
        return PyErr_Format(PyExc_ValueError, "arguments leaves no negative number of them out");
    return ns_named(args[0], first, args[2], args[3]);
}

/* with_item(kind, mapping, key, value) -> a `kind` (a subclass of dict) of the mapping's items and this one
 *
 * Contexts of OpenTelemetry refuse to be changed; this one is new, and nobody has seen it yet. */
PyObject *
ns_with_item(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("with_item", n, 4))
        return NULL;
    PyObject *found = PyObject_CallNoArgs(args[0]);
    if (found == NULL)
        return NULL;
    if (!PyDict_Check(found)) {
        Py_DECREF(found);
        return PyErr_Format(PyExc_TypeError, "with_item makes dictionaries");
    }
    if ((PyObject_Size(args[1]) != 0 && PyDict_Update(found, args[1]) < 0) ||
        PyDict_SetItem(found, args[2], args[3]) < 0)
        Py_CLEAR(found);
    return found;
}

/* split_ids(bits) -> (trace id, span id), none of them zero, of 192 random bits */
PyObject *
ns_split_ids(PyObject *Py_UNUSED(module), PyObject *bits)
{
    PyObject *shift = PyLong_FromLong(64), *trace = shift == NULL ? NULL : PyNumber_Rshift(bits, shift);
    Py_XDECREF(shift);
    if (trace == NULL)
        return NULL;
    uint64_t low = PyLong_AsUnsignedLongLongMask(bits);
    int whole = low == (uint64_t)-1 && PyErr_Occurred() ? -1 : PyObject_IsTrue(trace);
    if (whole == 0) {
        Py_DECREF(trace);
        trace = PyLong_FromLong(1);
    }
    PyObject *span = whole < 0 || trace == NULL ? NULL : PyLong_FromUnsignedLongLong(low == 0 ? 1 : low);
    PyObject *both = span == NULL ? NULL : PyTuple_Pack(2, trace, span);
    Py_XDECREF(trace);
    Py_XDECREF(span);
    return both;
}
