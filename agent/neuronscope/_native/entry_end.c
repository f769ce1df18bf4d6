/* Where the calls of one method end. */
#include "entry.h"

enum { UNTIMED_NS = 1000 }; /* as `engine.ending` has it */

/* Is the end of this call the usual one?  0: Python decides. */
static int
ends_usually(Entry *self, PyObject *call, PyObject *result)
{
    if ((PyObject *)Py_TYPE(call) != TOOL(self, INVOCATION))
        return 0;
    PyObject *quick = ns_field(call, C_QUICK), *token = ns_field(call, C_TOKEN), *span = ns_field(call, C_SPAN);
    if (quick == NULL || quick == Py_None || ns_field(call, C_WATCH) != Py_None || token == NULL || token == Py_None ||
        span == NULL || (PyObject *)Py_TYPE(span) != TOOL(self, LIGHT_SPAN) || ns_field(call, C_HTTP) == NULL)
        return 0;
    if (!self->always_plain) {
        int is = PySet_Contains(self->plain, (PyObject *)Py_TYPE(result));
        if (is <= 0)
            return is;
    }
    PyObject *now = GET(self->engine, quick), *current;
    Py_XDECREF(now);
    if (now != quick) /* another engine since: the process was forked, or the platform made anew */
        return now == NULL ? -1 : 0;
    current = PyObject_CallNoArgs(TOOL(self, CURRENT_GET));
    Py_XDECREF(current);
    return current == NULL ? -1 : current == ns_field(call, C_CONTEXT);
}

/* Give the caller's context back. */
static int
give_back(Entry *self, PyObject *call)
{
    PyObject *token = Py_NewRef(ns_field(call, C_TOKEN));
    ns_put(call, C_TOKEN, Py_NewRef(Py_None));
    PyObject *done = PyObject_CallFunctionObjArgs(TOOL(self, CURRENT_RESET), token, NULL);
    if (done == NULL) { /* the context variables here are a copy of those in which it was set */
        PyErr_Clear();
        done = PyObject_CallFunctionObjArgs(TOOL(self, DETACH), token, NULL);
    }
    Py_DECREF(token);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Keep the headers of the response, and let go of it. */
static int
keep_headers(PyObject *call)
{
    PyObject *http = ns_field(call, C_HTTP);
    if (http == NULL || http == Py_None)
        return 0;
    Py_INCREF(http);
    ns_put(call, C_HTTP, Py_NewRef(Py_None));
    PyObject *headers = GET(http, headers);
    Py_DECREF(http);
    if (headers == NULL)
        return -1;
    ns_put(call, C_HEADERS, headers);
    return 0;
}

/* Keep the result, for the adapter's reader. */
static int
keep_result(Entry *self, PyObject *call, PyObject *result)
{
    PyObject *kept =
        self->unwrap == NULL ? Py_NewRef(result) : PyObject_CallFunctionObjArgs(self->unwrap, result, NULL);
    if (kept == NULL)
        return -1;
    ns_put(call, C_RESULT, kept);
    return 0;
}

/* Is there an attribute, and is it None or false?  -1 with an exception.  Takes the reference. */
static int
is_not(PyObject *value)
{
    int is = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return is < 0 ? -1 : !is;
}

/* Does the call hold what every call does, about?  0: Python weighs it. */
static int
is_light(Entry *self, PyObject *quick, PyObject *call)
{
    PyObject *policy = PyTuple_GetItem(quick, POLICY), *result = ns_field(call, C_RESULT), *endpoint, *left;
    if (result == NULL || PyBytes_Check(result) || ns_field(call, C_SNAPSHOT) == NULL)
        return 0;
    int is = is_not(GET(policy, content));
    if (is <= 0)
        return is;
    if ((endpoint = GET(ns_field(call, C_SNAPSHOT), endpoint)) == NULL)
        return -1;
    is = is_not(GET(endpoint, size));
    Py_DECREF(endpoint);
    if (is <= 0)
        return is;
    if ((is = is_not(GET(policy, keeps_texts))) != 0)
        return is;
    if ((is = is_not(GET(self->engine, _text_bytes))) <= 0)
        return is;
    if ((left = GET(self->engine, _unweighed)) == NULL)
        return -1;
    long calls = PyLong_AsLong(left);
    Py_DECREF(left);
    if (calls <= 0)
        return calls == -1 && PyErr_Occurred() ? -1 : 0;
    if ((left = PyLong_FromLong(calls - 1)) == NULL)
        return -1;
    is = PyObject_SetAttr(self->engine, ns_entry_names[N__unweighed], left);
    Py_DECREF(left);
    return is < 0 ? -1 : 1;
}

/* Queue a span that has ended, as `Endings.hand_over` does. */
static int
hand_over(Entry *self, PyObject *quick, PyObject *call, PyObject *span)
{
    int is = is_light(self, quick, call);
    PyObject *worker = is < 0 ? NULL : GET(self->engine, _worker), *done;
    if (worker == NULL)
        return -1;
    done = is && worker != Py_None
               ? PyObject_CallMethodObjArgs(worker, ns_entry_names[N_put], span, NULL)
               : PyObject_CallMethodObjArgs(self->engine, ns_entry_names[N_hand_over], span, NULL);
    Py_DECREF(worker);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* End a span of ours and hand it to the worker, as `Endings.finish` does. */
static int
finish(Entry *self, PyObject *quick, PyObject *call, PyObject *span)
{
    if (ns_field(span, S_END) != Py_None)
        return 0;
    int64_t started = ns_elapsed();
    PyObject *ended = ns_read_clock(self, N_wall_ns), *when, *told;
    if (ended == NULL)
        return -1;
    ns_put(span, S_END, ended);
    if ((when = PyLong_FromLongLong(started)) == NULL)
        return -1;
    told = PyObject_CallFunctionObjArgs(PyTuple_GetItem(quick, ENDED), when, NULL);
    Py_DECREF(when);
    if (told == NULL)
        return -1;
    Py_DECREF(told);
    PyObject *before = ns_field(span, S_HOT_NS);
    long long spent = before == NULL ? 0 : PyLong_AsLongLong(before);
    if (spent == -1 && PyErr_Occurred())
        return -1;
    PyObject *took = PyLong_FromLongLong(spent + ns_elapsed() - started + UNTIMED_NS);
    if (took == NULL)
        return -1;
    ns_put(span, S_HOT_NS, took);
    return hand_over(self, quick, call, span);
}

/* End the span, once, and let go of it, also by the context. */
static int
end(Entry *self, PyObject *call)
{
    PyObject *span = ns_field(call, C_SPAN), *quick = ns_field(call, C_QUICK);
    if (span == NULL || span == Py_None)
        return 0;
    Py_INCREF(span);
    Py_INCREF(quick);
    ns_put(call, C_SPAN, Py_NewRef(Py_None));
    ns_put(call, C_CONTEXT, Py_NewRef(Py_None));
    int done = finish(self, quick, call, span);
    Py_DECREF(quick);
    Py_DECREF(span);
    return done;
}

static int
succeed_usually(Entry *self, PyObject *call, PyObject *result)
{
    PyObject *kind, *error, *where;
    if (give_back(self, call) == 0 && keep_headers(call) == 0 && keep_result(self, call, result) == 0)
        return end(self, call);
    PyErr_Fetch(&kind, &error, &where); /* a fault of ours goes to the guard; the span ends all the same */
    if (end(self, call) < 0)
        PyErr_Clear();
    PyErr_Restore(kind, error, where);
    return -1;
}

/* Whether the service gets the result itself. */
static PyObject *
gets_result(PyObject *call)
{
    PyObject *replacement = GET(call, replacement);
    Py_XDECREF(replacement);
    return replacement == NULL ? NULL : PyBool_FromLong(replacement == Py_None);
}

static PyObject *
succeed(Entry *self, PyObject *call, PyObject *result)
{
    int is = ends_usually(self, call, result);
    if (is > 0)
        return succeed_usually(self, call, result) < 0 ? NULL : Py_NewRef(Py_True);
    PyObject *done = is < 0 ? NULL : PyObject_CallMethodObjArgs(call, ns_entry_names[N_succeed], result, NULL);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return gets_result(call);
}

/* succeed(call, result) -> whether the service gets the result itself: what it gets instead is the call's
 * `replacement`.  Guarded. */
PyObject *
ns_entry_succeed(Entry *self, Args given, Py_ssize_t n)
{
    if (!ns_takes("succeed", n, 2))
        return NULL;
    if (self->tools == NULL)
        return PyErr_Format(PyExc_RuntimeError, "this entry is gone");
    PyObject *done = succeed(self, given[0], given[1]);
    if (done != NULL)
        return done;
    if ((done = ns_fault(self, Py_None)) == NULL)
        return NULL;
    Py_DECREF(done);
    done = PyObject_CallMethodObjArgs(given[0], ns_entry_names[N_leave], NULL);
    if (done == NULL && (done = ns_fault(self, Py_None)) == NULL)
        return NULL;
    Py_DECREF(done);
    return gets_result(given[0]);
}
