/* Where the calls of one method begin. */
#include "entry.h"
#include <time.h>

/* What of a pipeline, as `Pipeline.ours` lists it. */
enum { PROVIDER, PROCESSORS, IDS, ROOT, FOLLOWS, OURS_END };

enum { ADDRESS = 1 }; /* in a `Peer` */

#define AS_TEXT(name) #name,
static const char *const TEXTS[] = {NS_ENTRY_NAMES(AS_TEXT)};

PyObject *ns_entry_names[NAMES_END];

int64_t
ns_elapsed(void)
{
#ifdef __APPLE__
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
}

/* Whether an attribute is true; -1 with an exception.  Takes the reference. */
static int
is_true(PyObject *value)
{
    int is = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return is;
}

/* Whether an attribute is None; -1 with an exception.  Takes the reference. */
static int
is_none(PyObject *value)
{
    Py_XDECREF(value);
    return value == NULL ? -1 : value == Py_None;
}

PyObject *
ns_read_clock(Entry *self, int name)
{
    PyObject *clock = PyDict_GetItemWithError(TOOL(self, CLOCKS), ns_entry_names[name]), *now;
    if (clock == NULL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_AttributeError, "there is no clock %s", TEXTS[name]);
    Py_INCREF(clock);
    now = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    return now;
}

PyObject *
ns_fault(Entry *self, PyObject *returned)
{
    PyObject *kind, *error, *where, *done = NULL;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&kind, &error, &where);
    PyErr_NormalizeException(&kind, &error, &where);
    if (where != NULL && error != NULL && PyException_SetTraceback(error, where) < 0)
        PyErr_Clear();
    if (error != NULL)
        done = PyObject_CallMethodObjArgs(TOOL(self, GUARD), ns_entry_names[N_fault], self->site, error, NULL);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(where);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return Py_NewRef(returned);
}

static void
let_go(Begun *begun)
{
    Py_XDECREF(begun->quick);
    Py_XDECREF(begun->ids);
    Py_XDECREF(begun->flags);
    Py_XDECREF(begun->current);
    Py_XDECREF(begun->around);
    Py_XDECREF(begun->arguments);
    Py_XDECREF(begun->snapshot);
    Py_XDECREF(begun->name);
}

/* --- is there nothing but the usual to be done?  0: Python decides ---------------------------------------- */

/* Is the pipeline ours, and is something known of its sampler?  Then there are ids to take. */
static int
is_ours(Entry *self, Begun *begun)
{
    PyObject *ours = GET(PyTuple_GetItem(begun->quick, PIPELINE), ours), *provider, *processors;
    if (ours == NULL)
        return -1;
    int is = 0;
    if (PyTuple_Check(ours) && PyTuple_Size(ours) == OURS_END) {
        provider = PyDict_GetItemWithError(TOOL(self, API), ns_entry_names[N__TRACER_PROVIDER]);
        if (provider == NULL && PyErr_Occurred()) {
            is = -1;
        } else if (provider == PyTuple_GetItem(ours, PROVIDER)) {
            processors = GET(PyTuple_GetItem(ours, PROCESSORS), _span_processors);
            begun->ids = Py_NewRef(PyTuple_GetItem(ours, IDS));
            begun->flags = Py_NewRef(PyTuple_GetItem(ours, ROOT));
            begun->follows = PyTuple_GetItem(ours, FOLLOWS) == Py_True;
            is = processors == NULL ? -1 : PyTuple_Check(processors) && PyTuple_Size(processors) == 1;
            Py_XDECREF(processors);
        }
    }
    Py_DECREF(ours);
    return is;
}

/* Is the context one that asks for nothing special?  Then `around` is the parent's identity, if there is one. */
static int
is_usual_context(Entry *self, Begun *begun)
{
    PyObject *current = begun->current, *unusual = TOOL(self, UNUSUAL);
    if (!PyDict_Check(current))
        return 0;
    if (PyDict_Size(current) == 0)
        return 1;
    for (Py_ssize_t i = 0, count = PyTuple_Size(unusual); i < count; i++) {
        int has = PyDict_Contains(current, PyTuple_GetItem(unusual, i));
        if (has != 0)
            return has < 0 ? -1 : 0;
    }
    PyObject *parent = PyDict_GetItemWithError(current, TOOL(self, CURRENT));
    if (parent == NULL)
        return PyErr_Occurred() ? -1 : 1;
    if ((PyObject *)Py_TYPE(parent) != TOOL(self, LIGHT_SPAN))
        return 0;
    PyObject *library = ns_field(parent, S_LIBRARY), *around = ns_field(parent, S_CONTEXT);
    if (library == NULL || around == NULL || (PyObject *)Py_TYPE(around) != TOOL(self, SPAN_CONTEXT))
        return 0;
    int same = PyObject_RichCompareBool(library, self->library, Py_EQ);
    if (same != 0)
        return same < 0 ? -1 : 0; /* it may be a part of that call */
    begun->around = Py_NewRef(around);
    return PyTuple_Size(around) == IDENTITY_SIZE && PyTuple_GetItem(around, VALID) == Py_True;
}

/* Is it known, without asking the sampler, whether the call is sampled?  Then `flags` says it. */
static int
is_sampling_known(Entry *self, Begun *begun)
{
    if (begun->around == NULL || !begun->follows)
        return begun->flags != Py_None;
    long flags = PyLong_AsLong(PyTuple_GetItem(begun->around, FLAGS));
    if (flags == -1 && PyErr_Occurred())
        return -1;
    Py_DECREF(begun->flags);
    begun->flags = Py_NewRef(TOOL(self, flags & 1 ? SAMPLED : NOT_SAMPLED));
    return 1;
}

static int
is_usual(Entry *self, PyObject *args, Begun *begun)
{
    int is;
    if (!self->simple || PySet_Size(TOOL(self, WAITING)) != 0 || (self->bound && PyTuple_Size(args) == 0))
        return 0;
    if ((is = is_true(GET(self->installation, active))) <= 0)
        return is;
    begun->quick = GET(self->engine, quick);
    if (begun->quick == NULL)
        return -1;
    if (!PyTuple_Check(begun->quick) || PyTuple_Size(begun->quick) != QUICK_END ||
        !PyDict_Check(PyTuple_GetItem(begun->quick, RECEIVERS)))
        return 0;
    if ((is = is_ours(self, begun)) <= 0)
        return is;
    begun->current = PyObject_CallNoArgs(TOOL(self, CURRENT_GET));
    if (begun->current == NULL || (is = is_usual_context(self, begun)) < 0)
        return -1;
    return is == 0 ? 0 : is_sampling_known(self, begun);
}

/* Take over a name; whether it is one, -1 with an exception. */
static int
keep_name(Begun *begun, PyObject *name)
{
    Py_XDECREF(begun->name);
    begun->name = name;
    return name == NULL ? -1 : PyObject_IsTrue(name);
}

/* The name of the call: what the operation says, or the request, or the method. */
static int
name_call(Entry *self, Begun *begun, PyObject *endpoint)
{
    int told = keep_name(begun, GET(endpoint, called));
    if (told == 0)
        told = keep_name(begun, GET(begun->snapshot, method));
    if (told == 0)
        told = keep_name(begun, Py_NewRef(self->name)) < 0 ? -1 : 1;
    return told;
}

/* May it be that the server receives our trace context? */
static int
is_no_receiver(Begun *begun)
{
    PyObject *peer = GET(begun->snapshot, peer), *address, *known;
    if (peer == NULL)
        return -1;
    int is = 0;
    if (PyTuple_Check(peer) && PyTuple_Size(peer) > ADDRESS) {
        address = PyTuple_GetItem(peer, ADDRESS);
        known = address == Py_None ? Py_False
                                   : PyDict_GetItemWithError(PyTuple_GetItem(begun->quick, RECEIVERS), address);
        is = known == NULL && PyErr_Occurred() ? -1 : known == Py_False;
    }
    Py_DECREF(peer);
    return is;
}

/* Does what the adapter has kept ask for something special? */
static int
is_usual_snapshot(Entry *self, Begun *begun)
{
    PyObject *endpoint = GET(begun->snapshot, endpoint);
    if (endpoint == NULL)
        return -1;
    int is = is_none(GET(endpoint, embedder));
    if (is == 0)
        is = is_none(GET(self->engine, on_embedder));
    if (is > 0)
        is = name_call(self, begun, endpoint);
    Py_DECREF(endpoint);
    return is > 0 && self->injects ? is_no_receiver(begun) : is;
}

/* --- the way ----------------------------------------------------------------------------------------------- */

/* Whether the call is to be observed. */
static int
covers(Entry *self, PyObject *args)
{
    int is = is_true(GET(self->installation, everything));
    return is != 0 ? is : is_true(PyObject_CallMethodObjArgs(self->seam, ns_entry_names[N_covers], args, NULL));
}

/* Have the adapter keep what it needs of the call. */
static int
keep(Entry *self, PyObject *args, PyObject *kwargs, Begun *begun)
{
    PyObject *keeps = GET(PyTuple_GetItem(begun->quick, POLICY), keeps_texts);
    if (keeps == NULL)
        return -1;
    begun->arguments = PyTuple_Size(args) > self->bound ? ns_named(self->parameters, self->bound, args, kwargs)
                                                        : Py_NewRef(kwargs);
    PyObject *instance = self->bound ? PyTuple_GetItem(args, 0) : Py_None;
    if (begun->arguments != NULL)
        begun->snapshot = PyObject_CallFunctionObjArgs(self->snapshot, instance, begun->arguments, keeps, NULL);
    Py_DECREF(keeps);
    return begun->snapshot == NULL ? -1 : begun->snapshot != Py_None;
}

static PyObject *
begin(Entry *self, PyObject *args, PyObject *kwargs, Begun *begun)
{
    begun->started = ns_elapsed();
    int is = is_usual(self, args, begun);
    if (is == 0)
        return PyObject_CallMethodObjArgs(self->engine, ns_entry_names[N_begin], self->seam, args, kwargs, NULL);
    if (is > 0 && (is = covers(self, args)) > 0)
        is = keep(self, args, kwargs, begun);
    if (is <= 0)
        return is < 0 ? NULL : Py_NewRef(Py_None);
    if ((is = is_usual_snapshot(self, begun)) != 0)
        return is < 0 ? NULL : ns_open_usual(self, begun);
    PyObject *started = PyLong_FromLongLong(begun->started), *call;
    if (started == NULL)
        return NULL;
    call = PyObject_CallMethodObjArgs(self->engine, ns_entry_names[N_open_kept], self->seam, args, kwargs,
                                      begun->arguments, begun->snapshot, begun->current, started, NULL);
    Py_DECREF(started);
    return call;
}

/* begin(args, kwargs) -> an invocation, or None: the call is not observed.  Guarded. */
PyObject *
ns_entry_begin(Entry *self, Args given, Py_ssize_t n)
{
    if (!ns_takes("begin", n, 2))
        return NULL;
    if (!PyTuple_Check(given[0]) || !PyDict_Check(given[1]) || self->tools == NULL)
        return PyErr_Format(PyExc_TypeError, "begin takes a tuple and a dictionary");
    self->made = NULL;
    int active = is_true(GET(self->engine, active));
    if (active <= 0)
        return active < 0 ? NULL : Py_NewRef(Py_None);
    int disabled = PySet_Contains(TOOL(self, DISABLED), self->site);
    if (disabled != 0)
        return disabled < 0 ? NULL : Py_NewRef(Py_None);
    Begun begun = {0};
    PyObject *call = begin(self, given[0], given[1], &begun);
    if (call == NULL)
        call = ns_fault(self, Py_None);
    let_go(&begun);
    self->made = call;
    return call;
}

/* made(call) -> did the last `begin` open this one?  For a caller that was interrupted before it had it. */
PyObject *
ns_entry_made(Entry *self, Args given, Py_ssize_t n)
{
    return ns_takes("made", n, 1) ? PyBool_FromLong(given[0] == self->made) : NULL;
}

int
ns_entry_ready(void)
{
    return ns_intern(ns_entry_names, TEXTS, NAMES_END) == 0 ? ns_open_ready() : -1;
}
