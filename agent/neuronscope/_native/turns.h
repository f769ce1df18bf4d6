/* What a trace is made of, compiled: its run, its sites, and the slots through which modules' calls come. */
#ifndef NEURONSCOPE_TURNS_H
#define NEURONSCOPE_TURNS_H

#include "torch.h"
#include <structmember.h>

/* A traced call.  `PlainRunTurns` says what is what; all of it are objects. */
typedef struct {
    PyObject_HEAD
    PyObject *at_in, *at_out, *value, *inputs, *skipped;  /* where the model waits, and with what */
    PyObject *greenlet, *body, *resume, *to_body;         /* the two sides, and the ways to them */
    PyObject *grad, *inference, *finished, *dynamo, *stopped, *closed, *in_grad_mode;
    PyObject *sites, *names, *present;
} NsRun;

/* A module in a run. */
typedef struct {
    PyObject_HEAD
    PyObject *run, *call, *slot, *observers, *path, *module, *place, *tree, *names, *ops_seen, *ops_resting;
    char want_in, want_out, keep_in, here, direct;
    Py_ssize_t visits;
} NsSite;

/* What stands for a module's `_call_impl`. */
typedef struct {
    PyObject_HEAD
    PyObject *visitor, *ready, *entries, *entry, *identity, *below, *kind, *module;
    PyObject *observers, *visitors, *edits, *taps;
    Py_ssize_t size;
} NsSlot;

/* Who is told of a module's outputs. */
typedef struct {
    PyObject_HEAD
    PyObject *callback, *site, *slot;
    char active;
} NsObserver;

extern PyTypeObject *ns_run_type, *ns_site_type, *ns_slot_type, *ns_observer_type;

/* Each file's types, added to the module; -1 with an exception. */
int ns_add_slots(PyObject *module);
int ns_add_observers(PyObject *module);
int ns_add_sites(PyObject *module);
int ns_visits_ready(void);
int ns_add_traces(PyObject *module);
int ns_add_takes(PyObject *module);
int ns_add_ops(PyObject *module);

/* torch_state.c */
PyObject *ns_current(void);                  /* the greenlet that runs, borrowed: it lives */
PyObject *ns_set_dynamo(PyObject *compiler); /* what was set before */
int ns_apart(NsRun *run);                    /* 1: the two sides' thread states may differ */

/* torch_slots.c */
int ns_lock(void);   /* the slots' lock, which Python's side takes as well */
int ns_unlock(void); /* keeps an exception that is under way */
PyObject *ns_found(PyObject *run, PyObject *path); /* its site, watched; NULL without an error: Python's to find */

/* torch_resting.c; under the lock */
PyObject *ns_come_back(PyObject *self, PyObject *module); /* its slot, or None */
int ns_rest_slot(NsSlot *slot);                           /* whether it now rests */

/* torch_sites.c */
NsRun *ns_run_of(NsSite *site);
int ns_pause(NsRun *run); /* the model's side: the body's turn */
/* The site that `names` says a key is, if it has been asked for before; NULL without an error: Python's to find. */
PyObject *ns_known(PyObject *run, PyObject *names, PyObject *key);
/* An attribute of a site or a trace: such a site, what the object has itself, or what `_missing` gives. */
PyObject *ns_attribute(PyObject *self, PyObject *run, PyObject *names, PyObject *name);

/* torch_visits.c */
PyObject *ns_visit(NsSite *site, PyObject *args, PyObject *kwargs);
/* The module's call as it is without us: `around`, or no more than its `forward` (`direct`). */
PyObject *ns_call_module(NsSite *site, int direct, PyObject *around, PyObject *args, PyObject *kwargs);

/* torch_takes.c */
int ns_take(PyObject *observer, NsSite *site, PyObject *output); /* 1: taken; 0: Python's to do */

/* torch_ops.c */
PyObject *ns_ops_of(NsSite *site); /* those of an earlier run, watched again; NULL without an error: Python's to make */
int ns_rest_ops(NsSite *site);     /* whether they are kept for the next run; else they must be ended */

/* torch_tensors.c */
int ns_is_exact(PyObject *value); /* a `Tensor` or a `Parameter`, of no other class */

/* Fields of an object, of which all are objects, from the first on. */
static inline int
ns_visit_fields(PyObject *self, PyObject **fields, Py_ssize_t n, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; i < n; i++)
        Py_VISIT(fields[i]);
    return 0;
}

static inline int
ns_clear_fields(PyObject **fields, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        Py_CLEAR(fields[i]);
    return 0;
}

/* traverse, clear and dealloc of a type whose objects are `count` fields from `first` on. */
#define NS_COLLECTED(kind, name, first, count)                                       \
    static int name##_traverse(kind *self, visitproc visit, void *arg)               \
    {                                                                                \
        return ns_visit_fields((PyObject *)self, &self->first, count, visit, arg);   \
    }                                                                                \
    static int name##_clear(kind *self)                                              \
    {                                                                                \
        return ns_clear_fields(&self->first, count);                                 \
    }                                                                                \
    static void name##_dealloc(kind *self)                                           \
    {                                                                                \
        PyTypeObject *type = Py_TYPE((PyObject *)self);                              \
        PyObject_GC_UnTrack(self);                                                   \
        name##_clear(self);                                                          \
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);                          \
        Py_DECREF((PyObject *)type);                                                 \
    }

#define NS_FIELD(kind, name) {#name, T_OBJECT_EX, offsetof(kind, name), 0, NULL}
#define NS_FLAG(kind, name) {#name, T_BOOL, offsetof(kind, name), 0, NULL}
#define NS_NUMBER(kind, name) {#name, T_PYSSIZET, offsetof(kind, name), 0, NULL}
#define NS_KIND (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC)

/* Put a value into a field; takes the reference. */
static inline void
ns_put(PyObject **field, PyObject *value)
{
    PyObject *before = *field;
    *field = value;
    Py_XDECREF(before);
}

/* Call a method that returns nothing of interest. */
static inline int
ns_do(PyObject *object, PyObject *method)
{
    PyObject *done = PyObject_CallMethodObjArgs(object, method, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

#endif
