/* Reading a torch tensor: twins of `torch.snapshot` and `torch.summary` in Python.
 *
 * After a layer the caches hold its weights, and every Python function on the way to a summary costs ten times
 * what it does in a loop.  So what is usual is done here in one piece, and anything else left to the twins. */
#include "tensors.h"
#include <math.h>

typedef int (*Kernel)(const void *data, int64_t kind, const void *table, int64_t count, const int64_t *dims,
                      void *out);
/* Methods of a plain tensor, and of its storage: what a sample's are bound to is replaced. */
enum { NUMEL, ADDRESS, STORAGE, OFFSET, WHOLE, NBYTES, METHODS };
static const char *const method_texts[METHODS] = {
    "numel", "data_ptr", "untyped_storage", "storage_offset", "is_contiguous", "nbytes",
};

Function ns_torch[FUNCTIONS];
PyObject *ns_disabled, *ns_compiler, *ns_question, *ns_nothing;
static Function methods[METHODS];
static PyObject *tensor_type, *parameter_type, *types, *summary_type;
static unsigned long long other_keys;
static Kernel kernel;
static Py_ssize_t hold_gil;
static PyObject *shape_name, *dtype_name, *nested_name, *method_names[METHODS], *nothing;

int
ns_tensors_ready(void)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&shape_name, "shape"},
        {&dtype_name, "dtype"},
        {&nested_name, "is_nested"},
    };
    for (int i = 0; i < METHODS; i++)
        if ((method_names[i] = PyUnicode_InternFromString(method_texts[i])) == NULL)
            return -1;
    if ((nothing = PyTuple_New(0)) == NULL)
        return -1;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    return ns_telling_ready();
}

/* Find the functions behind a sample's methods; -1 with an exception. */
static int
bind_methods(PyObject *kind)
{
    PyObject *sample = PyObject_CallNoArgs(kind), *storage = NULL;
    int failed = sample == NULL || (storage = PyObject_CallMethodObjArgs(sample, method_names[STORAGE], NULL)) == NULL;
    for (int i = 0; i < METHODS && !failed; i++) {
        PyObject *bound = PyObject_GetAttr(i == NBYTES ? storage : sample, method_names[i]);
        failed = bound == NULL;
        if (!failed) {
            Py_XDECREF(methods[i].callable);
            methods[i] = ns_resolve(bound);
            Py_DECREF(bound);
        }
    }
    Py_XDECREF(storage);
    Py_XDECREF(sample);
    return failed ? -1 : 0;
}

/* Call a method of a tensor, or of a storage: only of exactly the sample's kind. */
static PyObject *
ask_method(int which, PyObject *self)
{
    const Function *method = &methods[which];
    switch (method->flags) {
    case METH_NOARGS:
        return method->function(self, NULL);
    case METH_VARARGS | METH_KEYWORDS:
        return ((NsNamed)(void (*)(void))method->function)(self, nothing, NULL);
    default:
        return PyObject_CallMethodObjArgs(self, method_names[which], NULL);
    }
}

/* bind_tensors(...): what is listed above. */
PyObject *
ns_bind_tensors(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_tensors", n, COUNT))
        return NULL;
    for (int i = 0; i < FUNCTIONS; i++)
        if (!PyCallable_Check(args[i]) && !(i == ON_DEVICE && args[i] == Py_None))
            return PyErr_Format(PyExc_TypeError, "bind_tensors takes functions first");
    if (!PyDict_Check(args[TYPES]) || !PyAnySet_Check(args[DISABLED]) || !PyDict_Check(args[COMPILER]))
        return PyErr_Format(PyExc_TypeError, "bind_tensors takes element types, switched-off sites and a namespace");
    unsigned long long keys = PyLong_AsUnsignedLongLongMask(args[OTHER_KEYS]);
    void *address = PyErr_Occurred() ? NULL : PyLong_AsVoidPtr(args[KERNEL]);
    Py_ssize_t hold = PyErr_Occurred() ? 0 : PyLong_AsSsize_t(args[HOLD]);
    if (PyErr_Occurred())
        return NULL;
    for (int i = 0; i < FUNCTIONS; i++) {
        Py_XDECREF(ns_torch[i].callable);
        ns_torch[i] = ns_resolve(args[i]);
    }
    PyObject **values[] = {
        &tensor_type, &parameter_type, &types, NULL, &summary_type, &ns_disabled, &ns_compiler, &ns_question, &ns_nothing,
    };
    for (int i = 0; i < KERNEL - TENSOR; i++)
        if (values[i] != NULL) {
            PyObject *before = *values[i];
            *values[i] = Py_NewRef(args[TENSOR + i]);
            Py_XDECREF(before);
        }
    if (bind_methods(tensor_type) < 0)
        return NULL;
    other_keys = keys;
    kernel = (Kernel)address;
    hold_gil = hold;
    Py_RETURN_NONE;
}

int
ns_is_exact(PyObject *tensor)
{
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    return tensor_type != NULL && (type == tensor_type || type == parameter_type);
}

static int
number(PyObject *self, int method, long long *found)
{
    PyObject *value = ask_method(method, self);
    if (value == NULL)
        return -1;
    *found = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *found == -1 && PyErr_Occurred() ? -1 : 0;
}

/* (name, bytes of an element, the kernel's number or -1) of its elements; borrowed from the table, or NULL. */
static PyObject *
elements_of(PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, dtype_name);
    PyObject *found = dtype == NULL ? NULL : PyDict_GetItemWithError(types, dtype);
    Py_XDECREF(dtype);
    return found != NULL && PyTuple_Check(found) && PyTuple_Size(found) == 3 ? found : NULL;
}

/* describe(tensor) -> (shape, name of the element type, bytes), or None for what is no plain tensor */
PyObject *
ns_describe(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    if (!ns_is_exact(tensor))
        Py_RETURN_NONE;
    int truth = ns_is_true(&ns_torch[MODES]);
    if (truth != 0)
        return truth < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *nested = PyObject_GetAttr(tensor, nested_name);
    Py_XDECREF(nested);
    if (nested != Py_False)
        return nested == NULL ? NULL : Py_NewRef(Py_None);
    PyObject *elements = elements_of(tensor), *size = elements == NULL ? NULL : PyObject_GetAttr(tensor, shape_name);
    if (size == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *shape = PyTuple_Check(size) ? PyTuple_New(PyTuple_Size(size)) : NULL; /* a plain one */
    long long bytes = PyLong_AsLongLong(PyTuple_GetItem(elements, 1));
    for (Py_ssize_t i = 0; shape != NULL && i < PyTuple_Size(size); i++) {
        PyObject *extent = PyTuple_GetItem(size, i);
        if (!PyLong_CheckExact(extent))
            Py_CLEAR(shape); /* a symbol */
        else {
            bytes *= PyLong_AsLongLong(extent);
            PyTuple_SetItem(shape, i, Py_NewRef(extent));
        }
    }
    Py_DECREF(size);
    if (shape == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    return Py_BuildValue("(NOL)", shape, PyTuple_GetItem(elements, 0), bytes);
}

static int
ask_keys(PyObject *tensor, Laid *laid)
{
    PyObject *keys = ns_ask(&ns_torch[KEYS], tensor);
    PyObject *raw = keys == NULL ? NULL : ns_ask(&ns_torch[RAW], keys);
    Py_XDECREF(keys);
    if (raw == NULL)
        return -1;
    laid->keys = PyLong_AsUnsignedLongLongMask(raw);
    Py_DECREF(raw);
    return PyErr_Occurred() ? -1 : 0;
}

static int
ask_place(PyObject *tensor, Laid *laid, long long width)
{
    PyObject *storage = ask_method(STORAGE, tensor);
    long long held, offset, count;
    int failed = storage == NULL || number(storage, NBYTES, &held) < 0;
    Py_XDECREF(storage);
    PyObject *pointer = NULL;
    if (failed || number(tensor, OFFSET, &offset) < 0 || number(tensor, NUMEL, &count) < 0 ||
        (pointer = ask_method(ADDRESS, tensor)) == NULL)
        return -1;
    uintptr_t address = (uintptr_t)PyLong_AsUnsignedLongLongMask(pointer);
    Py_DECREF(pointer);
    laid->data = address == 0 ? NULL : (const char *)(address - (uintptr_t)(offset * width));
    laid->count = count;
    laid->offset = offset;
    laid->held = held;
    return PyErr_Occurred() ? -1 : 0;
}

static int
locate(PyObject *tensor, Place *place)
{
    if (kernel == NULL || !ns_is_exact(tensor))
        return 0;
    int truth = ns_is_true(&ns_torch[MODES]); /* a mode of the user's would see even `.dtype` */
    if (truth != 0)
        return truth < 0 ? -1 : 0;
    Laid laid;
    int known = ns_lay_out(tensor, &laid);
    if (!known && ask_keys(tensor, &laid) < 0)
        return -1;
    if (laid.keys & other_keys)
        return 0;
    place->elements = elements_of(tensor);
    if (place->elements == NULL)
        return PyErr_Occurred() ? -1 : 0;
    place->width = PyLong_AsLongLong(PyTuple_GetItem(place->elements, 1));
    place->kind = PyLong_AsLongLong(PyTuple_GetItem(place->elements, 2));
    if (place->kind < 0 || place->width <= 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *whole = ask_method(WHOLE, tensor);
    Py_XDECREF(whole);
    if (whole != Py_True)
        return whole == NULL ? -1 : 0;
    if (!known && ask_place(tensor, &laid, place->width) < 0)
        return -1;
    /* FSDP frees shards by shrinking their storage: the address of what is left means nothing. */
    if (laid.data == NULL || laid.count <= 0 || laid.offset < 0 || laid.count > laid.held / place->width - laid.offset)
        return 0;
    place->count = laid.count;
    place->data = laid.data + laid.offset * place->width;
    return 1;
}

int
ns_locate(PyObject *tensor, Place *place)
{
    int there = locate(tensor, place);
    if (there < 0 && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear(); /* a wrapper of functorch's has no memory of its own: the twin tells why */
        return 0;
    }
    return there;
}

int
ns_measure(const Place *place, Moments *moments)
{
    int done;
    if (place->count * place->width <= hold_gil)
        return kernel(place->data, place->kind, NULL, place->count, NULL, moments) == 0;
    Py_BEGIN_ALLOW_THREADS
    done = kernel(place->data, place->kind, NULL, place->count, NULL, moments);
    Py_END_ALLOW_THREADS
    return done == 0;
}

PyObject *
ns_summary(const Moments *m)
{
    double mean = m->mean, std = m->squares > 0.0 ? sqrt(m->squares / m->finite) : 0.0, l2 = sqrt(m->energy);
    double low = m->low, high = m->high, most = high > -low ? high : -low;
    if (m->finite == 0.0)
        mean = std = l2 = low = high = most = NAN;
    PyObject *fields = Py_BuildValue("(LddddddLLL)", (long long)m->count, mean, std, l2, low, high, most,
                                     (long long)m->zeros, (long long)m->nans, (long long)m->infs);
    PyObject *found = fields == NULL ? NULL : PyObject_Call(summary_type, fields, NULL);
    Py_XDECREF(fields);
    return found;
}

/* summarize(tensor) -> its summary, or None for what the twin has to look at */
PyObject *
ns_summarize(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Place place = {0};
    Moments moments;
    int there = ns_locate(tensor, &place);
    if (there > 0)
        there = ns_measure(&place, &moments);
    return there > 0 ? ns_summary(&moments) : there < 0 ? NULL : Py_NewRef(Py_None);
}
