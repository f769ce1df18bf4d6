/* What is opened where a call begins: its identity, its span, its context, and the call itself. */
#include "entry.h"

enum { BOTH_IDS = 192, ONE_ID = 64 };

static PyObject *both_ids, *one_id;

int
ns_open_ready(void)
{
    return (both_ids == NULL && (both_ids = PyLong_FromLong(BOTH_IDS)) == NULL) ||
                   (one_id == NULL && (one_id = PyLong_FromLong(ONE_ID)) == NULL)
               ? -1
               : 0;
}

/* `SpanContext(trace, span, False, flags, state)` of valid ids, whose references it takes. */
static PyObject *
identity(Entry *self, PyObject *trace, PyObject *span, PyObject *flags, PyObject *state)
{
    PyTypeObject *type = (PyTypeObject *)TOOL(self, SPAN_CONTEXT);
    PyObject *made = trace == NULL || span == NULL
                         ? NULL
                         : ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, IDENTITY_SIZE);
    if (made == NULL) {
        Py_XDECREF(trace);
        Py_XDECREF(span);
        return NULL;
    }
    PyObject *fields[] = {trace, span, Py_NewRef(Py_False), Py_NewRef(flags), Py_NewRef(state), Py_NewRef(Py_True)};
    int done = 0;
    for (Py_ssize_t i = 0; i < IDENTITY_SIZE; i++) /* takes each, also when it fails */
        done |= PyTuple_SetItem(made, i, fields[i]);
    if (done != 0)
        Py_CLEAR(made);
    else
        PyObject_GC_UnTrack(made); /* numbers and a state of texts are in no cycle: nothing for the collector */
    return made;
}

/* The identity of a child of `around`; takes the reference of its id. */
static PyObject *
child_identity(Entry *self, Begun *begun, PyObject *id)
{
    PyObject *around = begun->around;
    int some = PyObject_IsTrue(id);
    if (some <= 0) {
        Py_DECREF(id);
        if (some < 0 || (id = PyLong_FromLong(1)) == NULL)
            return NULL;
    }
    return identity(self, Py_NewRef(PyTuple_GetItem(around, 0)), id, begun->flags, PyTuple_GetItem(around, STATE));
}

/* A new identity: a child of `around`, or the root of a trace. */
static PyObject *
new_identity(Entry *self, Begun *begun)
{
    PyObject *bits = GET(begun->ids, _bits), *drawn, *both, *made;
    if (bits == NULL)
        return NULL;
    drawn = PyObject_CallFunctionObjArgs(bits, begun->around == NULL ? both_ids : one_id, NULL);
    Py_DECREF(bits);
    if (drawn == NULL)
        return NULL;
    if (begun->around != NULL)
        return child_identity(self, begun, drawn);
    both = ns_split_ids(NULL, drawn);
    Py_DECREF(drawn);
    if (both == NULL)
        return NULL;
    made = identity(self, Py_NewRef(PyTuple_GetItem(both, 0)), Py_NewRef(PyTuple_GetItem(both, 1)),
                    begun->flags, TOOL(self, NO_STATE));
    Py_DECREF(both);
    return made;
}

static PyObject *
new_span(Entry *self, Begun *begun, PyObject *call)
{
    PyObject *recording = PyObject_CallNoArgs(TOOL(self, RECORDING_GET));
    PyObject *made = recording == NULL ? NULL : new_identity(self, begun);
    PyObject *start = made == NULL ? NULL : ns_read_clock(self, N_wall_ns);
    PyObject *span = start == NULL ? NULL : ns_new_fields((PyTypeObject *)TOOL(self, LIGHT_SPAN));
    if (span == NULL) {
        Py_XDECREF(recording);
        Py_XDECREF(made);
        Py_XDECREF(start);
        return NULL;
    }
    ns_put(span, S_CONTEXT, made);
    ns_put(span, S_START, start);
    ns_put(span, S_RECORDING, recording);
    ns_put(span, S_KIND, Py_NewRef(self->kind));
    ns_put(span, S_LIBRARY, Py_NewRef(self->library));
    ns_put(span, S_CALL, Py_NewRef(call));
    if (begun->around != NULL)
        ns_put(span, S_PARENT, Py_NewRef(begun->around));
    return span;
}

/* The context that the call is made in: the span is current. */
static PyObject *
context_of(Entry *self, PyObject *current, PyObject *span)
{
    PyObject *context = PyObject_CallNoArgs(TOOL(self, CONTEXT));
    if (context == NULL)
        return NULL;
    if (!PyDict_Check(context)) {
        Py_DECREF(context);
        return PyErr_Format(PyExc_TypeError, "contexts are dictionaries");
    }
    if ((PyDict_Size(current) != 0 && PyDict_Update(context, current) < 0) ||
        PyDict_SetItem(context, TOOL(self, CURRENT), span) < 0)
        Py_CLEAR(context);
    return context;
}

/* --- the call ---------------------------------------------------------------------------------------------- */

static PyObject *
new_call(Entry *self, Begun *begun)
{
    PyObject *elapsed = PyDict_GetItemWithError(TOOL(self, CLOCKS), ns_entry_names[N_elapsed_ns]);
    PyObject *start =
        elapsed == TOOL(self, PERF_NS) ? PyLong_FromLongLong(begun->started) : ns_read_clock(self, N_elapsed_ns);
    PyObject *call = start == NULL ? NULL : ns_new_fields((PyTypeObject *)TOOL(self, INVOCATION));
    if (call == NULL) {
        Py_XDECREF(start);
        return NULL;
    }
    ns_put(call, C_START, start);
    ns_put(call, C_ENGINE, Py_NewRef(self->engine));
    ns_put(call, C_SEAM, Py_NewRef(self->seam));
    ns_put(call, C_SNAPSHOT, Py_NewRef(begun->snapshot));
    ns_put(call, C_NAME, Py_NewRef(begun->name));
    ns_put(call, C_QUICK, Py_NewRef(begun->quick));
    return call;
}

/* Tell the budget, and make the call's context the current one; last: what fails before leaves nothing current. */
static int
enter(Entry *self, Begun *begun, PyObject *call, PyObject *span, PyObject *context)
{
    int64_t elapsed = ns_elapsed();
    PyObject *now = PyLong_FromLongLong(elapsed), *took = PyLong_FromLongLong(elapsed - begun->started);
    PyObject *told = NULL, *token = NULL;
    if (now != NULL && took != NULL)
        told = PyObject_CallFunctionObjArgs(PyTuple_GetItem(begun->quick, BEGAN), now, NULL);
    Py_XDECREF(now);
    if (told == NULL) {
        Py_XDECREF(took);
        return -1;
    }
    Py_DECREF(told);
    ns_put(span, S_HOT_NS, took);
    token = PyObject_CallFunctionObjArgs(TOOL(self, CURRENT_SET), context, NULL);
    if (token == NULL)
        return -1;
    ns_put(call, C_TOKEN, token);
    return 0;
}

PyObject *
ns_open_usual(Entry *self, Begun *begun)
{
    PyObject *call = new_call(self, begun);
    if (call == NULL)
        return NULL;
    PyObject *span = new_span(self, begun, call);
    PyObject *context = span == NULL ? NULL : context_of(self, begun->current, span);
    if (context != NULL && enter(self, begun, call, span, context) == 0) {
        ns_put(call, C_SPAN, span);
        ns_put(call, C_CONTEXT, context);
        return call;
    }
    if (span != NULL)
        ns_put(span, S_CALL, Py_NewRef(Py_None));
    Py_XDECREF(context);
    Py_XDECREF(span);
    Py_DECREF(call);
    return NULL;
}
