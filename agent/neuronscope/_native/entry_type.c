/* `Entry`, the type: made once for a method. */
#include "entry.h"

static PyObject **
references(Entry *self, int *count)
{
    *count = 12;
    return &self->tools;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    int count;
    PyObject **held = references(self, &count);
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (int i = 0; i < count; i++)
        Py_VISIT(held[i]);
    return 0;
}

static int
entry_clear(Entry *self)
{
    int count;
    PyObject **held = references(self, &count);
    for (int i = 0; i < count; i++)
        Py_CLEAR(held[i]);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* Are these the tools that `engine.entry` lists? */
static int
are_tools(PyObject *tools)
{
    if (!PyTuple_Check(tools) || PyTuple_Size(tools) != TOOLS_END)
        return 0;
    PyObject *span = PyTuple_GetItem(tools, LIGHT_SPAN), *call = PyTuple_GetItem(tools, INVOCATION);
    PyObject *context = PyTuple_GetItem(tools, SPAN_CONTEXT);
    return PyTuple_Check(PyTuple_GetItem(tools, UNUSUAL)) && PyDict_Check(PyTuple_GetItem(tools, CLOCKS)) &&
           PyDict_Check(PyTuple_GetItem(tools, API)) && PyAnySet_Check(PyTuple_GetItem(tools, WAITING)) &&
           PyAnySet_Check(PyTuple_GetItem(tools, DISABLED)) && PyType_Check(span) && PyType_Check(call) &&
           PyType_Check(context) && PyType_IsSubtype((PyTypeObject *)span, ns_span_type) &&
           PyType_IsSubtype((PyTypeObject *)call, ns_call_type) &&
           PyType_IsSubtype((PyTypeObject *)context, &PyTuple_Type);
}

/* Whether a method has this attribute; takes the reference. */
static int
has(PyObject *value, int *failed)
{
    int is = value == NULL ? (*failed = 1, 0) : value != Py_None && value != Py_False;
    Py_XDECREF(value);
    return is;
}

/* Read what a seam says once for all of its calls. */
static int
read_seam(Entry *self)
{
    PyObject *seam = self->seam, *method = GET(seam, method);
    int failed = 0;
    if (method == NULL)
        return -1;
    self->simple = !has(GET(method, layer), &failed) && !has(GET(method, model), &failed);
    self->injects = (char)has(GET(method, inject_headers), &failed);
    self->always_plain = !has(GET(method, stream), &failed) && !has(GET(method, body), &failed);
    self->bound = (char)has(GET(seam, bound), &failed);
    self->unwrap = GET(method, unwrap);
    self->snapshot = GET(method, snapshot);
    Py_DECREF(method);
    if (failed || self->unwrap == NULL || self->snapshot == NULL || (self->site = GET(seam, site)) == NULL ||
        (self->library = GET(seam, library)) == NULL || (self->kind = GET(seam, kind)) == NULL ||
        (self->name = GET(seam, name)) == NULL || (self->parameters = GET(seam, parameters)) == NULL ||
        (self->plain = GET(seam, plain)) == NULL)
        return -1;
    if (self->unwrap == Py_None)
        Py_CLEAR(self->unwrap);
    if (PyAnySet_Check(self->plain) && PyTuple_Check(self->parameters))
        return 0;
    PyErr_SetString(PyExc_TypeError, "this is no seam");
    return -1;
}

/* Entry(tools, engine, seam, installation) */
static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    if (PyTuple_Size(args) != 4 || !are_tools(PyTuple_GetItem(args, 0)))
        return PyErr_Format(PyExc_TypeError, "Entry takes tools, an engine, a seam and an installation");
    Entry *self = (Entry *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self->tools = Py_NewRef(PyTuple_GetItem(args, 0));
    self->engine = Py_NewRef(PyTuple_GetItem(args, 1));
    self->seam = Py_NewRef(PyTuple_GetItem(args, 2));
    self->installation = Py_NewRef(PyTuple_GetItem(args, 3));
    if (read_seam(self) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyMethodDef entry_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))ns_entry_begin, METH_FASTCALL, NULL},
    {"made", (PyCFunction)(void (*)(void))ns_entry_made, METH_FASTCALL, NULL},
    {"succeed", (PyCFunction)(void (*)(void))ns_entry_succeed, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "Where the calls of one method begin and end."},
    {Py_tp_new, entry_new},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, entry_dealloc},
    {Py_tp_methods, entry_methods},
    {0, NULL},
};

static PyType_Spec entry_spec = {
    .name = "neuronscope._native.Entry",
    .basicsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = entry_slots,
};

int
ns_add_entry(PyObject *module)
{
    static PyObject *type;
    if (ns_entry_ready() < 0 || (type == NULL && (type = PyType_FromSpec(&entry_spec)) == NULL))
        return -1;
    return PyModule_AddObjectRef(module, "Entry", type);
}
