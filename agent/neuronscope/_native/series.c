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

/* add(value, span, now): count a value that is finite; others never enter. */
static PyObject *
series_add(Series *self, Args args, Py_ssize_t n)
{
    if (!ns_takes("add", n, 3))
        return NULL;
    if (self->counts == NULL)
        return PyErr_Format(PyExc_ValueError, "not initialised");
    double value = PyFloat_AsDouble(args[0]);
    if (value == -1.0 && PyErr_Occurred())
        return NULL;
    if (!isfinite(value))
        Py_RETURN_NONE;
    Py_ssize_t index = bucket(self->bounds, value);
    if (index < 0)
        return NULL;
    PyObject *before = PyList_GetItem(self->counts, index);
    if (before == NULL)
        return NULL;
    long long count = PyLong_AsLongLong(before);
    PyObject *after = count == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(count + 1);
    PyObject *seen = after == NULL || args[1] == Py_None ? NULL : sighting(args[0], args[2], args[1]);
    if (PyErr_Occurred()) {
        Py_XDECREF(after);
        return NULL;
    }
    self->sum += value;
    self->count++;
    if (PyList_SetItem(self->counts, index, after) < 0) {
        Py_XDECREF(seen);
        return NULL;
    }
    if (seen != NULL && PyList_SetItem(self->exemplars, index, seen) < 0)
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

int
ns_add_series(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&series_spec);
    if (type == NULL)
        return -1;
    int done = PyModule_AddObjectRef(module, "Series", type);
    Py_DECREF(type);
    return done;
}
