/* Looking at a torch module's output: twins of `torch.slots`, `torch.snapshot` and `torch.summary` in Python.
 *
 * After a layer the caches hold its weights, and every Python function on the way to a summary costs ten times
 * what it does in a loop.  So what is usual is done here in one piece, and anything else left to the twins. */
#include "tensors.h"
#include "turns.h"
#include <math.h>

typedef int (*Kernel)(const void *data, int64_t kind, const void *table, int64_t count, const int64_t *dims,
                      void *out);
/* In the order in which `bind_tensors` takes them. */
enum { MODES, KEYS, TRACING, TRANSFORM, DISPATCH, ON_DEVICE, RAW, DYNAMO, REAL, FIRST, SNAPSHOT, FAULT, FUNCTIONS };
enum { TENSOR = FUNCTIONS, PARAMETER, TYPES, OTHER_KEYS, SUMMARY, DISABLED, NOTIFYING, KERNEL, HOLD, COUNT };

/* Methods of a plain tensor, and of its storage: what a sample's are bound to is replaced. */
enum { NUMEL, ADDRESS, STORAGE, OFFSET, WHOLE, NBYTES, METHODS };
static const char *const method_texts[METHODS] = {
    "numel", "data_ptr", "untyped_storage", "storage_offset", "is_contiguous", "nbytes",
};

static Function asked[FUNCTIONS], methods[METHODS];
static PyObject *tensor_type, *parameter_type, *types, *summary_type, *disabled, *notifying;
static unsigned long long other_keys;
static Py_ssize_t telling; /* threads in which observers run */
static Kernel kernel;
static Py_ssize_t hold_gil;
static PyObject *shape_name, *dtype_name, *nested_name, *now_name, *active_name, *site_name, *callback_name,
    *tensor_name, *whole_name, *slot_site, *method_names[METHODS], *nothing;

int
ns_tensors_ready(void)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&shape_name, "shape"},   {&dtype_name, "dtype"},       {&nested_name, "is_nested"}, {&now_name, "now"},
        {&active_name, "active"}, {&site_name, "site"},         {&callback_name, "callback"},
        {&tensor_name, "_tensor"}, {&whole_name, "_whole"},     {&slot_site, "torch.slot"},
    };
    for (int i = 0; i < METHODS; i++)
        if ((method_names[i] = PyUnicode_InternFromString(method_texts[i])) == NULL)
            return -1;
    if ((nothing = PyTuple_New(0)) == NULL)
        return -1;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    return 0;
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

static int
locate(PyObject *tensor, Place *place)
{
    if (kernel == NULL || !ns_is_exact(tensor))
        return 0;
    int truth = ns_is_true(&asked[MODES]); /* a mode of the user's would see even `.dtype` */
    if (truth != 0)
        return truth < 0 ? -1 : 0;
    PyObject *keys = ns_ask(&asked[KEYS], tensor);
    PyObject *raw = keys == NULL ? NULL : ns_ask(&asked[RAW], keys);
    Py_XDECREF(keys);
    if (raw == NULL)
        return -1;
    unsigned long long mask = PyLong_AsUnsignedLongLongMask(raw);
    Py_DECREF(raw);
    if (PyErr_Occurred())
        return -1;
    if (mask & other_keys)
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
    PyObject *storage = ask_method(STORAGE, tensor);
    long long held, offset, address;
    int failed = storage == NULL || number(storage, NBYTES, &held) < 0;
    Py_XDECREF(storage);
    PyObject *pointer = NULL;
    if (failed || number(tensor, OFFSET, &offset) < 0 || number(tensor, NUMEL, &place->count) < 0 ||
        (pointer = ask_method(ADDRESS, tensor)) == NULL)
        return -1;
    address = (long long)PyLong_AsUnsignedLongLongMask(pointer);
    Py_DECREF(pointer);
    place->data = (const void *)(uintptr_t)address;
    if (PyErr_Occurred())
        return -1;
    /* FSDP frees shards by shrinking their storage: the address of what is left means nothing. */
    return address != 0 && place->count > 0 && place->count <= held / place->width - offset;
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

/* --- telling observers --------------------------------------------------------------------------------- */

int
ns_is_real(void)
{
    PyObject *found = ns_glance(&asked[TRACING], NULL);
    if (found == Py_None)
        found = ns_glance(&asked[TRANSFORM], NULL);
    if (found != Py_None)
        return found == NULL ? -1 : 0;
    int truth = ns_is_true(&asked[DISPATCH]);
    if (truth == 0 && asked[ON_DEVICE].callable != Py_None)
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
    int real = ns_is_real();
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
    telling++;
    int failed = PyObject_SetAttr(notifying, now_name, Py_True);
    if (failed == 0)
        failed = tell_each(observers, snapshot);
    telling--;
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

int
ns_is_notifying(void)
{
    return telling != 0;
}

int
ns_any_off(void)
{
    return disabled == NULL || PySet_Size(disabled) != 0;
}

/* Do something while Dynamo compiles nothing, which would else compile what runs here; what it raises goes to the
 * guard. */
static int
undisturbed(int (*work)(PyObject *, PyObject *), PyObject *one, PyObject *other)
{
    PyObject *compiler = ns_ask(&asked[DYNAMO], Py_None);
    if (compiler == NULL)
        return -1;
    int failed = work(one, other);
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

static int
call(PyObject *function, PyObject *argument)
{
    PyObject *done = PyObject_CallFunctionObjArgs(function, argument, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int
ns_call_undisturbed(PyObject *function, PyObject *argument)
{
    return undisturbed(call, function, argument);
}

/* Note the output, or tell its observers. */
static int
tell_safely(PyObject *observers, PyObject *output)
{
    int off = is_off(slot_site);
    if (off != 0)
        return off < 0 ? -1 : 0;
    int noted = ns_jot(observers, output);
    if (noted < 0)
        return contain(slot_site);
    return noted ? 0 : undisturbed(tell, observers, output);
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
