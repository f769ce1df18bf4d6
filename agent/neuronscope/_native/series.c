/* One series of a histogram: the twin of `engine.histogram.SeriesInPython`. */
#include "native.h"
#include <math.h>
#include <structmember.h>

/* The last value of a bucket, and whose it was; all are NULL if nobody was told. */
typedef struct {
    PyObject *value, *now, *trace, *span;
} Sighting;

typedef struct {
    PyObject_HEAD
    PyObject *bounds; /* tuple of floats, ascending */
    Py_ssize_t size;  /* of the following: one more than bounds */
    double *ends;
    long long *counts;
    Sighting *seen;
    double sum;
    Py_ssize_t count;
} Series;

/* --- made from lists ----------------------------------------------------------------------------------- */

/* (value, now, trace, span), or None */
static int
read_sighting(PyObject *told, Sighting *found)
{
    if (told == Py_None)
        return 0;
    if (!PyTuple_Check(told) || PyTuple_Size(told) != 4) {
        PyErr_SetString(PyExc_TypeError, "an exemplar is a tuple of four, or None");
        return -1;
    }
    found->value = Py_NewRef(PyTuple_GetItem(told, 0));
    found->now = Py_NewRef(PyTuple_GetItem(told, 1));
    found->trace = Py_NewRef(PyTuple_GetItem(told, 2));
    found->span = Py_NewRef(PyTuple_GetItem(told, 3));
    return 0;
}

static void
forget_sighting(Sighting *seen)
{
    Sighting before = *seen;
    *seen = (Sighting){NULL, NULL, NULL, NULL};
    Py_XDECREF(before.value);
    Py_XDECREF(before.now);
    Py_XDECREF(before.trace);
    Py_XDECREF(before.span);
}

static int
read_lists(Series *self, PyObject *counts, PyObject *exemplars)
{
    for (Py_ssize_t i = 0; i < self->size; i++) {
        if (i < self->size - 1) {
            self->ends[i] = PyFloat_AsDouble(PyTuple_GetItem(self->bounds, i));
            if (self->ends[i] == -1.0 && PyErr_Occurred())
                return -1;
        }
        self->counts[i] = PyLong_AsLongLong(PyList_GetItem(counts, i));
        if (self->counts[i] == -1 && PyErr_Occurred())
            return -1;
        if (read_sighting(PyList_GetItem(exemplars, i), &self->seen[i]) < 0)
            return -1;
    }
    return 0;
}

static int
series_init(Series *self, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *bounds, *counts, *exemplars;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &bounds, &PyList_Type, &counts, &PyList_Type, &exemplars))
        return -1;
    Py_ssize_t size = PyTuple_Size(bounds) + 1;
    if (PyList_Size(counts) != size || PyList_Size(exemplars) != size) {
        PyErr_SetString(PyExc_ValueError, "a histogram has one more bucket than bounds");
        return -1;
    }
    if (self->bounds != NULL) { /* others may be filling it */
        PyErr_SetString(PyExc_TypeError, "a series is made once");
        return -1;
    }
    self->bounds = Py_NewRef(bounds);
    self->ends = PyMem_Calloc((size_t)size, sizeof(double));
    self->counts = PyMem_Calloc((size_t)size, sizeof(long long));
    self->seen = PyMem_Calloc((size_t)size, sizeof(Sighting));
    if (self->ends == NULL || self->counts == NULL || self->seen == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->size = size;
    if (read_lists(self, counts, exemplars) == 0)
        return 0;
    for (Py_ssize_t i = 0; i < size; i++)
        forget_sighting(&self->seen[i]);
    self->size = 0; /* refuses values */
    return -1;
}

static int
series_traverse(Series *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->bounds);
    for (Py_ssize_t i = 0; i < self->size; i++) {
        Py_VISIT(self->seen[i].value);
        Py_VISIT(self->seen[i].now);
        Py_VISIT(self->seen[i].trace);
        Py_VISIT(self->seen[i].span);
    }
    return 0;
}

static int
series_clear(Series *self)
{
    for (Py_ssize_t i = 0; i < self->size; i++)
        forget_sighting(&self->seen[i]);
    Py_CLEAR(self->bounds);
    return 0;
}

static void
series_dealloc(Series *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    series_clear(self);
    PyMem_Free(self->ends);
    PyMem_Free(self->counts);
    PyMem_Free(self->seen);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* --- filled -------------------------------------------------------------------------------------------- */

/* The bucket of a value: the first whose bound is not below it. */
static Py_ssize_t
bucket(const Series *self, double value)
{
    Py_ssize_t low = 0, high = self->size - 1;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (self->ends[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int
add(Series *self, PyObject *given, PyObject *span, PyObject *now)
{
    if (self->size == 0) {
        PyErr_SetString(PyExc_ValueError, "not initialised");
        return -1;
    }
    double value = PyFloat_AsDouble(given);
    if (value == -1.0 && PyErr_Occurred())
        return -1;
    if (!isfinite(value))
        return 0;
    if (span != Py_None && (!PyTuple_Check(span) || PyTuple_Size(span) != 2)) {
        PyErr_SetString(PyExc_TypeError, "a span is a pair of ids");
        return -1;
    }
    Py_ssize_t index = bucket(self, value);
    self->counts[index]++;
    self->sum += value;
    self->count++;
    if (span == Py_None)
        return 0;
    Sighting before = self->seen[index];
    self->seen[index] = (Sighting){Py_NewRef(given), Py_NewRef(now), Py_NewRef(PyTuple_GetItem(span, 0)),
                                   Py_NewRef(PyTuple_GetItem(span, 1))};
    forget_sighting(&before);
    return 0;
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

/* A copy of what is in the buckets; `one` makes an item. */
static PyObject *
listed(const Series *self, PyObject *(*one)(const Series *, Py_ssize_t))
{
    PyObject *list = PyList_New(self->size);
    for (Py_ssize_t i = 0; list != NULL && i < self->size; i++) {
        PyObject *item = one(self, i);
        if (item == NULL || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *
one_count(const Series *self, Py_ssize_t i)
{
    return PyLong_FromLongLong(self->counts[i]);
}

static PyObject *
one_sighting(const Series *self, Py_ssize_t i)
{
    const Sighting *seen = &self->seen[i];
    if (seen->value == NULL)
        Py_RETURN_NONE;
    Sighting held = {Py_NewRef(seen->value), Py_NewRef(seen->now), Py_NewRef(seen->trace), Py_NewRef(seen->span)};
    PyObject *told = PyTuple_Pack(4, held.value, held.now, held.trace, held.span); /* may collect garbage */
    forget_sighting(&held);
    return told;
}

static PyObject *
get_counts(const Series *self, void *Py_UNUSED(closure))
{
    return listed(self, one_count);
}

static PyObject *
get_exemplars(const Series *self, void *Py_UNUSED(closure))
{
    return listed(self, one_sighting);
}

static PyGetSetDef series_copies[] = {
    {"counts", (getter)get_counts, NULL, NULL, NULL},
    {"exemplars", (getter)get_exemplars, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef series_members[] = {
    {"bounds", T_OBJECT_EX, offsetof(Series, bounds), READONLY, NULL},
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
    {Py_tp_getset, series_copies},
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
ns_add_to_series(PyObject *series, PyObject *value, PyObject *span, PyObject *now)
{
    if (!PyObject_TypeCheck(series, (PyTypeObject *)series_type))
        return 0;
    return add((Series *)series, value, span, now) < 0 ? -1 : 1;
}

int
ns_add_series(PyObject *module)
{
    if (series_type == NULL && (series_type = PyType_FromSpec(&series_spec)) == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Series", series_type);
}
