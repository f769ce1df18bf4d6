/* Telling a torch module's observers of its output: the twin of `torch.telling` in Python. */
#include "tensors.h"
#include "turns.h"

PyTypeObject *ns_observer_type;

/* What a snapshot keeps, in the order in which `lend` sets it. */
enum { WHOLE, LENT, MEASURED, MORE, ARRAY, SHAPE, DTYPE, NBYTES, FIELDS };
static const char *const field_texts[FIELDS] = {
    "_whole", "_tensor", "_summary", "_more", "_array", "shape", "dtype", "_nbytes",
};

static _Thread_local int telling; /* do observers run? */
static PyObject *fields[FIELDS], *slot_site, *question_name, *flag_name, *nobody;

int
ns_telling_ready(void)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&slot_site, "torch.slot"}, {&question_name, "is_compiling"}, {&flag_name, "_is_compiling_flag"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    for (int i = 0; i < FIELDS; i++)
        if ((fields[i] = PyUnicode_InternFromString(field_texts[i])) == NULL)
            return -1;
    return (nobody = PyTuple_New(0)) == NULL ? -1 : 0;
}

/* `torch.compiler.is_compiling()`; -1 with an exception. */
static int
is_compiling(void)
{
    PyObject *question = PyDict_GetItemWithError(ns_compiler, question_name);
    if (question == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "torch.compiler has no is_compiling");
        return -1;
    }
    if (question == ns_question) {
        if (PyDict_GetItemWithError(ns_compiler, flag_name) == Py_False)
            return 0;
        if (PyErr_Occurred())
            return -1;
    }
    PyObject *answer = PyObject_CallNoArgs(question);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
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
    if (!PyObject_TypeCheck(observer, ns_observer_type))
        return PyErr_Format(PyExc_TypeError, "only observers are told"), -1;
    NsObserver *told = (NsObserver *)observer;
    if (!told->active)
        return 0;
    PyObject *site = Py_XNewRef(told->site);
    int off = site == NULL || told->callback == NULL ? -1 : is_off(site);
    if (off == 0) {
        PyObject *callback = Py_NewRef(told->callback);
        PyObject *done = PyObject_CallFunctionObjArgs(callback, snapshot, NULL);
        Py_DECREF(callback);
        Py_XDECREF(done);
        if (done == NULL)
            off = contain(site);
    }
    else if (off < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_AttributeError, "this observer is not ready");
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

/* `TorchSnapshot(tensor)`, made here where its `__init__` would do no more than this. */
static PyObject *
lend(PyObject *tensor)
{
    PyObject *kind = ns_torch[SNAPSHOT].callable, *told = ns_describe(NULL, tensor);
    if (told == NULL)
        return NULL;
    if (told == Py_None || !PyType_Check(kind)) {
        Py_DECREF(told);
        return PyObject_CallFunctionObjArgs(kind, tensor, NULL);
    }
    newfunc make = (newfunc)PyType_GetSlot((PyTypeObject *)kind, Py_tp_new);
    PyObject *snapshot = make((PyTypeObject *)kind, nobody, NULL);
    PyObject *values[FIELDS] = {
        tensor, tensor, Py_None, ns_nothing, Py_None, PyTuple_GetItem(told, 0), PyTuple_GetItem(told, 1),
        PyTuple_GetItem(told, 2),
    };
    for (int i = 0; snapshot != NULL && i < FIELDS; i++)
        if (PyObject_SetAttr(snapshot, fields[i], values[i]) < 0)
            Py_CLEAR(snapshot);
    Py_DECREF(told);
    return snapshot;
}

static int
tell(PyObject *observers, PyObject *output)
{
    int real = ns_is_real();
    if (real <= 0)
        return real;
    if (telling) /* what observers run is not observed itself */
        return 0;
    PyObject *tensor = ns_is_exact(output) ? Py_NewRef(output) : ns_ask(&ns_torch[FIRST], output);
    if (tensor == NULL || tensor == Py_None) {
        Py_XDECREF(tensor);
        return tensor == NULL ? -1 : 0;
    }
    PyObject *snapshot = lend(tensor);
    Py_DECREF(tensor);
    if (snapshot == NULL)
        return -1;
    telling = 1;
    int failed = tell_each(observers, snapshot), ended = 0;
    telling = 0;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (PyObject_SetAttr(snapshot, fields[LENT], Py_None) < 0 || /* the loan ends: `close` */
        PyObject_SetAttr(snapshot, fields[WHOLE], Py_None) < 0)
        ended = -1;
    Py_DECREF(snapshot);
    if (failed) {
        PyErr_Clear();
        PyErr_Restore(type, error, trace);
    }
    return failed || ended ? -1 : 0;
}

/* --- the type ----------------------------------------------------------------------------------------- */

NS_COLLECTED(NsObserver, observer, callback, 3)

static PyMemberDef observer_members[] = {
    NS_FIELD(NsObserver, callback), NS_FIELD(NsObserver, site), NS_FIELD(NsObserver, slot), NS_FLAG(NsObserver, active),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot observer_slots[] = {
    {Py_tp_traverse, observer_traverse}, {Py_tp_clear, observer_clear}, {Py_tp_dealloc, observer_dealloc},
    {Py_tp_members, observer_members},   {0, NULL},
};

static PyType_Spec observer_spec = {"neuronscope._native.ObserverTurns", sizeof(NsObserver), 0, NS_KIND, observer_slots};

int
ns_add_observers(PyObject *module)
{
    ns_observer_type = (PyTypeObject *)PyType_FromSpec(&observer_spec);
    return ns_observer_type == NULL ? -1 : PyModule_AddObjectRef(module, "ObserverTurns", (PyObject *)ns_observer_type);
}

int
ns_is_notifying(void)
{
    return telling;
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
    int compiling = is_compiling();
    if (compiling < 0 || (!compiling && tell_safely(args[0], args[1]) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* notifying() -> do observers run in this thread? */
PyObject *
ns_notifying(PyObject *Py_UNUSED(module), Args Py_UNUSED(args), Py_ssize_t n)
{
    return ns_takes("notifying", n, 0) ? PyBool_FromLong(telling) : NULL;
}
