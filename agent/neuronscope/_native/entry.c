/* Where calls begin and end: the twin of `engine.entry`.
 *
 * It takes the way that nearly all calls take, and gives every other one to Python: see `engine.calls` and
 * `engine.invocation`, which say what has to be done and in what order. */
#include "native.h"
#include <structmember.h>

/* What is the same for all entries, as `engine.entry` lists it. */
enum {
    CURRENT_GET, CURRENT_SET, CURRENT_RESET, DETACH, RECORDING_GET, PERF_NS, CLOCKS, API, WAITING, DISABLED, GUARD,
    LIGHT_SPAN, INVOCATION, SPAN_CONTEXT, SAMPLED, NOT_SAMPLED, NO_STATE, CONTEXT, CURRENT, UNUSUAL, TOOLS_END
};
/* What of the engine the way needs, as `Calls.quick` lists it. */
enum { PIPELINE, POLICY, BEGAN, ENDED, RECEIVERS, QUICK_END };
/* What of a pipeline, as `Pipeline.ours` lists it. */
enum { PROVIDER, PROCESSORS, IDS, OURS_END };

enum { BOTH_IDS = 192, ONE_ID = 64, VALID = 5, IDENTITY_SIZE = 6, UNTIMED_NS = 1000 };

static const char *const NAMES[] = {
    "active", "everything", "begin", "open_kept", "quick", "ours", "_span_processors", "_TRACER_PROVIDER", "_bits",
    "keeps_texts", "embedder", "on_embedder", "called", "method", "endpoint", "peer", "library", "kind", "_context",
    "start_time", "call", "hot_ns", "recording", "span", "context", "token", "watch", "http", "headers", "result",
    "end_time", "elapsed_ns", "wall_ns", "fault", "succeed", "leave", "finish", "hand_over", "replacement", "bound",
    "parameters", "plain", "site", "name", "snapshot", "layer", "model", "inject_headers", "unwrap", "covers", "parent",
    "trace_flags",
};
enum {
    N_ACTIVE, N_EVERYTHING, N_BEGIN, N_OPEN_KEPT, N_QUICK, N_OURS, N_SPAN_PROCESSORS, N_TRACER_PROVIDER, N_BITS,
    N_KEEPS_TEXTS, N_EMBEDDER, N_ON_EMBEDDER, N_CALLED, N_METHOD, N_ENDPOINT, N_PEER, N_LIBRARY, N_KIND, N_CONTEXT,
    N_START_TIME, N_CALL, N_HOT_NS, N_RECORDING, N_SPAN, N_CALL_CONTEXT, N_TOKEN, N_WATCH, N_HTTP, N_HEADERS, N_RESULT,
    N_END_TIME, N_ELAPSED_NS, N_WALL_NS, N_FAULT, N_SUCCEED, N_LEAVE, N_FINISH, N_HAND_OVER, N_REPLACEMENT, N_BOUND,
    N_PARAMETERS, N_PLAIN, N_SITE, N_NAME, N_SNAPSHOT, N_LAYER, N_MODEL, N_INJECT_HEADERS, N_UNWRAP, N_COVERS, N_PARENT,
    N_TRACE_FLAGS, NAMES_END
};

static PyObject *names[NAMES_END], *both_ids, *one_id, *nothing;
static newfunc new_object;

typedef struct {
    PyObject_HEAD
    PyObject *tools, *engine, *seam, *installation;
    PyObject *site, *snapshot, *library, *kind, *name, *parameters, *plain; /* the seam's */
    char bound, simple, injects, unwraps;
} Entry;

#define TOOL(self, which) PyTuple_GetItem((self)->tools, (which))

static PyObject *
get(PyObject *of, int name)
{
    return PyObject_GetAttr(of, names[name]);
}

static int
set(PyObject *of, int name, PyObject *value)
{
    return PyObject_SetAttr(of, names[name], value);
}

/* Whether an attribute is true; -1 with an exception. */
static int
truth(PyObject *of, int name)
{
    PyObject *value = get(of, name);
    int is = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return is;
}

/* Whether an attribute is None; -1 with an exception. */
static int
is_none(PyObject *of, int name)
{
    PyObject *value = get(of, name);
    Py_XDECREF(value);
    return value == NULL ? -1 : value == Py_None;
}

/* The reading of a clock that tests may have set. */
static PyObject *
read_clock(Entry *self, int name)
{
    PyObject *clock = PyDict_GetItemWithError(TOOL(self, CLOCKS), names[name]), *now;
    if (clock == NULL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_AttributeError, "there is no clock %s", NAMES[name]);
    Py_INCREF(clock);
    now = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    return now;
}

/* A fault of ours goes to the guard, which contains it; NULL when it raises, under our own tests. */
static PyObject *
fault(Entry *self, PyObject *returned)
{
    PyObject *kind, *error, *where, *done;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&kind, &error, &where);
    PyErr_NormalizeException(&kind, &error, &where);
    if (where != NULL && error != NULL)
        PyException_SetTraceback(error, where);
    done = error == NULL
               ? NULL
               : PyObject_CallMethodObjArgs(TOOL(self, GUARD), names[N_FAULT], self->site, error, NULL);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(where);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return Py_NewRef(returned);
}

/* --- the beginning ------------------------------------------------------------------------------------- */

/* What the usual way needs to know; all references are held. */
typedef struct {
    PyObject *started, *quick, *ids, *current, *around, *arguments, *snapshot, *name;
} Begun;

static void
let_go(Begun *begun)
{
    Py_XDECREF(begun->started);
    Py_XDECREF(begun->quick);
    Py_XDECREF(begun->ids);
    Py_XDECREF(begun->current);
    Py_XDECREF(begun->around);
    Py_XDECREF(begun->arguments);
    Py_XDECREF(begun->snapshot);
    Py_XDECREF(begun->name);
}

/* Is the pipeline ours, and does it sample all?  Then there are ids to take. */
static int
is_ours(Entry *self, Begun *begun)
{
    PyObject *ours = get(PyTuple_GetItem(begun->quick, PIPELINE), N_OURS), *provider, *processors;
    if (ours == NULL)
        return -1;
    int is = 0;
    if (PyTuple_Check(ours) && PyTuple_Size(ours) == OURS_END) {
        provider = PyDict_GetItemWithError(TOOL(self, API), names[N_TRACER_PROVIDER]);
        if (provider == NULL && PyErr_Occurred()) {
            is = -1;
        } else if (provider == PyTuple_GetItem(ours, PROVIDER)) {
            processors = get(PyTuple_GetItem(ours, PROCESSORS), N_SPAN_PROCESSORS);
            if (processors == NULL) {
                is = -1;
            } else {
                is = PyTuple_Check(processors) && PyTuple_Size(processors) == 1;
                begun->ids = Py_NewRef(PyTuple_GetItem(ours, IDS));
                Py_DECREF(processors);
            }
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
    PyObject *library = get(parent, N_LIBRARY);
    if (library == NULL)
        return -1;
    int same = PyObject_RichCompareBool(library, self->library, Py_EQ);
    Py_DECREF(library);
    if (same != 0)
        return same < 0 ? -1 : 0; /* it may be a part of that call */
    begun->around = get(parent, N_CONTEXT);
    if (begun->around == NULL)
        return -1;
    return (PyObject *)Py_TYPE(begun->around) == TOOL(self, SPAN_CONTEXT) &&
           PyTuple_Size(begun->around) == IDENTITY_SIZE && PyTuple_GetItem(begun->around, VALID) == Py_True;
}

/* Is there nothing but the usual to be done for the call?  0: Python decides. */
static int
is_usual(Entry *self, PyObject *args, Begun *begun)
{
    int is;
    if (!self->simple || PySet_Size(TOOL(self, WAITING)) != 0 || (self->bound && PyTuple_Size(args) == 0))
        return 0;
    if ((is = truth(self->installation, N_ACTIVE)) <= 0)
        return is;
    begun->quick = get(self->engine, N_QUICK);
    if (begun->quick == NULL)
        return -1;
    if (!PyTuple_Check(begun->quick) || PyTuple_Size(begun->quick) != QUICK_END ||
        !PyDict_Check(PyTuple_GetItem(begun->quick, RECEIVERS)))
        return 0;
    if ((is = is_ours(self, begun)) <= 0)
        return is;
    begun->current = PyObject_CallNoArgs(TOOL(self, CURRENT_GET));
    return begun->current == NULL ? -1 : is_usual_context(self, begun);
}

/* Whether the call is to be observed. */
static int
covers(Entry *self, PyObject *args)
{
    int is = truth(self->installation, N_EVERYTHING);
    if (is != 0)
        return is;
    PyObject *told = PyObject_CallMethodObjArgs(self->seam, names[N_COVERS], args, NULL);
    is = told == NULL ? -1 : PyObject_IsTrue(told);
    Py_XDECREF(told);
    return is;
}

/* Take over a name; whether it is one, -1 with an exception. */
static int
keep_name(Begun *begun, PyObject *name)
{
    Py_XDECREF(begun->name);
    begun->name = name;
    return name == NULL ? -1 : PyObject_IsTrue(name);
}

/* Does what the adapter has kept ask for something special?  Fills in `name`. */
static int
is_usual_snapshot(Entry *self, Begun *begun)
{
    PyObject *endpoint = get(begun->snapshot, N_ENDPOINT);
    if (endpoint == NULL)
        return -1;
    int is = is_none(endpoint, N_EMBEDDER);
    if (is == 0)
        is = is_none(self->engine, N_ON_EMBEDDER);
    if (is > 0) {
        int told = keep_name(begun, get(endpoint, N_CALLED));
        if (told == 0)
            told = keep_name(begun, get(begun->snapshot, N_METHOD));
        if (told == 0)
            told = keep_name(begun, Py_NewRef(self->name)) < 0 ? -1 : 1;
        is = told;
    }
    Py_DECREF(endpoint);
    if (is <= 0 || !self->injects)
        return is;
    PyObject *peer = get(begun->snapshot, N_PEER);
    if (peer == NULL)
        return -1;
    if (!PyTuple_Check(peer) || PyTuple_Size(peer) < 2) {
        is = 0;
    } else if (PyTuple_GetItem(peer, 1) != Py_None) {
        PyObject *known =
            PyDict_GetItemWithError(PyTuple_GetItem(begun->quick, RECEIVERS), PyTuple_GetItem(peer, 1));
        is = known == NULL && PyErr_Occurred() ? -1 : known == Py_False;
    }
    Py_DECREF(peer);
    return is;
}

/* `SpanContext(trace, span, False, flags, state)` of valid ids; takes over the ids. */
static PyObject *
identity(Entry *self, PyObject *trace, PyObject *span, PyObject *flags, PyObject *state)
{
    PyTypeObject *type = (PyTypeObject *)TOOL(self, SPAN_CONTEXT);
    PyObject *made = NULL;
    if (trace != NULL && span != NULL)
        made = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, IDENTITY_SIZE);
    if (made == NULL) {
        Py_XDECREF(trace);
        Py_XDECREF(span);
        return NULL;
    }
    PyObject *fields[] = {trace, span, Py_NewRef(Py_False), Py_NewRef(flags), Py_NewRef(state), Py_NewRef(Py_True)};
    int done = 0;
    for (Py_ssize_t i = 0; i < IDENTITY_SIZE; i++) /* takes each over, also when it fails */
        done |= PyTuple_SetItem(made, i, fields[i]);
    if (done != 0)
        Py_CLEAR(made);
    return made;
}

/* A new identity: a child of `around`, or the root of a trace. */
static PyObject *
new_identity(Entry *self, Begun *begun)
{
    PyObject *bits = get(begun->ids, N_BITS), *around = begun->around, *drawn, *trace, *span;
    if (bits == NULL)
        return NULL;
    drawn = PyObject_CallFunctionObjArgs(bits, around == NULL ? both_ids : one_id, NULL);
    Py_DECREF(bits);
    if (drawn == NULL)
        return NULL;
    if (around == NULL) {
        PyObject *both = ns_split_ids(NULL, drawn);
        Py_DECREF(drawn);
        if (both == NULL)
            return NULL;
        trace = Py_NewRef(PyTuple_GetItem(both, 0));
        span = Py_NewRef(PyTuple_GetItem(both, 1));
        Py_DECREF(both);
        return identity(self, trace, span, TOOL(self, SAMPLED), TOOL(self, NO_STATE));
    }
    int some = PyObject_IsTrue(drawn);
    span = some > 0 ? Py_NewRef(drawn) : some == 0 ? PyLong_FromLong(1) : NULL;
    Py_DECREF(drawn);
    long flags = PyLong_AsLong(PyTuple_GetItem(around, 3));
    if (span == NULL || (flags == -1 && PyErr_Occurred())) {
        Py_XDECREF(span);
        return NULL;
    }
    trace = Py_NewRef(PyTuple_GetItem(around, 0));
    return identity(self, trace, span, TOOL(self, flags & 1 ? SAMPLED : NOT_SAMPLED), PyTuple_GetItem(around, 4));
}

/* Set an attribute to a value that is made for it. */
static int
take(PyObject *of, int name, PyObject *made)
{
    int done = made == NULL ? -1 : set(of, name, made);
    Py_XDECREF(made);
    return done;
}

static PyObject *
new_span(Entry *self, Begun *begun, PyObject *call)
{
    PyObject *span = new_object((PyTypeObject *)TOOL(self, LIGHT_SPAN), nothing, NULL);
    if (span == NULL)
        return NULL;
    PyObject *recording = PyObject_CallNoArgs(TOOL(self, RECORDING_GET));
    if (recording == NULL || take(span, N_CONTEXT, new_identity(self, begun)) < 0 ||
        (begun->around != NULL && set(span, N_PARENT, begun->around) < 0) || set(span, N_KIND, self->kind) < 0 ||
        set(span, N_LIBRARY, self->library) < 0 || take(span, N_START_TIME, read_clock(self, N_WALL_NS)) < 0 ||
        set(span, N_CALL, call) < 0 || (recording != Py_None && set(span, N_RECORDING, recording) < 0))
        Py_CLEAR(span);
    Py_XDECREF(recording);
    return span;
}

/* The context that the call is made in: the span is current. */
static PyObject *
context_of(Entry *self, PyObject *current, PyObject *span)
{
    PyObject *context = PyObject_CallNoArgs(TOOL(self, CONTEXT));
    if (context != NULL && (!PyDict_Check(context) ||
                            (PyDict_Size(current) != 0 && PyDict_Update(context, current) < 0) ||
                            PyDict_SetItem(context, TOOL(self, CURRENT), span) < 0)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "contexts are dictionaries");
        Py_CLEAR(context);
    }
    return context;
}

/* What observing took so far, in nanoseconds, from one reading to another. */
static PyObject *
between(PyObject *from, PyObject *to, long long more)
{
    long long first = PyLong_AsLongLong(from), last = PyLong_AsLongLong(to);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(last - first + more);
}

static PyObject *
open_usual(Entry *self, Begun *begun)
{
    PyObject *elapsed = PyDict_GetItemWithError(TOOL(self, CLOCKS), names[N_ELAPSED_NS]), *start, *told, *now;
    start = elapsed == TOOL(self, PERF_NS) ? Py_NewRef(begun->started) : read_clock(self, N_ELAPSED_NS);
    if (start == NULL)
        return NULL;
    PyObject *call = PyObject_CallFunctionObjArgs(TOOL(self, INVOCATION), self->engine, self->seam, begun->snapshot,
                                                  start, begun->name, NULL);
    Py_DECREF(start);
    if (call == NULL)
        return NULL;
    PyObject *span = new_span(self, begun, call), *context = NULL, *token = NULL;
    int done = -1;
    if (span != NULL && (context = context_of(self, begun->current, span)) != NULL && set(call, N_SPAN, span) == 0 &&
        set(call, N_CALL_CONTEXT, context) == 0 && set(call, N_QUICK, begun->quick) == 0 &&
        (now = PyObject_CallNoArgs(TOOL(self, PERF_NS))) != NULL) {
        told = PyObject_CallFunctionObjArgs(PyTuple_GetItem(begun->quick, BEGAN), now, NULL);
        if (told != NULL && take(span, N_HOT_NS, between(begun->started, now, 0)) == 0 &&
            (token = PyObject_CallFunctionObjArgs(TOOL(self, CURRENT_SET), context, NULL)) != NULL)
            done = set(call, N_TOKEN, token); /* last: what fails before leaves nothing current behind */
        Py_XDECREF(told);
        Py_DECREF(now);
    }
    Py_XDECREF(token);
    Py_XDECREF(context);
    Py_XDECREF(span);
    if (done < 0) {
        /* The span and the call hold each other. */
        PyObject *kind, *error, *where;
        PyErr_Fetch(&kind, &error, &where);
        if (set(call, N_SPAN, Py_None) < 0)
            PyErr_Clear();
        PyErr_Restore(kind, error, where);
        Py_CLEAR(call);
    }
    return call;
}

static PyObject *
begin(Entry *self, PyObject *args, PyObject *kwargs, Begun *begun)
{
    begun->started = PyObject_CallNoArgs(TOOL(self, PERF_NS));
    if (begun->started == NULL)
        return NULL;
    int is = is_usual(self, args, begun);
    if (is == 0)
        return PyObject_CallMethodObjArgs(self->engine, names[N_BEGIN], self->seam, args, kwargs, NULL);
    if (is < 0 || (is = covers(self, args)) < 0)
        return NULL;
    if (is == 0)
        return Py_NewRef(Py_None);
    if (PyTuple_Size(args) > self->bound) {
        PyObject *first = PyLong_FromLong(self->bound);
        if (first == NULL)
            return NULL;
        PyObject *given[] = {self->parameters, first, args, kwargs};
        begun->arguments = ns_arguments(NULL, given, 4);
        Py_DECREF(first);
    } else {
        begun->arguments = Py_NewRef(kwargs);
    }
    PyObject *keeps = get(PyTuple_GetItem(begun->quick, POLICY), N_KEEPS_TEXTS);
    PyObject *instance = self->bound ? PyTuple_GetItem(args, 0) : Py_None;
    if (begun->arguments != NULL && keeps != NULL)
        begun->snapshot = PyObject_CallFunctionObjArgs(self->snapshot, instance, begun->arguments, keeps, NULL);
    Py_XDECREF(keeps);
    if (begun->snapshot == NULL)
        return NULL;
    if (begun->snapshot == Py_None)
        return Py_NewRef(Py_None);
    is = is_usual_snapshot(self, begun);
    if (is < 0)
        return NULL;
    if (is > 0)
        return open_usual(self, begun);
    return PyObject_CallMethodObjArgs(self->engine, names[N_OPEN_KEPT], self->seam, args, kwargs, begun->arguments,
                                      begun->snapshot, begun->current, begun->started, NULL);
}

/* begin(args, kwargs) -> an invocation, or None: the call is not observed.  Guarded. */
static PyObject *
entry_begin(Entry *self, Args given, Py_ssize_t n)
{
    if (!ns_takes("begin", n, 2))
        return NULL;
    if (!PyTuple_Check(given[0]) || !PyDict_Check(given[1]) || self->tools == NULL)
        return PyErr_Format(PyExc_TypeError, "begin takes a tuple and a dictionary");
    int active = truth(self->engine, N_ACTIVE);
    if (active <= 0)
        return active < 0 ? NULL : Py_NewRef(Py_None);
    int disabled = PySet_Contains(TOOL(self, DISABLED), self->site);
    if (disabled != 0)
        return disabled < 0 ? NULL : Py_NewRef(Py_None);
    Begun begun = {0};
    PyObject *call = begin(self, given[0], given[1], &begun);
    if (call == NULL)
        call = fault(self, Py_None);
    let_go(&begun);
    return call;
}

/* --- the end ------------------------------------------------------------------------------------------- */

/* Is the end of this call the usual one?  The token is then the caller's to use. */
static int
ends_usually(Entry *self, PyObject *call, PyObject *result, PyObject **token)
{
    int is;
    if ((PyObject *)Py_TYPE(call) != TOOL(self, INVOCATION) || self->unwraps)
        return 0;
    if ((is = PySet_Contains(self->plain, (PyObject *)Py_TYPE(result))) <= 0)
        return is;
    PyObject *quick = get(call, N_QUICK), *now = get(self->engine, N_QUICK);
    is = quick == NULL || now == NULL ? -1 : quick == now && quick != Py_None;
    Py_XDECREF(quick);
    Py_XDECREF(now);
    if (is <= 0 || (is = is_none(call, N_WATCH)) <= 0)
        return is;
    PyObject *context = get(call, N_CALL_CONTEXT), *current = PyObject_CallNoArgs(TOOL(self, CURRENT_GET));
    is = context == NULL || current == NULL ? -1 : context == current && context != Py_None;
    Py_XDECREF(context);
    Py_XDECREF(current);
    if (is <= 0)
        return is;
    *token = get(call, N_TOKEN);
    return *token == NULL ? -1 : *token != Py_None;
}

/* Give the caller's context back. */
static int
give_back(Entry *self, PyObject *call, PyObject *token)
{
    if (set(call, N_TOKEN, Py_None) < 0)
        return -1;
    PyObject *done = PyObject_CallFunctionObjArgs(TOOL(self, CURRENT_RESET), token, NULL);
    if (done == NULL) { /* the context variables here are a copy of those in which it was set */
        PyErr_Clear();
        done = PyObject_CallFunctionObjArgs(TOOL(self, DETACH), token, NULL);
    }
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Keep the headers of the response, and let go of it. */
static int
keep_headers(PyObject *call)
{
    PyObject *http = get(call, N_HTTP);
    if (http == NULL)
        return -1;
    int done = 0;
    if (http != Py_None && (done = set(call, N_HTTP, Py_None)) == 0)
        done = take(call, N_HEADERS, get(http, N_HEADERS));
    Py_DECREF(http);
    return done;
}

/* End a span of ours and hand it to the worker; see `Endings.finish`. */
static int
finish(Entry *self, PyObject *quick, PyObject *span)
{
    int is = is_none(span, N_END_TIME);
    if (is <= 0)
        return is;
    PyObject *started = PyObject_CallNoArgs(TOOL(self, PERF_NS)), *told = NULL, *now = NULL, *spent = NULL;
    int done = -1;
    if (started != NULL && take(span, N_END_TIME, read_clock(self, N_WALL_NS)) == 0 &&
        (told = PyObject_CallFunctionObjArgs(PyTuple_GetItem(quick, ENDED), started, NULL)) != NULL &&
        (now = PyObject_CallNoArgs(TOOL(self, PERF_NS))) != NULL && (spent = get(span, N_HOT_NS)) != NULL) {
        long long before = PyLong_AsLongLong(spent);
        if (before != -1 || !PyErr_Occurred())
            done = take(span, N_HOT_NS, between(started, now, before + UNTIMED_NS));
    }
    Py_XDECREF(started);
    Py_XDECREF(told);
    Py_XDECREF(now);
    Py_XDECREF(spent);
    if (done == 0) {
        told = PyObject_CallMethodObjArgs(self->engine, names[N_HAND_OVER], span, NULL);
        done = told == NULL ? -1 : 0;
        Py_XDECREF(told);
    }
    return done;
}

static int
end(Entry *self, PyObject *call)
{
    PyObject *span = get(call, N_SPAN), *quick = get(call, N_QUICK);
    int done = span == NULL || quick == NULL ? -1 : 0;
    if (done == 0 && span != Py_None && (done = set(call, N_SPAN, Py_None)) == 0 &&
        (done = set(call, N_CALL_CONTEXT, Py_None)) == 0)
        done = finish(self, quick, span);
    Py_XDECREF(span);
    Py_XDECREF(quick);
    return done;
}

static int
succeed_usually(Entry *self, PyObject *call, PyObject *result, PyObject *token)
{
    PyObject *kind, *error, *where;
    if (give_back(self, call, token) == 0 && keep_headers(call) == 0 && set(call, N_RESULT, result) == 0)
        return end(self, call);
    PyErr_Fetch(&kind, &error, &where); /* a fault of ours goes to the guard; the span ends all the same */
    if (end(self, call) < 0)
        PyErr_Clear();
    PyErr_Restore(kind, error, where);
    return -1;
}

static PyObject *
succeed(Entry *self, PyObject *call, PyObject *result)
{
    PyObject *token = NULL, *done;
    int is = ends_usually(self, call, result, &token);
    if (is > 0)
        is = succeed_usually(self, call, result, token) < 0 ? -1 : 1;
    Py_XDECREF(token);
    if (is != 0)
        return is < 0 ? NULL : Py_NewRef(Py_True);
    done = PyObject_CallMethodObjArgs(call, names[N_SUCCEED], result, NULL);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    is = is_none(call, N_REPLACEMENT);
    return is < 0 ? NULL : PyBool_FromLong(is);
}

/* succeed(call, result) -> whether the service gets the result itself: what it gets instead is the call's
 * `replacement`.  Guarded. */
static PyObject *
entry_succeed(Entry *self, Args given, Py_ssize_t n)
{
    if (!ns_takes("succeed", n, 2))
        return NULL;
    if (self->tools == NULL)
        return PyErr_Format(PyExc_TypeError, "this entry is closed");
    PyObject *done = succeed(self, given[0], given[1]);
    if (done != NULL)
        return done;
    done = fault(self, Py_True);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    done = PyObject_CallMethodObjArgs(given[0], names[N_LEAVE], NULL);
    if (done == NULL)
        return fault(self, Py_True);
    Py_DECREF(done);
    int is = is_none(given[0], N_REPLACEMENT);
    return is < 0 ? NULL : PyBool_FromLong(is);
}

/* --- the type ------------------------------------------------------------------------------------------ */

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->tools);
    Py_VISIT(self->engine);
    Py_VISIT(self->seam);
    Py_VISIT(self->installation);
    Py_VISIT(self->site);
    Py_VISIT(self->snapshot);
    Py_VISIT(self->library);
    Py_VISIT(self->kind);
    Py_VISIT(self->name);
    Py_VISIT(self->parameters);
    Py_VISIT(self->plain);
    return 0;
}

static int
entry_clear(Entry *self)
{
    Py_CLEAR(self->tools);
    Py_CLEAR(self->engine);
    Py_CLEAR(self->seam);
    Py_CLEAR(self->installation);
    Py_CLEAR(self->site);
    Py_CLEAR(self->snapshot);
    Py_CLEAR(self->library);
    Py_CLEAR(self->kind);
    Py_CLEAR(self->name);
    Py_CLEAR(self->parameters);
    Py_CLEAR(self->plain);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* Are these the tools that `engine.entry` lists? */
static int
are_tools(PyObject *tools)
{
    static const int dictionaries[] = {CLOCKS, API}, sets[] = {WAITING, DISABLED};
    static const int types[] = {LIGHT_SPAN, INVOCATION, SPAN_CONTEXT, CONTEXT};
    if (!PyTuple_Check(tools) || PyTuple_Size(tools) != TOOLS_END || !PyTuple_Check(PyTuple_GetItem(tools, UNUSUAL)))
        return 0;
    for (int i = 0; i < 2; i++)
        if (!PyDict_Check(PyTuple_GetItem(tools, dictionaries[i])) || !PyAnySet_Check(PyTuple_GetItem(tools, sets[i])))
            return 0;
    for (int i = 0; i < 4; i++)
        if (!PyType_Check(PyTuple_GetItem(tools, types[i])))
            return 0;
    return PyType_IsSubtype((PyTypeObject *)PyTuple_GetItem(tools, SPAN_CONTEXT), &PyTuple_Type);
}

/* Read what a seam says once for all of its calls. */
static int
read_seam(Entry *self)
{
    PyObject *seam = self->seam, *method = get(seam, N_METHOD);
    int bound = truth(seam, N_BOUND), layer = -1, model = -1, injects = -1, unwraps = -1;
    if (method != NULL) {
        layer = truth(method, N_LAYER);
        model = is_none(method, N_MODEL);
        injects = is_none(method, N_INJECT_HEADERS);
        unwraps = is_none(method, N_UNWRAP);
        self->snapshot = get(method, N_SNAPSHOT);
        Py_DECREF(method);
    }
    if (bound < 0 || layer < 0 || model < 0 || injects < 0 || unwraps < 0 || self->snapshot == NULL ||
        (self->site = get(seam, N_SITE)) == NULL || (self->library = get(seam, N_LIBRARY)) == NULL ||
        (self->kind = get(seam, N_KIND)) == NULL || (self->name = get(seam, N_NAME)) == NULL ||
        (self->parameters = get(seam, N_PARAMETERS)) == NULL || (self->plain = get(seam, N_PLAIN)) == NULL)
        return -1;
    if (!PyAnySet_Check(self->plain) || !PyTuple_Check(self->parameters)) {
        PyErr_SetString(PyExc_TypeError, "this is no seam");
        return -1;
    }
    self->bound = (char)bound;
    self->simple = layer == 0 && model == 1;
    self->injects = injects == 0;
    self->unwraps = unwraps == 0;
    return 0;
}

/* Entry(tools, engine, seam, installation) */
static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    if (PyTuple_Size(args) != 4 || !are_tools(PyTuple_GetItem(args, 0)))
        return PyErr_Format(PyExc_TypeError, "Entry takes tools, an engine, a seam and an installation");
    Entry *self = (Entry *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->tools = Py_NewRef(PyTuple_GetItem(args, 0));
    self->engine = Py_NewRef(PyTuple_GetItem(args, 1));
    self->seam = Py_NewRef(PyTuple_GetItem(args, 2));
    self->installation = Py_NewRef(PyTuple_GetItem(args, 3));
    if (read_seam(self) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyMethodDef entry_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))entry_begin, METH_FASTCALL, NULL},
    {"succeed", (PyCFunction)(void (*)(void))entry_succeed, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "Where the calls of one method begin and end."},
    {Py_tp_new, entry_new},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, entry_dealloc},
    {Py_tp_methods, entry_methods},
    {0, NULL},
};

static PyType_Spec entry_spec = {
    .name = "neuronscope._native.Entry",
    .basicsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = entry_slots,
};

int
ns_add_entry(PyObject *module)
{
    static PyObject *type;
    for (int i = 0; i < NAMES_END; i++)
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(NAMES[i])) == NULL)
            return -1;
    new_object = (newfunc)PyType_GetSlot(&PyBaseObject_Type, Py_tp_new);
    if ((both_ids == NULL && (both_ids = PyLong_FromLong(BOTH_IDS)) == NULL) ||
        (one_id == NULL && (one_id = PyLong_FromLong(ONE_ID)) == NULL) ||
        (nothing == NULL && (nothing = PyTuple_New(0)) == NULL) ||
        (type == NULL && (type = PyType_FromSpec(&entry_spec)) == NULL))
        return -1;
    return PyModule_AddObjectRef(module, "Entry", type);
}
