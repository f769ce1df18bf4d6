/* What the files of `neuronscope._native` share.  One file a topic; `module.c` lists their functions.
 *
 * Rules: CPython's limited API only (one wheel serves every Python from 3.11); every function has a twin in
 * Python that returns the same, and leaves what is unusual to it; nothing is remembered between calls but what
 * `ns_*_ready` makes once.  The GIL is held throughout: everything here touches Python objects.
 */
#ifndef NEURONSCOPE_NATIVE_H
#define NEURONSCOPE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>

typedef PyObject *const *Args;

/* Functions of the module, by file. */
PyObject *ns_encode_span(PyObject *module, Args args, Py_ssize_t n);        /* spans.c */
PyObject *ns_encode_spans(PyObject *module, Args args, Py_ssize_t n);       /* runs.c */
PyObject *ns_encode_attributes(PyObject *module, Args args, Py_ssize_t n);  /* pairs.c */
PyObject *ns_bill(PyObject *module, Args args, Py_ssize_t n);               /* bills.c */
PyObject *ns_mask(PyObject *module, Args args, Py_ssize_t n);               /* policy.c */
PyObject *ns_attributes_bytes(PyObject *module, PyObject *attributes);      /* policy.c */
PyObject *ns_make_held_bytes(PyObject *module, PyObject *twin);             /* sizes.c */
PyObject *ns_make_set_attributes(PyObject *module, PyObject *tools);        /* filling.c */
PyObject *ns_add_fields(PyObject *module, Args args, Py_ssize_t n);         /* facts.c */
PyObject *ns_text_of(PyObject *module, PyObject *value);                   /* facts.c */
PyObject *ns_number_of(PyObject *module, PyObject *value);
PyObject *ns_count_of(PyObject *module, PyObject *value);
PyObject *ns_items_of(PyObject *module, PyObject *value);
PyObject *ns_make_fields(PyObject *module, PyObject *twin);
PyObject *ns_subset(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_make_pick(PyObject *module, PyObject *twin);                   /* tables.c */
PyObject *ns_make_teller(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_fill(PyObject *module, Args args, Py_ssize_t n);               /* rows.c */
PyObject *ns_fill_known(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_arguments(PyObject *module, Args args, Py_ssize_t n);          /* calls.c */
PyObject *ns_with_item(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_split_ids(PyObject *module, PyObject *bits);
PyObject *ns_make_note(PyObject *module, PyObject *tools);                  /* entry_note.c */
PyObject *ns_make_snapshot(PyObject *module, PyObject *tools);              /* requests.c */
PyObject *ns_bind_state(PyObject *module, Args args, Py_ssize_t n);         /* torch_state.c */
PyObject *ns_bind_direct(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_bind_slots(PyObject *module, Args args, Py_ssize_t n);         /* torch_slots.c */
PyObject *ns_leave(PyObject *module, PyObject *sites);
PyObject *ns_release(PyObject *module, PyObject *sites);
PyObject *ns_bind_resting(PyObject *module, Args args, Py_ssize_t n);       /* torch_resting.c */
PyObject *ns_come_back(PyObject *self, PyObject *module);
PyObject *ns_rest(PyObject *self, PyObject *slot);
PyObject *ns_bind_watching(PyObject *module, Args args, Py_ssize_t n);      /* torch_watching.c */
PyObject *ns_watch(PyObject *self, Args args, Py_ssize_t n);
PyObject *ns_unwatch(PyObject *self, PyObject *observer);
PyObject *ns_bind_calls(PyObject *module, Args args, Py_ssize_t n);         /* torch_visits.c */
PyObject *ns_bind_ops(PyObject *module, Args args, Py_ssize_t n);           /* torch_ops.c */
PyObject *ns_bind_layout(PyObject *module, PyObject *offsets);                /* torch_layout.c */
PyObject *ns_laid_out(PyObject *module, PyObject *tensor);
PyObject *ns_bind_tensors(PyObject *module, Args args, Py_ssize_t n);       /* torch_tensors.c */
PyObject *ns_describe(PyObject *module, PyObject *tensor);
PyObject *ns_summarize(PyObject *module, PyObject *tensor);
PyObject *ns_tell(PyObject *module, Args args, Py_ssize_t n);                /* torch_telling.c */
PyObject *ns_notifying(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_bind_notes(PyObject *module, Args args, Py_ssize_t n);         /* torch_notes.c */
PyObject *ns_notes_waiting(PyObject *module, Args args, Py_ssize_t n);
PyObject *ns_take_notes(PyObject *module, Args args, Py_ssize_t n);

/* A mapping of a parsed object's fields; `twin` is Python's way to it.  facts.c */
PyObject *ns_fields(PyObject *twin, PyObject *value);

/* Count a value in a series: 1; 0 if that is none; -1 with an exception.  series.c */
int ns_add_to_series(PyObject *series, PyObject *value, PyObject *span, PyObject *now);

/* Make what a file needs once; -1 with an exception. */
int ns_spans_ready(void);
int ns_runs_ready(void);
int ns_facts_ready(void);
int ns_requests_ready(void);
int ns_filling_ready(void);
int ns_tensors_ready(void);

/* Add a file's types to the module; -1 with an exception. */
int ns_add_series(PyObject *module); /* series.c */
int ns_add_chunks(PyObject *module); /* chunks.c */
int ns_add_turns(PyObject *module);  /* torch_run.c */
int ns_add_notes(PyObject *module);  /* torch_permits.c */
int ns_add_call(PyObject *module);   /* call.c */
int ns_add_entry(PyObject *module);  /* entry_type.c */

/* The arguments of a call by name; the `first` ones of `given` are left out, keywords win. */
PyObject *ns_named(PyObject *names, Py_ssize_t first, PyObject *given, PyObject *kwargs); /* calls.c */

/* Whether a call got as many arguments as it needs; 0 with an exception. */
static inline int
ns_takes(const char *name, Py_ssize_t given, Py_ssize_t wanted)
{
    if (given == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

/* Intern those names that are not yet; 0, or -1 with an exception. */
static inline int
ns_intern(PyObject **names, const char *const *texts, int count)
{
    for (int i = 0; i < count; i++)
        if (names[i] == NULL && (names[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return -1;
    return 0;
}

#endif
