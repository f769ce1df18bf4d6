/* Where the calls of one method begin (`entry.c`) and end (`entry_end.c`): the twin of `engine.entry`.
 *
 * They take the way that nearly all calls take, and give every other one to Python: `engine.calls`,
 * `engine.invocation` and `engine.ending` say what has to be done and in what order. */
#ifndef NEURONSCOPE_ENTRY_H
#define NEURONSCOPE_ENTRY_H

#include "call.h"

/* What is the same for all entries, as `engine.entry` lists it. */
enum {
    CURRENT_GET, CURRENT_SET, CURRENT_RESET, DETACH, RECORDING_GET, PERF_NS, CLOCKS, API, WAITING, DISABLED, GUARD,
    LIGHT_SPAN, INVOCATION, SPAN_CONTEXT, SAMPLED, NOT_SAMPLED, NO_STATE, CONTEXT, CURRENT, UNUSUAL, TOOLS_END
};
/* What of the engine the way needs, as `Calls.quick` lists it. */
enum { PIPELINE, POLICY, BEGAN, ENDED, RECEIVERS, QUICK_END };

#define NS_ENTRY_NAMES(NAME)                                                                                           \
    NAME(active) NAME(everything) NAME(begin) NAME(open_kept) NAME(quick) NAME(ours) NAME(_span_processors)            \
    NAME(_TRACER_PROVIDER) NAME(_bits) NAME(keeps_texts) NAME(embedder) NAME(on_embedder) NAME(called) NAME(method)    \
    NAME(endpoint) NAME(peer) NAME(library) NAME(kind) NAME(headers) NAME(elapsed_ns) NAME(wall_ns) NAME(fault)        \
    NAME(succeed) NAME(leave) NAME(hand_over) NAME(replacement) NAME(bound) NAME(parameters) NAME(plain) NAME(site)    \
    NAME(name) NAME(snapshot) NAME(layer) NAME(model) NAME(inject_headers) NAME(unwrap) NAME(stream) NAME(body)        \
    NAME(covers) NAME(content) NAME(size) NAME(_text_bytes) NAME(_unweighed) NAME(_worker) NAME(put)
#define NS_AS_INDEX(name) N_##name,
enum { NS_ENTRY_NAMES(NS_AS_INDEX) NAMES_END };

extern PyObject *ns_entry_names[NAMES_END];

typedef struct {
    PyObject_HEAD
    PyObject *tools, *engine, *seam, *installation;
    PyObject *site, *snapshot, *library, *kind, *name, *parameters, *plain, *unwrap; /* the seam's */
    const void *made; /* what the last `begin` returned: to be compared, never to be looked into */
    char bound, simple, injects, always_plain;
} Entry;

/* Make the names once; -1 with an exception. */
int ns_entry_ready(void);

#define TOOL(self, which) PyTuple_GetItem((self)->tools, (which))
#define GET(of, name) PyObject_GetAttr((of), ns_entry_names[N_##name])

/* What the usual way needs to know; all references are held. */
typedef struct {
    int64_t started;
    int follows; /* children are sampled if their parents are */
    PyObject *flags, *quick, *ids, *current, *around, *arguments, *snapshot, *name;
} Begun;

/* A `SpanContext`, which is a tuple: the places of some of its fields, and how many it has. */
enum { FLAGS = 3, STATE = 4, VALID = 5, IDENTITY_SIZE = 6 };

/* Open a call in the usual way; the budget is told, and its context is the current one. */
PyObject *ns_open_usual(Entry *self, Begun *begun); /* entry_open.c */
int ns_open_ready(void);

/* begin and succeed, as methods. */
PyObject *ns_entry_begin(Entry *self, Args given, Py_ssize_t n);
PyObject *ns_entry_succeed(Entry *self, Args given, Py_ssize_t n);
PyObject *ns_entry_made(Entry *self, Args given, Py_ssize_t n);

/* The reading of a clock that tests may have set; `name` is its name's index. */
PyObject *ns_read_clock(Entry *self, int name);

/* A fault of ours goes to the guard, which contains it: then it returns `returned`; NULL when the guard raises it,
 * under our own tests. */
PyObject *ns_fault(Entry *self, PyObject *returned);

#endif
