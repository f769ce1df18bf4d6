/* Telling a torch module's observers of its output: the twin of `torch.slots._notify` in Python. */
#include "tensors.h"

static Py_ssize_t telling; /* threads in which observers run */
static PyObject *now_name, *active_name, *site_name, *callback_name, *tensor_name, *whole_name, *slot_site;

int
ns_telling_ready(void)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&now_name, "now"},           {&active_name, "active"},  {&site_name, "site"},       {&callback_name, "callback"},
        {&tensor_name, "_tensor"},    {&whole_name, "_whole"},   {&slot_site, "torch.slot"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    return 0;
}

int
ns_is_real(void)
{
    PyObject *found = ns_glance(&ns_torch[TRACING], NULL);
    if (found == Py_None)
        found = ns_glance(&ns_torch[TRANSFORM], NULL);
    if (found != Py_None)
        return found == NULL ? -1 : 0;
    int truth = ns_is_true(&ns_torch[DISPATCH]);
    if (truth == 0 && ns_torch[ON_DEVICE].callable != Py_None)
        truth = ns_is_true(&ns_torch[ON_DEVICE]);
    return truth == 0 ? 1 : truth < 0 ? -1 : ns_is_true(&ns_torch[REAL]);
}

/* Whether a site of the guard's is switched off. */
static int
is_off(PyObject *site)
{
    return PySet_Contains(ns_disabled, site);
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
    PyObject *told = PyObject_CallFunctionObjArgs(ns_torch[FAULT].callable, site, error, NULL);
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
    PyObject *now = PyObject_GetAttr(ns_notifying, now_name); /* what observers run is not observed itself */
    Py_XDECREF(now);
    if (now != Py_False)
        return now == NULL ? -1 : 0;
    PyObject *tensor = ns_is_exact(output) ? Py_NewRef(output) : ns_ask(&ns_torch[FIRST], output);
    if (tensor == NULL || tensor == Py_None) {
        Py_XDECREF(tensor);
        return tensor == NULL ? -1 : 0;
    }
    PyObject *snapshot = PyObject_CallFunctionObjArgs(ns_torch[SNAPSHOT].callable, tensor, NULL);
    Py_DECREF(tensor);
    if (snapshot == NULL)
        return -1;
    telling++;
    int failed = PyObject_SetAttr(ns_notifying, now_name, Py_True);
    if (failed == 0)
        failed = tell_each(observers, snapshot);
    telling--;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    int ended = PyObject_SetAttr(ns_notifying, now_name, Py_False);
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
    return ns_disabled == NULL || PySet_Size(ns_disabled) != 0;
}

/* Do something while Dynamo compiles nothing, which would else compile what runs here; what it raises goes to the
 * guard. */
static int
undisturbed(int (*work)(PyObject *, PyObject *), PyObject *one, PyObject *other)
{
    PyObject *compiler = ns_ask(&ns_torch[DYNAMO], Py_None);
    if (compiler == NULL)
        return -1;
    int failed = work(one, other);
    if (failed)
        failed = contain(slot_site);
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *back = ns_ask(&ns_torch[DYNAMO], compiler);
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
    if (!PyTuple_Check(args[0]) || ns_disabled == NULL)
        return PyErr_Format(PyExc_TypeError, "tell takes a tuple of observers");
    return tell_safely(args[0], args[1]) < 0 ? NULL : Py_NewRef(Py_None);
}
