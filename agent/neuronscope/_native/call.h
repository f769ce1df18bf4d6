/* A call and its span, as structures: what `engine.invocation` and `engine.span` build on. */
#ifndef NEURONSCOPE_CALL_H
#define NEURONSCOPE_CALL_H

#include "native.h"

/* The attributes of a call, in the order of `CallInPython`. */
enum {
    C_ENGINE, C_SEAM, C_SNAPSHOT, C_START, C_NAME, CALL_GIVEN,
    C_SPAN = CALL_GIVEN, C_CONTEXT, C_TOKEN, C_WATCH, C_ARGUMENTS, C_REPLACEMENT, C_OBSERVING, C_RESULT, C_ERROR,
    C_FAILURE, C_STREAM, C_SEARCHES, C_HTTP, C_HEADERS, C_RESENDS, C_QUICK, CALL_FIELDS
};

/* The attributes of a span, in the order of `SpanInPython`. */
enum {
    S_NAME, S_CONTEXT, S_PARENT, S_KIND, S_LIBRARY, S_START, SPAN_GIVEN,
    S_END = SPAN_GIVEN, S_OWN, S_USER_ATTRIBUTES, S_EVENTS, S_LINKS, S_CALL, S_MODEL_CALL, S_RECORDING, S_FOREIGN,
    S_SHARED, S_INNER, S_MASKED, S_LAYER, S_HOT_NS, S_DROPPED_ATTRIBUTES, S_DROPPED_EVENTS, S_STATUS, SPAN_FIELDS
};

typedef struct {
    PyObject_HEAD
    PyObject *fields[1]; /* as many as its kind has; one is NULL only when somebody deleted it */
} Fields;

extern PyTypeObject *ns_call_type, *ns_span_type;

/* A new object of a subclass of one of the two, its fields as they are at first; NULL with an exception. */
PyObject *ns_new_fields(PyTypeObject *type);

static inline PyObject *
ns_field(PyObject *of, int which)
{
    return ((Fields *)of)->fields[which];
}

/* Put a value that is handed over into a field.  Takes the reference. */
static inline void
ns_put(PyObject *of, int which, PyObject *value)
{
    PyObject *before = ((Fields *)of)->fields[which];
    ((Fields *)of)->fields[which] = value;
    Py_XDECREF(before);
}

/* Now, by the clock of `time.perf_counter_ns`. */
int64_t ns_elapsed(void);

#endif
