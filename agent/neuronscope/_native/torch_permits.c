/* Permits to note runs of layers: the types.  What they are for: torch_notes.c */
#include "notes.h"
#include <structmember.h>

PyTypeObject *ns_permit_type, *ns_holder_type;
static PyTypeObject *allowance_type;

static void
release(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

static PyMemberDef allowance_members[] = {
    {"left", T_DOUBLE, offsetof(Allowance, left), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot allowance_slots[] = {
    {Py_tp_doc, "What a budget has advanced to captures that are noted: nanoseconds."},
    {Py_tp_dealloc, release},
    {Py_tp_members, allowance_members},
    {0, NULL},
};
static PyType_Spec allowance_spec = {
    .name = "neuronscope._native.Allowance",
    .basicsize = sizeof(Allowance),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = allowance_slots,
};

static PyObject *
permit_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *told, *context, *recording, *costs, *allowance;
    Py_ssize_t unclocked;
    if (!PyArg_ParseTuple(args, "OOOO!O!n", &told, &context, &recording, &PyList_Type, &costs, allowance_type,
                          &allowance, &unclocked))
        return NULL;
    Permit *self = (Permit *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->told = Py_NewRef(told);
    self->context = Py_NewRef(context);
    self->recording = Py_NewRef(recording);
    self->costs = Py_NewRef(costs);
    self->allowance = Py_NewRef(allowance);
    self->unclocked = unclocked;
    return (PyObject *)self;
}

static int
permit_traverse(Permit *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->told);
    Py_VISIT(self->context);
    Py_VISIT(self->recording);
    Py_VISIT(self->costs);
    Py_VISIT(self->allowance);
    return 0;
}

static int
permit_clear(Permit *self)
{
    Py_CLEAR(self->told);
    Py_CLEAR(self->context);
    Py_CLEAR(self->recording);
    Py_CLEAR(self->costs);
    Py_CLEAR(self->allowance);
    return 0;
}

static void
permit_dealloc(Permit *self)
{
    PyObject_GC_UnTrack(self);
    permit_clear(self);
    release((PyObject *)self);
}

static PyMemberDef permit_members[] = {
    {"told", T_OBJECT_EX, offsetof(Permit, told), READONLY, NULL},
    {"context", T_OBJECT_EX, offsetof(Permit, context), READONLY, NULL},
    {"recording", T_OBJECT_EX, offsetof(Permit, recording), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot permit_slots[] = {
    {Py_tp_doc, "Runs of a layer in one context may be noted."},
    {Py_tp_new, permit_new},
    {Py_tp_traverse, permit_traverse},
    {Py_tp_clear, permit_clear},
    {Py_tp_dealloc, permit_dealloc},
    {Py_tp_members, permit_members},
    {0, NULL},
};
static PyType_Spec permit_spec = {
    .name = "neuronscope._native.Permit",
    .basicsize = sizeof(Permit),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = permit_slots,
};

static int
holder_traverse(Holder *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->permit);
    return 0;
}

static int
holder_clear(Holder *self)
{
    Py_CLEAR(self->permit);
    return 0;
}

static void
holder_dealloc(Holder *self)
{
    PyObject_GC_UnTrack(self);
    holder_clear(self);
    release((PyObject *)self);
}

static PyMemberDef holder_members[] = {
    {"permit", T_OBJECT, offsetof(Holder, permit), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot holder_slots[] = {
    {Py_tp_doc, "An observer that may hold a permit."},
    {Py_tp_traverse, holder_traverse},
    {Py_tp_clear, holder_clear},
    {Py_tp_dealloc, holder_dealloc},
    {Py_tp_members, holder_members},
    {0, NULL},
};
static PyType_Spec holder_spec = {
    .name = "neuronscope._native.Holder",
    .basicsize = sizeof(Holder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = holder_slots,
};

int
ns_add_notes(PyObject *module)
{
    if (ns_permit_type == NULL) {
        allowance_type = (PyTypeObject *)PyType_FromSpec(&allowance_spec);
        ns_holder_type = (PyTypeObject *)PyType_FromSpec(&holder_spec);
        if (allowance_type == NULL || ns_holder_type == NULL ||
            (ns_permit_type = (PyTypeObject *)PyType_FromSpec(&permit_spec)) == NULL)
            return -1;
    }
    return PyModule_AddObjectRef(module, "Allowance", (PyObject *)allowance_type) < 0 ||
                   PyModule_AddObjectRef(module, "Permit", (PyObject *)ns_permit_type) < 0 ||
                   PyModule_AddObjectRef(module, "Holder", (PyObject *)ns_holder_type) < 0
               ? -1
               : 0;
}
