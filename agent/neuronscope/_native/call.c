/* A call, its span, and observed time: the twins of `CallInPython`, `SpanInPython` and `IntervalsInPython`. */
#include "call.h"
#include <structmember.h>

PyTypeObject *ns_call_type, *ns_span_type;

static PyObject *zero, *nothing;

#define FIELD(name, which)                                                                                             \
    {                                                                                                                  \
        (name), T_OBJECT_EX, offsetof(Fields, fields) + (which) * (Py_ssize_t)sizeof(PyObject *), 0, NULL              \
    }

static PyMemberDef call_members[] = {
    FIELD("engine", C_ENGINE),
    FIELD("seam", C_SEAM),
    FIELD("snapshot", C_SNAPSHOT),
    FIELD("start_perf_ns", C_START),
    FIELD("name", C_NAME),
    FIELD("span", C_SPAN),
    FIELD("context", C_CONTEXT),
    FIELD("token", C_TOKEN),
    FIELD("watch", C_WATCH),
    FIELD("arguments", C_ARGUMENTS),
    FIELD("replacement", C_REPLACEMENT),
    FIELD("observing", C_OBSERVING),
    FIELD("result", C_RESULT),
    FIELD("error", C_ERROR),
    FIELD("failure", C_FAILURE),
    FIELD("stream", C_STREAM),
    FIELD("searches", C_SEARCHES),
    FIELD("http", C_HTTP),
    FIELD("headers", C_HEADERS),
    FIELD("resends", C_RESENDS),
    FIELD("quick", C_QUICK),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef span_members[] = {
    FIELD("_name", S_NAME),
    FIELD("_context", S_CONTEXT),
    FIELD("parent", S_PARENT),
    FIELD("kind", S_KIND),
    FIELD("library", S_LIBRARY),
    FIELD("start_time", S_START),
    FIELD("end_time", S_END),
    FIELD("own", S_OWN),
    FIELD("user_attributes", S_USER_ATTRIBUTES),
    FIELD("event_buffer", S_EVENTS),
    FIELD("link_buffer", S_LINKS),
    FIELD("call", S_CALL),
    FIELD("model_call", S_MODEL_CALL),
    FIELD("recording", S_RECORDING),
    FIELD("foreign", S_FOREIGN),
    FIELD("shared", S_SHARED),
    FIELD("inner", S_INNER),
    FIELD("masked", S_MASKED),
    FIELD("layer", S_LAYER),
    FIELD("hot_ns", S_HOT_NS),
    FIELD("dropped_attributes", S_DROPPED_ATTRIBUTES),
    FIELD("dropped_events", S_DROPPED_EVENTS),
    FIELD("_status", S_STATUS),
    {NULL, 0, 0, 0, NULL},
};

static int
field_count(PyTypeObject *type)
{
    return PyType_IsSubtype(type, ns_call_type) ? CALL_FIELDS : SPAN_FIELDS;
}

static void
fill(PyObject *self, int count)
{
    PyObject **fields = ((Fields *)self)->fields;
    for (int i = 0; i < count; i++)
        fields[i] = Py_NewRef(Py_None);
}

static void
first_values(PyObject *self, int count)
{
    fill(self, count);
    if (count == CALL_FIELDS) {
        ns_put(self, C_OBSERVING, Py_NewRef(Py_False));
        ns_put(self, C_SEARCHES, Py_NewRef(nothing));
    } else {
        ns_put(self, S_SHARED, Py_NewRef(Py_False));
        ns_put(self, S_HOT_NS, Py_NewRef(zero));
        ns_put(self, S_DROPPED_ATTRIBUTES, Py_NewRef(zero));
        ns_put(self, S_DROPPED_EVENTS, Py_NewRef(zero));
    }
}

PyObject *
ns_new_fields(PyTypeObject *type)
{
    PyObject *self = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL)
        first_values(self, field_count(type));
    return self;
}

/* The first fields come as arguments, by position. */
static PyObject *
new_from(PyTypeObject *type, PyObject *args, PyObject *kwargs, const char *name, Py_ssize_t wanted)
{
    if (kwargs != NULL && PyDict_Size(kwargs) != 0)
        return PyErr_Format(PyExc_TypeError, "%s takes no keywords", name);
    if (!ns_takes(name, PyTuple_Size(args), wanted))
        return NULL;
    PyObject *self = ns_new_fields(type);
    for (Py_ssize_t i = 0; self != NULL && i < wanted; i++)
        ns_put(self, (int)i, Py_NewRef(PyTuple_GetItem(args, i)));
    return self;
}

static PyObject *
call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return new_from(type, args, kwargs, "Call", CALL_GIVEN);
}

static PyObject *
span_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    return new_from(type, args, kwargs, "Span", SPAN_GIVEN);
}

static int
visit_fields(PyObject *self, int count, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < count; i++)
        Py_VISIT(ns_field(self, i));
    return 0;
}

static void
clear_fields(PyObject *self, int count)
{
    for (int i = 0; i < count; i++)
        ns_put(self, i, NULL);
}

static void
dealloc_fields(PyObject *self, int count)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_fields(self, count);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

static int
call_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_fields(self, CALL_FIELDS, visit, arg);
}

static int
span_traverse(PyObject *self, visitproc visit, void *arg)
{
    return visit_fields(self, SPAN_FIELDS, visit, arg);
}

/* In a cycle it is not gone yet: whoever still sees it finds its fields as they were at first. */
static int
call_clear(PyObject *self)
{
    for (int i = 0; i < CALL_FIELDS; i++)
        ns_put(self, i, Py_NewRef(Py_None));
    return 0;
}

static int
span_clear(PyObject *self)
{
    for (int i = 0; i < SPAN_FIELDS; i++)
        ns_put(self, i, Py_NewRef(Py_None));
    return 0;
}

static void
call_dealloc(PyObject *self)
{
    dealloc_fields(self, CALL_FIELDS);
}

static void
span_dealloc(PyObject *self)
{
    dealloc_fields(self, SPAN_FIELDS);
}

static PyType_Slot call_slots[] = {
    {Py_tp_doc, "What is kept of a call."},
    {Py_tp_new, call_new},
    {Py_tp_traverse, call_traverse},
    {Py_tp_clear, call_clear},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_members, call_members},
    {0, NULL},
};

static PyType_Slot span_slots[] = {
    {Py_tp_doc, "What is kept of a span."},
    {Py_tp_new, span_new},
    {Py_tp_traverse, span_traverse},
    {Py_tp_clear, span_clear},
    {Py_tp_dealloc, span_dealloc},
    {Py_tp_members, span_members},
    {0, NULL},
};

enum { HEAD = offsetof(Fields, fields) };

static PyType_Spec call_spec = {
    .name = "neuronscope._native.Call",
    .basicsize = HEAD + CALL_FIELDS * sizeof(PyObject *),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = call_slots,
};

static PyType_Spec span_spec = {
    .name = "neuronscope._native.Span",
    .basicsize = HEAD + SPAN_FIELDS * sizeof(PyObject *),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = span_slots,
};

/* --- observed time ------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    long long active, since, closed_ns;
} Intervals;

/* Each is one step for other threads: no Python code runs in it, so the GIL keeps them out. */
static PyObject *
intervals_began(Intervals *self, PyObject *now)
{
    long long when = PyLong_AsLongLong(now);
    if (when == -1 && PyErr_Occurred())
        return NULL;
    if (self->active++ == 0)
        self->since = when;
    Py_RETURN_NONE;
}

static PyObject *
intervals_ended(Intervals *self, PyObject *now)
{
    long long when = PyLong_AsLongLong(now);
    if (when == -1 && PyErr_Occurred())
        return NULL;
    if (--self->active == 0)
        self->closed_ns += when - self->since;
    Py_RETURN_NONE;
}

static void
intervals_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef intervals_methods[] = {
    {"began", (PyCFunction)(void (*)(void))intervals_began, METH_O, NULL},
    {"ended", (PyCFunction)(void (*)(void))intervals_ended, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef intervals_members[] = {
    {"active", T_LONGLONG, offsetof(Intervals, active), 0, NULL},
    {"since", T_LONGLONG, offsetof(Intervals, since), 0, NULL},
    {"closed_ns", T_LONGLONG, offsetof(Intervals, closed_ns), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot intervals_slots[] = {
    {Py_tp_doc, "The union of observed intervals."},
    {Py_tp_dealloc, intervals_dealloc},
    {Py_tp_methods, intervals_methods},
    {Py_tp_members, intervals_members},
    {0, NULL},
};

static PyType_Spec intervals_spec = {
    .name = "neuronscope._native.Intervals",
    .basicsize = sizeof(Intervals),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = intervals_slots,
};

static int
add(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type)
{
    if (*type == NULL && (*type = (PyTypeObject *)PyType_FromSpec(spec)) == NULL)
        return -1;
    return PyModule_AddObjectRef(module, name, (PyObject *)*type);
}

int
ns_add_call(PyObject *module)
{
    static PyTypeObject *intervals_type;
    if ((zero == NULL && (zero = PyLong_FromLong(0)) == NULL) ||
        (nothing == NULL && (nothing = PyTuple_New(0)) == NULL))
        return -1;
    return add(module, "Call", &call_spec, &ns_call_type) < 0 || add(module, "Span", &span_spec, &ns_span_type) < 0
               ? -1
               : add(module, "Intervals", &intervals_spec, &intervals_type);
}
