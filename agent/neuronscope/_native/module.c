/* `neuronscope._native`: what the engine does for every span, compiled (docs/decisions/0011). */
#include "native.h"

/* What it was compiled from; `hatch_build.py` defines it. */
#ifndef NS_DIGEST
#define NS_DIGEST ""
#endif

#define FAST(name, function) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, NULL}
#define ONE(name, function) {name, (function), METH_O, NULL}

static PyMethodDef functions[] = {
    /* OTLP */
    FAST("encode_span", ns_encode_span),
    FAST("encode_spans", ns_encode_spans),
    FAST("encode_attributes", ns_encode_attributes),
    /* attributes */
    FAST("bill", ns_bill),
    FAST("mask", ns_mask),
    ONE("attributes_bytes", ns_attributes_bytes),
    ONE("make_set_attributes", ns_make_set_attributes),
    FAST("add_fields", ns_add_fields),
    /* readings */
    ONE("text", ns_text_of),
    ONE("number", ns_number_of),
    ONE("count", ns_count_of),
    ONE("items", ns_items_of),
    ONE("make_fields", ns_make_fields),
    ONE("make_held_bytes", ns_make_held_bytes),
    ONE("make_pick", ns_make_pick),
    FAST("make_teller", ns_make_teller),
    FAST("subset", ns_subset),
    /* metrics */
    FAST("fill", ns_fill),
    FAST("fill_known", ns_fill_known),
    /* the hot path */
    FAST("arguments", ns_arguments),
    FAST("with_item", ns_with_item),
    ONE("split_ids", ns_split_ids),
    ONE("make_note", ns_make_note),
    ONE("make_snapshot", ns_make_snapshot),
    /* inside a torch model */
    FAST("bind_state", ns_bind_state),
    FAST("bind_direct", ns_bind_direct),
    FAST("bind_slots", ns_bind_slots),
    FAST("bind_calls", ns_bind_calls),
    FAST("bind_ops", ns_bind_ops),
    ONE("leave", ns_leave),
    ONE("release", ns_release),
    FAST("bind_resting", ns_bind_resting),
    ONE("come_back", ns_come_back),
    ONE("rest", ns_rest),
    FAST("bind_watching", ns_bind_watching),
    FAST("watch", ns_watch),
    ONE("unwatch", ns_unwatch),
    FAST("bind_tensors", ns_bind_tensors),
    ONE("bind_layout", ns_bind_layout),
    ONE("laid_out", ns_laid_out),
    ONE("describe", ns_describe),
    ONE("summarize", ns_summarize),
    FAST("tell", ns_tell),
    FAST("notifying", ns_notifying),
    FAST("bind_notes", ns_bind_notes),
    FAST("notes_waiting", ns_notes_waiting),
    FAST("take_notes", ns_take_notes),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "neuronscope._native",
    .m_doc = "Compiled twins of functions that run for every span.",
    .m_size = -1, /* one for the process */
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    if (ns_spans_ready() < 0 || ns_runs_ready() < 0 || ns_facts_ready() < 0 || ns_requests_ready() < 0 ||
        ns_filling_ready() < 0 || ns_tensors_ready() < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL &&
        (PyModule_AddStringConstant(module, "DIGEST", NS_DIGEST) < 0 || ns_add_series(module) < 0 || ns_add_chunks(module) < 0 ||
         ns_add_turns(module) < 0 || ns_add_notes(module) < 0 || ns_add_call(module) < 0 ||
         ns_add_entry(module) < 0))
        Py_CLEAR(module);
    return module;
}
