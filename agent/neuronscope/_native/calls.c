/* The hot path of a call: twins of `engine.seam`, `engine.opening` and `engine.ids`. */
#include "native.h"

/* arguments(parameters, first, args, kwargs) -> the arguments of a call by name; `first` of `args` are left out */
PyObject *
ns_arguments(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("arguments", n, 4))
        return NULL;
    PyObject *names = args[0], *given = args[2], *kwargs = args[3];
    if (!PyTuple_Check(names) || !PyTuple_Check(given) || !PyDict_Check(kwargs))
        return PyErr_Format(PyExc_TypeError, "arguments takes names, a number, a tuple and a dictionary");
    Py_ssize_t first = PyLong_AsSsize_t(args[1]);
    if (first == -1 && PyErr_Occurred())
        return NULL;
    PyObject *found = PyDict_New();
    if (found == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_Size(given) - first;
    if (count > PyTuple_Size(names))
        count = PyTuple_Size(names);
    int done = 0;
    for (Py_ssize_t i = 0; i < count && done == 0; i++)
        done = PyDict_SetItem(found, PyTuple_GetItem(names, i), PyTuple_GetItem(given, first + i));
    if (done == 0)
        done = PyDict_Update(found, kwargs);
    if (done < 0)
        Py_CLEAR(found);
    return found;
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

/* --- observed time ----------------------------------------------------------------------------------- */

static PyObject *active_name, *since_name, *closed_name;

int
ns_calls_ready(void)
{
    active_name = PyUnicode_InternFromString("active");
    since_name = PyUnicode_InternFromString("since");
    closed_name = PyUnicode_InternFromString("closed_ns");
    return active_name == NULL || since_name == NULL || closed_name == NULL ? -1 : 0;
}

static int
get(PyObject *work, PyObject *name, long long *found)
{
    PyObject *value = PyObject_GetAttr(work, name);
    if (value == NULL)
        return -1;
    *found = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *found == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
set(PyObject *work, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int done = value == NULL ? -1 : PyObject_SetAttr(work, name, value);
    Py_XDECREF(value);
    return done;
}

/* count(work, by, now): an observed interval begins (1) or ends (-1).
 *
 * Between reading and writing no Python code runs, so the GIL keeps other threads out. */
PyObject *
ns_count_interval(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("count_interval", n, 3))
        return NULL;
    long long active, closed, since, by = PyLong_AsLongLong(args[1]), now = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred() || get(args[0], active_name, &active) < 0)
        return NULL;
    if (by > 0 && active == 0 && set(args[0], since_name, now) < 0)
        return NULL;
    active += by;
    if (set(args[0], active_name, active) < 0)
        return NULL;
    if (by < 0 && active == 0 &&
        (get(args[0], closed_name, &closed) < 0 || get(args[0], since_name, &since) < 0 ||
         set(args[0], closed_name, closed + now - since) < 0))
        return NULL;
    Py_RETURN_NONE;
}
