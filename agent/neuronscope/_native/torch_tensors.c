/* Looking at a torch module's output: twins of `torch.slots`, `torch.snapshot` and `torch.summary` in Python.
 *
 * After a layer the caches hold its weights, and every Python function on the way to a summary costs ten times
 * what it does in a loop.  So what is usual is done here in one piece, and anything else left to the twins. */
#include "turns.h"
#include <math.h>

typedef int (*Kernel)(const void *data, int64_t kind, const void *table, int64_t count, const int64_t *dims,
                      void *out);
typedef struct {
    double count, finite, mean, squares, energy, low, high, zeros, nans, infs;
} Moments;

/* In the order in which `bind_tensors` takes them. */
enum { MODES, KEYS, TRACING, TRANSFORM, DISPATCH, ON_DEVICE, DYNAMO, REAL, FIRST, SNAPSHOT, FAULT, FUNCTIONS };
enum { TENSOR = FUNCTIONS, PARAMETER, TYPES, OTHER_KEYS, SUMMARY, DISABLED, NOTIFYING, KERNEL, HOLD, COUNT };

static Function asked[FUNCTIONS];
static PyObject *tensor_type, *parameter_type, *types, *summary_type, *disabled, *notifying;
static unsigned long long other_keys;
static Kernel kernel;
static Py_ssize_t hold_gil;
static PyObject *shape_name, *dtype_name, *nested_name, *raw_name, *numel_name, *address_name, *storage_name,
    *nbytes_name, *offset_name, *contiguous_name, *now_name, *active_name, *site_name, *callback_name, *tensor_name,
    *whole_name, *slot_site;

int
ns_tensors_ready(void)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&shape_name, "shape"},           {&dtype_name, "dtype"},         {&nested_name, "is_nested"},
        {&raw_name, "raw_repr"},          {&numel_name, "numel"},         {&address_name, "data_ptr"},
        {&storage_name, "untyped_storage"}, {&nbytes_name, "nbytes"},     {&offset_name, "storage_offset"},
        {&contiguous_name, "is_contiguous"}, {&now_name, "now"},          {&active_name, "active"},
        {&site_name, "site"},             {&callback_name, "callback"},   {&tensor_name, "_tensor"},
        {&whole_name, "_whole"},
        {&slot_site, "torch.slot"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    return 0;
}

/* bind_tensors(...): what is listed above. */
PyObject *
ns_bind_tensors(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_tensors", n, COUNT))
        return NULL;
    for (int i = 0; i < FUNCTIONS; i++)
        if (!PyCallable_Check(args[i]))
            return PyErr_Format(PyExc_TypeError, "bind_tensors takes functions first");
    if (!PyDict_Check(args[TYPES]) || !PyAnySet_Check(args[DISABLED]))
        return PyErr_Format(PyExc_TypeError, "bind_tensors takes element types and switched-off sites");
    unsigned long long keys = PyLong_AsUnsignedLongLongMask(args[OTHER_KEYS]);
    void *address = PyErr_Occurred() ? NULL : PyLong_AsVoidPtr(args[KERNEL]);
    Py_ssize_t hold = PyErr_Occurred() ? 0 : PyLong_AsSsize_t(args[HOLD]);
    if (PyErr_Occurred())
        return NULL;
    for (int i = 0; i < FUNCTIONS; i++) {
        Py_XDECREF(asked[i].callable);
        asked[i] = ns_resolve(args[i]);
    }
    PyObject **values[] = {&tensor_type, &parameter_type, &types, NULL, &summary_type, &disabled, &notifying};
    for (int i = 0; i < 7; i++)
        if (values[i] != NULL) {
            PyObject *before = *values[i];
            *values[i] = Py_NewRef(args[TENSOR + i]);
            Py_XDECREF(before);
        }
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
number(PyObject *tensor, PyObject *method, long long *found)
{
    PyObject *value = PyObject_CallMethodObjArgs(tensor, method, NULL);
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
    int truth = ns_is_true(&asked[MODES]);
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

/* Whether it is plain host memory in one piece that is really there: 1, and where; 0: to be looked at. */
static int
readable(PyObject *tensor, long long *kind, long long *count, long long *width, const void **data)
{
    if (kernel == NULL || !ns_is_exact(tensor))
        return 0;
    int truth = ns_is_true(&asked[MODES]); /* a mode of the user's would see even `.dtype` */
    if (truth != 0)
        return truth < 0 ? -1 : 0;
    PyObject *keys = ns_ask(&asked[KEYS], tensor);
    PyObject *raw = keys == NULL ? NULL : PyObject_CallMethodObjArgs(keys, raw_name, NULL);
    Py_XDECREF(keys);
    if (raw == NULL)
        return -1;
    unsigned long long mask = PyLong_AsUnsignedLongLongMask(raw);
    Py_DECREF(raw);
    if (PyErr_Occurred())
        return -1;
    if (mask & other_keys)
        return 0;
    PyObject *elements = elements_of(tensor);
    if (elements == NULL)
        return PyErr_Occurred() ? -1 : 0;
    *width = PyLong_AsLongLong(PyTuple_GetItem(elements, 1));
    *kind = PyLong_AsLongLong(PyTuple_GetItem(elements, 2));
    if (*kind < 0 || *width <= 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *whole = PyObject_CallMethodObjArgs(tensor, contiguous_name, NULL);
    Py_XDECREF(whole);
    if (whole != Py_True)
        return whole == NULL ? -1 : 0;
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, storage_name, NULL);
    long long held, offset, address;
    int failed = storage == NULL || number(storage, nbytes_name, &held) < 0;
    Py_XDECREF(storage);
    PyObject *pointer = NULL;
    if (failed || number(tensor, offset_name, &offset) < 0 || number(tensor, numel_name, count) < 0 ||
        (pointer = PyObject_CallMethodObjArgs(tensor, address_name, NULL)) == NULL)
        return -1;
    address = (long long)PyLong_AsUnsignedLongLongMask(pointer);
    Py_DECREF(pointer);
    *data = (const void *)(uintptr_t)address;
    /* FSDP frees shards by shrinking their storage: the address of what is left means nothing. */
    return !PyErr_Occurred() && address != 0 && *count > 0 && *count <= held / *width - offset;
}

/* summarize(tensor) -> its summary, or None for what the twin has to look at */
PyObject *
ns_summarize(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    long long kind = 0, count = 0, width = 0;
    const void *data = NULL;
    int there = readable(tensor, &kind, &count, &width, &data);
    if (there < 0) { /* a wrapper of functorch's has no memory of its own: the twin tells why */
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
            return NULL;
        PyErr_Clear();
    }
    if (there <= 0)
        Py_RETURN_NONE;
    Moments m;
    int done;
    if (count * width <= hold_gil)
        done = kernel(data, kind, NULL, count, NULL, &m);
    else {
        Py_BEGIN_ALLOW_THREADS
        done = kernel(data, kind, NULL, count, NULL, &m);
        Py_END_ALLOW_THREADS
    }
    if (done != 0)
        Py_RETURN_NONE;
    double mean = m.mean, std = m.squares > 0.0 ? sqrt(m.squares / m.finite) : 0.0, l2 = sqrt(m.energy);
    double low = m.low, high = m.high, most = high > -low ? high : -low;
    if (m.finite == 0.0)
        mean = std = l2 = low = high = most = NAN;
    PyObject *fields = Py_BuildValue("(LddddddLLL)", (long long)m.count, mean, std, l2, low, high, most,
                                     (long long)m.zeros, (long long)m.nans, (long long)m.infs);
    PyObject *found = fields == NULL ? NULL : PyObject_Call(summary_type, fields, NULL);
    Py_XDECREF(fields);
    return found;
}

/* --- telling observers --------------------------------------------------------------------------------- */

/* False while something runs the model to learn its structure. */
static int
is_real(void)
{
    PyObject *found = ns_glance(&asked[TRACING], NULL);
    if (found == Py_None)
        found = ns_glance(&asked[TRANSFORM], NULL);
    if (found != Py_None)
        return found == NULL ? -1 : 0;
    int truth = ns_is_true(&asked[DISPATCH]);
    if (truth == 0)
        truth = ns_is_true(&asked[ON_DEVICE]);
    return truth == 0 ? 1 : truth < 0 ? -1 : ns_is_true(&asked[REAL]);
}

/* Whether a site of the guard's is switched off. */
static int
is_off(PyObject *site)
{
    return PySet_Contains(disabled, site);
}

/* What was raised in our code goes to the guard, not to the model; -1: it must be raised after all. */
static int
contain(PyObject *site)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *told = PyObject_CallFunctionObjArgs(asked[FAULT].callable, site, error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

static int
tell_one(PyObject *observer, PyObject *snapshot)
{
    PyObject *active = PyObject_GetAttr(observer, active_name);
    Py_XDECREF(active);
    if (active == NULL || active == Py_False)
        return active == NULL ? -1 : 0;
    PyObject *site = PyObject_GetAttr(observer, site_name);
    int off = site == NULL ? -1 : is_off(site);
    if (off == 0) {
        PyObject *callback = PyObject_GetAttr(observer, callback_name);
        PyObject *done = callback == NULL ? NULL : PyObject_CallFunctionObjArgs(callback, snapshot, NULL);
        Py_XDECREF(callback);
        Py_XDECREF(done);
        if (done == NULL)
            off = contain(site);
    }
    Py_XDECREF(site);
    return off < 0 ? -1 : 0;
}

static int
tell_each(PyObject *observers, PyObject *snapshot)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(observers); i++)
        if (tell_one(PyTuple_GetItem(observers, i), snapshot) < 0)
            return -1;
    return 0;
}

static int
tell(PyObject *observers, PyObject *output)
{
    int real = is_real();
    if (real <= 0)
        return real;
    PyObject *now = PyObject_GetAttr(notifying, now_name); /* what observers run is not observed itself */
    Py_XDECREF(now);
    if (now != Py_False)
        return now == NULL ? -1 : 0;
    PyObject *tensor = ns_is_exact(output) ? Py_NewRef(output) : ns_ask(&asked[FIRST], output);
    if (tensor == NULL || tensor == Py_None) {
        Py_XDECREF(tensor);
        return tensor == NULL ? -1 : 0;
    }
    PyObject *snapshot = PyObject_CallFunctionObjArgs(asked[SNAPSHOT].callable, tensor, NULL);
    Py_DECREF(tensor);
    if (snapshot == NULL)
        return -1;
    int failed = PyObject_SetAttr(notifying, now_name, Py_True);
    if (failed == 0)
        failed = tell_each(observers, snapshot);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    int ended = PyObject_SetAttr(notifying, now_name, Py_False);
    if (PyObject_SetAttr(snapshot, tensor_name, Py_None) < 0 || /* the loan ends: `close` */
        PyObject_SetAttr(snapshot, whole_name, Py_None) < 0)
        ended = -1;
    Py_DECREF(snapshot);
    if (failed) {
        PyErr_Clear();
        PyErr_Restore(type, error, trace);
    }
    return failed || ended ? -1 : 0;
}

/* The same with everything around it; what is raised goes to the guard. */
static int
tell_safely(PyObject *observers, PyObject *output)
{
    int off = is_off(slot_site);
    if (off != 0)
        return off < 0 ? -1 : 0;
    PyObject *compiler = ns_ask(&asked[DYNAMO], Py_None); /* else it would compile what runs here */
    if (compiler == NULL)
        return -1;
    int failed = tell(observers, output);
    if (failed)
        failed = contain(slot_site);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *back = ns_ask(&asked[DYNAMO], compiler);
    Py_DECREF(compiler);
    if (failed) {
        PyErr_Clear();
        PyErr_Restore(type, error, trace);
    }
    Py_XDECREF(back);
    return failed || back == NULL ? -1 : 0;
}

/* tell(observers, output): tell them of the first tensor in it, unless the run is no real one */
PyObject *
ns_tell(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("tell", n, 2))
        return NULL;
    if (!PyTuple_Check(args[0]) || disabled == NULL)
        return PyErr_Format(PyExc_TypeError, "tell takes a tuple of observers");
    return tell_safely(args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}
