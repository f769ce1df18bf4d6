/* Torch functions of one module, on the model's side: twin of `PlainOpsTurns`. */
#include "turns.h"

typedef struct {
    PyObject_HEAD
    PyObject *counts; /* calls so far, by name */
    PyObject *wanted; /* sites by name and number */
    PyObject *around; /* the module's call */
    PyObject *record; /* a list that is told of every call, or None */
    PyObject *site;
    char direct; /* of the site, while nothing is watched */
} Ops;

/* The calls of one function. */
typedef struct {
    PyObject_HEAD
    PyObject *ops, *name;
} Calls;

static Function push, pop, name_of;
static PyTypeObject *ops_type, *calls_type, *python_calls;
static PyObject *watched_name, *find_name, *known;
#define MOST_KNOWN 4096

/* bind_ops(push a function mode, pop it, name of a function, Python's class of the calls of one) */
PyObject *
ns_bind_ops(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_ops", n, 4))
        return NULL;
    if (!PyType_Check(args[3]) || !PyType_IsSubtype((PyTypeObject *)args[3], calls_type))
        return PyErr_Format(PyExc_TypeError, "bind_ops takes a class of OpCallsTurns");
    ns_put((PyObject **)&python_calls, Py_NewRef(args[3]));
    Function *functions[] = {&push, &pop, &name_of};
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(functions[i]->callable);
        *functions[i] = ns_resolve(args[i]);
    }
    Py_RETURN_NONE;
}

NS_COLLECTED(Ops, ops, counts, 5)
NS_COLLECTED(Calls, calls, ops, 2)

static int
is_ready(Ops *self)
{
    if (self->counts != NULL && PyDict_Check(self->counts) && self->wanted != NULL && PyDict_Check(self->wanted) &&
        self->around != NULL)
        return 1;
    PyErr_SetString(PyExc_AttributeError, "these operations are not watched");
    return 0;
}

static PyObject *
watched(Ops *self, PyObject *args, PyObject *kwargs)
{
    if (!is_ready(self))
        return NULL;
    PyDict_Clear(self->counts);
    PyObject *around = Py_NewRef(self->around), *done = ns_ask(&push, (PyObject *)self), *output = NULL;
    if (done != NULL) {
        PyObject *type, *error, *trace;
        output = self->site != NULL && PyObject_TypeCheck(self->site, ns_site_type)
                     ? ns_call_module((NsSite *)self->site, self->direct, around, args, kwargs)
                     : PyObject_Call(around, args, kwargs);
        PyErr_Fetch(&type, &error, &trace);
        Py_DECREF(done);
        if ((done = ns_ask(&pop, NULL)) == NULL)
            Py_CLEAR(output);
        if (type != NULL) {
            PyErr_Clear();
            PyErr_Restore(type, error, trace);
        }
    }
    Py_XDECREF(done);
    Py_DECREF(around);
    return output;
}

/* The name under which a function is counted, or None; what C provides is kept, since torch makes it anew at each
 * call, equal to what it made before. */
static PyObject *
counted_as(PyObject *function)
{
    PyObject *of = PyCFunction_CheckExact(function) ? PyCFunction_GetSelf(function) : Py_None;
    if (of != NULL && !PyModule_Check(of) && !PyType_Check(of)) /* Python's, or a value's, which must not be kept */
        return ns_ask(&name_of, function);
    PyObject *found = PyDict_GetItemWithError(known, function);
    if (found != NULL || PyErr_Occurred())
        return Py_XNewRef(found);
    if ((found = ns_ask(&name_of, function)) != NULL && PyDict_Size(known) < MOST_KNOWN &&
        PyDict_SetItem(known, function, found) < 0)
        Py_CLEAR(found);
    return found;
}

/* The number of a call of this name, which is counted; -1: failed. */
static Py_ssize_t
numbered(Ops *self, PyObject *name)
{
    PyObject *before = PyDict_GetItemWithError(self->counts, name);
    Py_ssize_t number = before == NULL ? 0 : PyLong_AsSsize_t(before);
    PyObject *now = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(number + 1);
    int done = now == NULL ? -1 : PyDict_SetItem(self->counts, name, now);
    Py_XDECREF(now);
    return done < 0 ? -1 : number;
}

/* The site of a call, or NULL: nobody asked for it. */
static PyObject *
wanted(Ops *self, PyObject *name, Py_ssize_t number)
{
    PyObject *sites = PyDict_GetItemWithError(self->wanted, name);
    if (sites == NULL || !PyDict_Check(sites))
        return NULL;
    PyObject *key = PyLong_FromSsize_t(number);
    PyObject *site = key == NULL ? NULL : PyDict_GetItemWithError(sites, key);
    Py_XDECREF(key);
    return site != NULL && PyObject_TypeCheck(site, ns_site_type) ? Py_NewRef(site) : NULL;
}

static PyObject *
call_named(Ops *self, PyObject *name, PyObject *function, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t number = numbered(self, name);
    PyObject *site = number < 0 ? NULL : wanted(self, name, number), *output = NULL;
    if (site != NULL) {
        ns_put(&((NsSite *)site)->call, Py_NewRef(function));
        output = ns_visit((NsSite *)site, args, kwargs);
        Py_DECREF(site);
    }
    else if (!PyErr_Occurred())
        output = PyObject_Call(function, args, kwargs);
    if (output == NULL || self->record == NULL || self->record == Py_None)
        return output;
    PyObject *told = PyObject_CallMethod((PyObject *)self, "_tell", "OnOOO", name, number, args, kwargs, output);
    Py_XDECREF(told);
    if (told == NULL)
        Py_CLEAR(output);
    return output;
}

static PyObject *
torch_function(Ops *self, PyObject *given)
{
    Py_ssize_t n = PyTuple_Size(given);
    if (!is_ready(self))
        return NULL;
    if (n < 2 || n > 4 || (n > 2 && !PyTuple_Check(PyTuple_GetItem(given, 2))))
        return PyErr_Format(PyExc_TypeError, "__torch_function__ takes a function, types, a tuple and a dictionary");
    PyObject *function = PyTuple_GetItem(given, 0), *args = n > 2 ? PyTuple_GetItem(given, 2) : NULL,
             *kwargs = n > 3 ? PyTuple_GetItem(given, 3) : NULL;
    PyObject *positional = args == NULL ? PyTuple_New(0) : Py_NewRef(args);
    PyObject *named = kwargs == NULL || kwargs == Py_None ? PyDict_New() : Py_NewRef(kwargs);
    PyObject *name = positional == NULL || named == NULL ? NULL : counted_as(function), *output = NULL;
    if (name == Py_None)
        output = PyObject_Call(function, positional, named);
    else if (name != NULL)
        output = call_named(self, name, function, positional, named);
    Py_XDECREF(name);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return output;
}

/* --- asking for them ---------------------------------------------------------------------------------- */

PyObject *
ns_ops_of(NsSite *site)
{
    PyObject *resting = site->ops_resting, *call;
    if (resting == NULL || resting == Py_None || !PyObject_TypeCheck(resting, ops_type))
        return NULL;
    if ((call = PyObject_GetAttr(resting, watched_name)) == NULL)
        return NULL;
    ns_put(&site->call, call);
    site->direct = 0;
    ns_put(&site->ops_seen, Py_NewRef(resting));
    ns_put(&site->ops_resting, Py_NewRef(Py_None));
    return Py_NewRef(site->ops_seen);
}

/* Whether nobody but these operations holds any of the sites in them; how many there are. */
static int
are_unheld(PyObject *sites, Py_ssize_t *count)
{
    PyObject *name, *each, *number, *site;
    for (Py_ssize_t at = 0; PyDict_Next(sites, &at, &name, &each);)
        for (Py_ssize_t of = 0; PyDict_Check(each) && PyDict_Next(each, &of, &number, &site); (*count)++)
            if (Py_REFCNT(site) != 1 || !PyObject_TypeCheck(site, ns_site_type))
                return 0;
    return 1;
}

static void
forget(PyObject *sites)
{
    PyObject *name, *each, *number, *found;
    for (Py_ssize_t at = 0; PyDict_Next(sites, &at, &name, &each);)
        for (Py_ssize_t of = 0; PyDict_Next(each, &of, &number, &found);) {
            NsSite *site = (NsSite *)found;
            site->want_in = site->want_out = site->keep_in = 0;
            site->visits = 0;
            ns_put(&site->call, Py_NewRef(Py_None));
        }
}

int
ns_rest_ops(NsSite *site)
{
    PyObject *seen = site->ops_seen;
    if (!PyObject_TypeCheck(seen, ops_type))
        return 0;
    Ops *ops = (Ops *)seen;
    if (ops->site != (PyObject *)site || ops->around == NULL || ops->record != Py_None || !PyDict_Check(ops->wanted))
        return 0;
    Py_INCREF(seen);
    ns_put(&site->call, Py_NewRef(ops->around)); /* no longer the operations' own */
    site->direct = ops->direct;
    Py_ssize_t count = 0;
    int rests = are_unheld(ops->wanted, &count) && Py_REFCNT(seen) == 2 + count; /* each site in it has it */
    if (rests) {
        forget(ops->wanted);
        PyDict_Clear(ops->counts);
        ns_put(&site->ops_resting, Py_NewRef(seen));
        ns_put(&site->ops_seen, Py_NewRef(Py_None));
    }
    Py_DECREF(seen);
    return rests;
}

static PyObject *
ops_item(Ops *self, PyObject *name)
{
    if (python_calls == NULL)
        return PyErr_Format(PyExc_RuntimeError, "torch's functions have not been bound");
    Calls *calls = (Calls *)PyType_GenericAlloc(python_calls, 0);
    if (calls != NULL) {
        calls->ops = Py_NewRef((PyObject *)self);
        calls->name = Py_NewRef(name);
    }
    return (PyObject *)calls;
}

static PyObject *
calls_item(Calls *self, PyObject *number)
{
    PyObject *sites = NULL, *site = NULL;
    if (PyLong_CheckExact(number) && self->ops != NULL && PyObject_TypeCheck(self->ops, ops_type) &&
        is_ready((Ops *)self->ops))
        sites = PyDict_GetItemWithError(((Ops *)self->ops)->wanted, self->name);
    if (sites != NULL && PyDict_Check(sites))
        site = PyDict_GetItemWithError(sites, number);
    if (site != NULL || PyErr_Occurred())
        return Py_XNewRef(site);
    return PyObject_CallMethodObjArgs((PyObject *)self, find_name, number, NULL);
}

static PyMethodDef methods[] = {
    {"watched", (PyCFunction)(void (*)(void))watched, METH_VARARGS | METH_KEYWORDS,
     "Make the module's call, with its torch functions watched."},
    {"__torch_function__", (PyCFunction)torch_function, METH_VARARGS, "Make one call of a torch function."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    NS_FIELD(Ops, counts), NS_FIELD(Ops, wanted), NS_FIELD(Ops, around), NS_FIELD(Ops, record),
    NS_FIELD(Ops, site),   NS_FLAG(Ops, direct),  {NULL, 0, 0, 0, NULL},
};

static PyMemberDef calls_members[] = {NS_FIELD(Calls, ops), NS_FIELD(Calls, name), {NULL, 0, 0, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_traverse, ops_traverse}, {Py_tp_clear, ops_clear}, {Py_tp_dealloc, ops_dealloc},
    {Py_tp_methods, methods},       {Py_tp_members, members}, {Py_mp_subscript, ops_item},
    {0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_traverse, calls_traverse}, {Py_tp_clear, calls_clear},     {Py_tp_dealloc, calls_dealloc},
    {Py_tp_members, calls_members},   {Py_mp_subscript, calls_item}, {0, NULL},
};

static PyType_Spec spec = {"neuronscope._native.OpsTurns", sizeof(Ops), 0, NS_KIND, slots};
static PyType_Spec calls_spec = {"neuronscope._native.OpCallsTurns", sizeof(Calls), 0, NS_KIND, calls_slots};

int
ns_add_ops(PyObject *module)
{
    if ((watched_name = PyUnicode_InternFromString("watched")) == NULL ||
        (find_name = PyUnicode_InternFromString("_find")) == NULL || (known = PyDict_New()) == NULL ||
        (ops_type = (PyTypeObject *)PyType_FromSpec(&spec)) == NULL ||
        (calls_type = (PyTypeObject *)PyType_FromSpec(&calls_spec)) == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "OpsTurns", (PyObject *)ops_type) < 0
               ? -1
               : PyModule_AddObjectRef(module, "OpCallsTurns", (PyObject *)calls_type);
}
