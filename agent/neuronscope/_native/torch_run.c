/* A traced call: the hot half of `Run`, and twin of `PlainRunTurns`. */
#include "turns.h"

PyTypeObject *ns_run_type;

#define FIELDS 19
NS_COLLECTED(NsRun, run, at_in, FIELDS)

static PyObject *
run_apart(NsRun *self, PyObject *Py_UNUSED(nothing))
{
    int truth = ns_apart(self);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

static PyMethodDef methods[] = {
    {"apart", (PyCFunction)run_apart, METH_NOARGS, "Must the thread's state be looked at more closely before a turn?"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    NS_FIELD(NsRun, at_in),    NS_FIELD(NsRun, at_out),   NS_FIELD(NsRun, value),    NS_FIELD(NsRun, inputs),
    NS_FIELD(NsRun, skipped),  NS_FIELD(NsRun, greenlet), NS_FIELD(NsRun, body),     NS_FIELD(NsRun, resume),
    NS_FIELD(NsRun, to_body),  NS_FIELD(NsRun, grad),     NS_FIELD(NsRun, inference), NS_FIELD(NsRun, finished),
    NS_FIELD(NsRun, dynamo),   NS_FIELD(NsRun, stopped),  NS_FIELD(NsRun, closed),   NS_FIELD(NsRun, sites),
    NS_FIELD(NsRun, names),    NS_FIELD(NsRun, present),  NS_FIELD(NsRun, in_grad_mode),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_traverse, run_traverse}, {Py_tp_clear, run_clear}, {Py_tp_dealloc, run_dealloc},
    {Py_tp_methods, methods},       {Py_tp_members, members}, {0, NULL},
};

static PyType_Spec spec = {"neuronscope._native.RunTurns", sizeof(NsRun), 0, NS_KIND, slots};

int
ns_add_turns(PyObject *module)
{
    ns_run_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (ns_run_type == NULL || PyModule_AddObjectRef(module, "RunTurns", (PyObject *)ns_run_type) < 0)
        return -1;
    return ns_add_slots(module) < 0 || ns_add_observers(module) < 0 || ns_add_sites(module) < 0 || ns_visits_ready() < 0 ||
                   ns_add_traces(module) < 0 || ns_add_takes(module) < 0
               ? -1
               : ns_add_ops(module);
}
