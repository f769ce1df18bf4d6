/* Asking a trace for a site: twin of `PlainTraceTurns`. */
#include "turns.h"

typedef struct {
    PyObject_HEAD
    PyObject *run;
} Trace;

static PyObject *item_name;

NS_COLLECTED(Trace, trace, run, 1)

/* Paths of the model's children that have been asked for; NULL: the trace has no run. */
static PyObject *
names(Trace *self)
{
    return self->run == NULL || !PyObject_TypeCheck(self->run, ns_run_type) ? NULL : ((NsRun *)self->run)->names;
}

static PyObject *
get_item(Trace *self, PyObject *key)
{
    PyObject *found = PyUnicode_Check(key)      ? ns_found(self->run, key)
                      : PyLong_CheckExact(key) ? ns_known(self->run, names(self), key)
                                               : NULL;
    if (found != NULL || PyErr_Occurred())
        return found;
    return PyObject_CallMethodObjArgs((PyObject *)self, item_name, key, NULL);
}

static PyObject *
get_attribute(Trace *self, PyObject *name)
{
    return ns_attribute((PyObject *)self, self->run, names(self), name);
}

static PyMemberDef members[] = {{"_run", T_OBJECT_EX, offsetof(Trace, run), 0, NULL}, {NULL, 0, 0, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_traverse, trace_traverse}, {Py_tp_clear, trace_clear},     {Py_tp_dealloc, trace_dealloc},
    {Py_tp_members, members},         {Py_mp_subscript, get_item},    {Py_tp_getattro, get_attribute},
    {0, NULL},
};

static PyType_Spec spec = {"neuronscope._native.TraceTurns", sizeof(Trace), 0, NS_KIND, slots};

int
ns_add_traces(PyObject *module)
{
    if ((item_name = PyUnicode_InternFromString("_item")) == NULL)
        return -1;
    PyObject *type = PyType_FromSpec(&spec);
    int done = type == NULL ? -1 : PyModule_AddObjectRef(module, "TraceTurns", type);
    Py_XDECREF(type);
    return done;
}
