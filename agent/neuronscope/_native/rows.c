/* What a call tells in several series at once: twins of `engine.histogram`. */
#include "native.h"
#include <math.h>

/* counts[labels] += value, if it is finite */
static int
add_to_counter(PyObject *counter, PyObject *value)
{
    PyObject *counts = PyTuple_GetItem(counter, 0), *labels = PyTuple_GetItem(counter, 1);
    if (counts == NULL || labels == NULL || !PyDict_Check(counts)) {
        PyErr_SetString(PyExc_TypeError, "a counter is a dictionary and labels");
        return -1;
    }
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        return -1;
    if (!isfinite(number))
        return 0;
    PyObject *before = PyDict_GetItemWithError(counts, labels);
    if (before == NULL)
        return PyErr_Occurred() ? -1 : PyDict_SetItem(counts, labels, value);
    PyObject *after = PyNumber_Add(before, value);
    int done = after == NULL ? -1 : PyDict_SetItem(counts, labels, after);
    Py_XDECREF(after);
    return done;
}

/* Record in rows, from `start` on; the first that has no series though its value is told, or -1; -2 with an
 * exception. */
static Py_ssize_t
fill(PyObject *rows, Py_ssize_t start, PyObject *attributes, PyObject *seconds, PyObject *span, PyObject *now)
{
    for (Py_ssize_t i = start; i + 1 < PyList_Size(rows); i += 2) {
        PyObject *key = PyList_GetItem(rows, i), *series = PyList_GetItem(rows, i + 1);
        PyObject *value = key == Py_None ? seconds : PyDict_GetItemWithError(attributes, key);
        if (value == NULL && PyErr_Occurred())
            return -2;
        if (value == NULL || !(PyFloat_Check(value) || PyLong_Check(value)))
            continue;
        if (series == Py_None)
            return i;
        Py_INCREF(series);
        Py_INCREF(value);
        int done = ns_add_to_series(series, value, span, now);
        if (done == 0 && PyTuple_Check(series)) {
            done = add_to_counter(series, value);
        } else if (done == 0) {
            PyErr_SetString(PyExc_TypeError, "fill takes series and counters");
            done = -1;
        }
        Py_DECREF(value);
        Py_DECREF(series);
        if (done < 0)
            return -2;
    }
    return -1;
}

/* fill(rows, start, attributes, seconds, span, now) -> the first row without series whose value is told, or -1
 *
 * rows: attribute, series, attribute, …, from `start` on; for the attribute None the value is `seconds`.  What is
 * no number is left out.  A counter is a dictionary and the labels to count under. */
PyObject *
ns_fill(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("fill", n, 6))
        return NULL;
    if (!PyList_Check(args[0]) || !PyDict_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "fill takes a list and a dictionary");
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no such row");
    Py_ssize_t row = fill(args[0], start, args[2], args[3], args[4], args[5]);
    return row == -2 ? NULL : PyLong_FromSsize_t(row);
}

/* fill_known(known, labels, attributes, seconds, span, now) -> (rows, row), or None when all is recorded
 *
 * known: rows by the values of these labels.  What is not recorded yet is to be recorded from `row` on; rows is
 * None if there are none yet. */
PyObject *
ns_fill_known(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("fill_known", n, 6))
        return NULL;
    PyObject *known = args[0], *labels = args[1], *attributes = args[2];
    if (!PyDict_Check(known) || !PyTuple_Check(labels) || !PyDict_Check(attributes))
        return PyErr_Format(PyExc_TypeError, "fill_known takes a dictionary, labels and a dictionary");
    PyObject *key = PyTuple_New(PyTuple_Size(labels));
    for (Py_ssize_t i = 0; key != NULL && i < PyTuple_Size(labels); i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, PyTuple_GetItem(labels, i));
        if (value == NULL && PyErr_Occurred())
            Py_CLEAR(key);
        else if (PyTuple_SetItem(key, i, Py_NewRef(value == NULL ? Py_None : value)) < 0)
            Py_CLEAR(key);
    }
    if (key == NULL)
        return NULL;
    PyObject *rows = PyDict_GetItemWithError(known, key);
    Py_DECREF(key);
    if (rows == NULL) {
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError))
                return NULL;
            PyErr_Clear(); /* a label that is a list */
        }
        return Py_BuildValue("(Oi)", Py_None, 0);
    }
    if (!PyList_Check(rows))
        return PyErr_Format(PyExc_TypeError, "rows are a list");
    Py_INCREF(rows);
    Py_ssize_t row = fill(rows, 0, attributes, args[3], args[4], args[5]);
    PyObject *found = NULL;
    if (row >= 0)
        found = Py_BuildValue("(On)", rows, row);
    else if (row == -1)
        found = Py_NewRef(Py_None);
    Py_DECREF(rows);
    return found;
}
