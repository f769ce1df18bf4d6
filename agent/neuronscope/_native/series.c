/* One series of a histogram: the twin of `engine.metrics`' in Python. */
#include "native.h"
#include <math.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *bounds;    /* tuple of floats, ascending */
    PyObject *counts;    /* list of ints, one more than bounds */
    PyObject *exemplars; /* list of tuples or None, as many */
    double sum;
    Py_ssize_t count;
} Series;

static int
series_init(Series *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *bounds, *counts, *exemplars;
    if (!PyArg_ParseTuple(args, "OO!O!", &bounds, &PyList_Type, &counts, &PyList_Type, &exemplars))
        return -1;
    bounds = PySequence_Tuple(bounds);
    if (bounds == NULL)
        return -1;
    if (PyList_Size(counts) != PyTuple_Size(bounds) + 1 || PyList_Size(exemplars) != PyList_Size(counts)) {
        Py_DECREF(bounds);
        PyErr_SetString(PyExc_ValueError, "a histogram has one more bucket than bounds");
        return -1;
    }
    PyObject *before[] = {self->bounds, self->counts, self->exemplars};
    self->bounds = bounds;
    self->counts = Py_NewRef(counts);
    self->exemplars = Py_NewRef(exemplars);
    self->sum = 0.0;
    self->count = 0;
    for (int i = 0; i < 3; i++)
        Py_XDECREF(before[i]);
    return 0;
}

static int
series_traverse(Series *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->bounds);
    Py_VISIT(self->counts);
    Py_VISIT(self->exemplars);
    return 0;
}

static int
series_clear(Series *self)
{
    Py_CLEAR(self->bounds);
    Py_CLEAR(self->counts);
    Py_CLEAR(self->exemplars);
    return 0;
}

static void
series_dealloc(Series *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    series_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* The bucket of a value: the first whose bound is not below it. */
static Py_ssize_t
bucket(PyObject *bounds, double value)
{
    Py_ssize_t low = 0, high = PyTuple_Size(bounds);
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        double bound = PyFloat_AsDouble(PyTuple_GetItem(bounds, middle));
        if (bound == -1.0 && PyErr_Occurred())
            return -1;
        if (bound < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* (value, now, *span) */
static PyObject *
sighting(PyObject *value, PyObject *now, PyObject *span)
{
    if (!PyTuple_Check(span) || PyTuple_Size(span) != 2)
        return PyErr_Format(PyExc_TypeError, "a span is a pair of ids");
    return PyTuple_Pack(4, value, now, PyTuple_GetItem(span, 0), PyTuple_GetItem(span, 1));
}

static int
add(Series *self, PyObject *given, PyObject *span, PyObject *now)
{
    if (self->counts == NULL) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return -1;
    }
    double value = PyFloat_AsDouble(given);
    if (value == -1.0 && PyErr_Occurred())
        return -1;
    if (!isfinite(value))
        return 0;
    Py_ssize_t index = bucket(self->bounds, value);
    PyObject *before = index < 0 ? NULL : PyList_GetItem(self->counts, index);
    if (before == NULL)
        return -1;
    long long count = PyLong_AsLongLong(before);
    if (count == -1 && PyErr_Occurred())
        return -1;
    PyObject *seen = NULL, *after = PyLong_FromLongLong(count + 1);
    if (after == NULL)
        return -1;
    if (span != Py_None && (seen = sighting(given, now, span)) == NULL) {
        Py_DECREF(after);
        return -1;
    }
    self->sum += value;
    self->count++;
    if (PyList_SetItem(self->counts, index, after) < 0) {
        Py_XDECREF(seen);
        return -1;
    }
    return seen == NULL ? 0 : PyList_SetItem(self->exemplars, index, seen);
}

/* add(value, span, now): count a value that is finite; others never enter. */
static PyObject *
series_add(Series *self, Args args, Py_ssize_t n)
{
    if (!ns_takes("add", n, 3) || add(self, args[0], args[1], args[2]) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef series_methods[] = {
    {"add", (PyCFunction)(void (*)(void))series_add, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef series_members[] = {
    {"bounds", T_OBJECT_EX, offsetof(Series, bounds), READONLY, NULL},
    {"counts", T_OBJECT_EX, offsetof(Series, counts), READONLY, NULL},
    {"exemplars", T_OBJECT_EX, offsetof(Series, exemplars), READONLY, NULL},
    {"sum", T_DOUBLE, offsetof(Series, sum), READONLY, NULL},
    {"count", T_PYSSIZET, offsetof(Series, count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot series_slots[] = {
    {Py_tp_doc, "One series of a histogram; whoever changes it holds the aggregator's lock."},
    {Py_tp_init, series_init},
    {Py_tp_traverse, series_traverse},
    {Py_tp_clear, series_clear},
    {Py_tp_dealloc, series_dealloc},
    {Py_tp_methods, series_methods},
    {Py_tp_members, series_members},
    {0, NULL},
};

static PyType_Spec series_spec = {
    .name = "neuronscope._native.Series",
    .basicsize = sizeof(Series),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = series_slots,
};

static PyObject *series_type;

int
ns_add_series(PyObject *module)
{
    if (series_type == NULL && (series_type = PyType_FromSpec(&series_spec)) == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Series", series_type);
}

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
        int done;
        if (PyObject_TypeCheck(series, (PyTypeObject *)series_type)) {
            done = add((Series *)series, value, span, now);
        } else if (PyTuple_Check(series)) {
            done = add_to_counter(series, value);
        } else {
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
