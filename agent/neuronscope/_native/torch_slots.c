/* Coming to a module and leaving it: twins of `torch.slots.visit` and `leave`, of `Tree.come_again` and of
 * `Run.release`, for modules that nobody else watches. */
#include "turns.h"

PyTypeObject *ns_slot_type;

static Function acquire, release, leave_others;
static PyObject *hidden, *live, *call_key, *site_class_name, *retire_name, *end_ops_name;

/* bind_slots(lock.acquire, lock.release, leave_others, hidden, live, key of the call) */
PyObject *
ns_bind_slots(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_slots", n, 6))
        return NULL;
    if (!PyList_Check(args[3]) || !PyDict_Check(args[4]) || !PyUnicode_Check(args[5]))
        return PyErr_Format(PyExc_TypeError, "bind_slots takes three functions, a list, a dictionary and a name");
    Function *functions[] = {&acquire, &release, &leave_others};
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(functions[i]->callable);
        *functions[i] = ns_resolve(args[i]);
    }
    ns_put(&hidden, Py_NewRef(args[3]));
    ns_put(&live, Py_NewRef(args[4]));
    ns_put(&call_key, Py_NewRef(args[5]));
    Py_RETURN_NONE;
}

int
ns_lock(void)
{
    if (acquire.callable == NULL)
        return PyErr_Format(PyExc_RuntimeError, "the slots' lock is not bound"), -1;
    PyObject *done = ns_ask(&acquire, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int
ns_unlock(void)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *done = ns_ask(&release, NULL);
    Py_XDECREF(done);
    if (type != NULL) {
        PyErr_Clear();
        PyErr_Restore(type, error, trace);
    }
    return done == NULL ? -1 : 0;
}

/* --- coming ------------------------------------------------------------------------------------------- */

static int
put_in(NsSlot *slot, NsSite *site, NsRun *run, PyObject *module)
{
    PyObject *taken = PyObject_GenericGetDict(module, NULL);
    if (taken == NULL)
        return -1;
    int done = 0;
    if (slot->ready == (PyObject *)site && PyDict_Size(taken) == slot->size && PyList_Size(hidden) == 0 &&
        slot->entries != NULL && PyDict_Check(slot->entries)) {
        ns_put(&slot->visitor, Py_NewRef((PyObject *)site));
        done = PyDict_Update(taken, slot->entries) < 0 ||
                       (run->dynamo != Py_False && PyDict_SetItem(live, slot->identity, (PyObject *)slot) < 0)
                   ? -1
                   : 1;
    }
    Py_DECREF(taken);
    return done;
}

/* What a place says: the module, a slot for it, the path of the one around it, and the way to it. */
enum { MODULE, SLOT, ABOVE, WAY };

/* Whether a module is still where it was found: a dictionary, a key and what is there, for each step. */
static int
leads_there(PyObject *place)
{
    for (Py_ssize_t i = WAY; i + 2 < PyTuple_Size(place); i += 3) {
        PyObject *siblings = PyTuple_GetItem(place, i);
        if (!PyDict_Check(siblings))
            return 0;
        if (PyDict_GetItemWithError(siblings, PyTuple_GetItem(place, i + 1)) != PyTuple_GetItem(place, i + 2))
            return PyErr_Occurred() ? -1 : 0;
    }
    return 1;
}

/* The site of the module that calls another one's, watched as well; None: there is none. */
static int
comes_too(PyObject *run, PyObject *above)
{
    if (above == Py_None)
        return 1;
    PyObject *site = ns_found(run, above);
    Py_XDECREF(site); /* the run has it */
    return site != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
}

/* A site of an earlier run of the handle, in this one: whether all is as it was then. */
static int
come(NsSite *site)
{
    NsRun *run = (NsRun *)site->run;
    PyObject *place = site->place, *tree = site->tree, *module, *slot;
    if (run == NULL || !PyObject_TypeCheck((PyObject *)run, ns_run_type) || run->closed != Py_False ||
        hidden == NULL || tree == NULL || place == NULL || !PyTuple_Check(place) || PyTuple_Size(place) < WAY)
        return 0;
    module = PyTuple_GetItem(place, MODULE);
    slot = PyTuple_GetItem(place, SLOT);
    if (!PyObject_TypeCheck(slot, ns_slot_type) || !PyList_Check(run->present))
        return 0;
    int same = leads_there(place);
    if (same > 0)
        same = comes_too((PyObject *)run, PyTuple_GetItem(place, ABOVE));
    if (same <= 0)
        return same;
    PyObject *kind = PyObject_GetAttr(tree, site_class_name);
    Py_XDECREF(kind); /* the tree has it */
    if (kind != (PyObject *)Py_TYPE((PyObject *)site))
        return kind == NULL ? -1 : 0;
    if (ns_lock() < 0)
        return -1;
    int done = put_in((NsSlot *)slot, site, run, module);
    if (ns_unlock() < 0)
        done = -1;
    if (done <= 0)
        return done;
    site->here = 1;
    return PyList_Append(run->present, (PyObject *)site) < 0 ? -1 : 1;
}

PyObject *
ns_found(PyObject *run, PyObject *path)
{
    if (run == NULL || !PyObject_TypeCheck(run, ns_run_type))
        return NULL;
    PyObject *sites = ((NsRun *)run)->sites;
    PyObject *site = sites == NULL || !PyDict_Check(sites) ? NULL : PyDict_GetItemWithError(sites, path);
    if (site == NULL || !PyObject_TypeCheck(site, ns_site_type))
        return NULL;
    Py_INCREF(site);
    int here = ((NsSite *)site)->here ? 1 : come((NsSite *)site);
    if (here <= 0)
        Py_CLEAR(site);
    return site;
}

/* --- leaving ------------------------------------------------------------------------------------------ */

/* Whether the site had the module to itself, and has left it. */
static int
take_out(NsSlot *slot, NsSite *site)
{
    if (slot->visitor != (PyObject *)site || slot->entries == NULL || !PyDict_Check(slot->entries))
        return 0;
    PyObject *taken = PyObject_GenericGetDict(site->module, NULL), *name, *entry;
    if (taken == NULL)
        return -1;
    int done = 0;
    if (PyDict_Size(taken) == slot->size + PyDict_Size(slot->entries) &&
        PyDict_GetItemWithError(taken, call_key) == slot->entry) {
        ns_put(&slot->visitor, Py_NewRef(Py_None));
        done = 1;
        for (Py_ssize_t at = 0; done > 0 && PyDict_Next(slot->entries, &at, &name, &entry);)
            if (PyDict_DelItem(taken, name) < 0)
                done = -1;
        if (done > 0 && PyDict_Size(live) > 0 && PyDict_GetItemWithError(live, slot->identity) != NULL &&
            PyDict_DelItem(live, slot->identity) < 0)
            done = -1;
    }
    Py_DECREF(taken);
    return PyErr_Occurred() ? -1 : done;
}

static int
leave(PyObject *visitor)
{
    if (!PyObject_TypeCheck(visitor, ns_site_type))
        return PyErr_Format(PyExc_TypeError, "only sites visit modules"), -1;
    NsSite *site = (NsSite *)visitor;
    if (site->slot == NULL || site->module == NULL || !PyObject_TypeCheck(site->slot, ns_slot_type))
        return PyErr_Format(PyExc_AttributeError, "this site was not entered"), -1;
    PyObject *slot = Py_NewRef(site->slot), *module = Py_NewRef(site->module);
    int done = take_out((NsSlot *)slot, site);
    if (done == 0) {
        PyObject *told = PyObject_CallFunctionObjArgs(leave_others.callable, slot, module, visitor, NULL);
        Py_XDECREF(told);
        done = told == NULL ? -1 : 1;
    }
    Py_DECREF(slot);
    Py_DECREF(module);
    return done < 0 ? -1 : 0;
}

/* leave(sites): all of a list leave; idempotent, from any thread. */
PyObject *
ns_leave(PyObject *Py_UNUSED(module), PyObject *visitors)
{
    if (!PyList_Check(visitors) || hidden == NULL)
        return PyErr_Format(PyExc_TypeError, "leave takes a list of sites");
    if (ns_lock() < 0)
        return NULL;
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(visitors); i++) {
        PyObject *visitor = Py_NewRef(PyList_GetItem(visitors, i));
        failed = leave(visitor);
        Py_DECREF(visitor);
    }
    if (ns_unlock() < 0 || failed)
        return NULL;
    Py_RETURN_NONE;
}

/* Whoever refers to a site that has left and that nobody else holds: the run's dictionary and list, its slot, and
 * the method that is its entry. */
#define HOLDERS 4

static int
let_go(NsSite *site)
{
    if (site->ops_seen != NULL && site->ops_seen != Py_None && !ns_rest_ops(site) &&
        ns_do((PyObject *)site, end_ops_name) < 0)
        return -1;
    int resting = site->ops_resting != NULL && site->ops_resting != Py_None; /* they hold the site */
    if (Py_REFCNT((PyObject *)site) <= HOLDERS + resting) {
        site->here = 0;
        site->visits = 0;
        if (site->observers != NULL && PyTuple_Size(site->observers) > 0)
            ns_put(&site->observers, PyTuple_New(0));
        return 1;
    }
    PyObject *kept = Py_NewRef((PyObject *)site);
    int done = ns_do(kept, retire_name);
    Py_DECREF(kept);
    return done;
}

/* release(sites): make sites that have left ready for another run, and retire those that somebody holds; whether
 * there were none of these. */
PyObject *
ns_release(PyObject *Py_UNUSED(module), PyObject *sites)
{
    if (!PyList_Check(sites))
        return PyErr_Format(PyExc_TypeError, "release takes a list of sites");
    int all = 1;
    for (Py_ssize_t i = 0; i < PyList_Size(sites); i++) {
        PyObject *site = PyList_GetItem(sites, i);
        if (!PyObject_TypeCheck(site, ns_site_type))
            return PyErr_Format(PyExc_TypeError, "release takes a list of sites");
        int kept = let_go((NsSite *)site);
        if (kept < 0)
            return NULL;
        all &= kept;
    }
    return PyBool_FromLong(all);
}

/* --- the type ----------------------------------------------------------------------------------------- */

NS_COLLECTED(NsSlot, slot, visitor, 12)

static PyMemberDef members[] = {
    NS_FIELD(NsSlot, visitor), NS_FIELD(NsSlot, ready),    NS_FIELD(NsSlot, entries), NS_FIELD(NsSlot, entry),
    NS_FIELD(NsSlot, identity), NS_FIELD(NsSlot, below), NS_FIELD(NsSlot, kind),    NS_FIELD(NsSlot, module),
    NS_FIELD(NsSlot, observers), NS_FIELD(NsSlot, visitors), NS_FIELD(NsSlot, edits), NS_FIELD(NsSlot, taps),
    NS_NUMBER(NsSlot, size), {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_traverse, slot_traverse}, {Py_tp_clear, slot_clear}, {Py_tp_dealloc, slot_dealloc},
    {Py_tp_members, members},        {0, NULL},
};

static PyType_Spec spec = {"neuronscope._native.SlotTurns", sizeof(NsSlot), 0, NS_KIND, slots};

int
ns_add_slots(PyObject *module)
{
    if ((site_class_name = PyUnicode_InternFromString("site_class")) == NULL ||
        (retire_name = PyUnicode_InternFromString("retire")) == NULL ||
        (end_ops_name = PyUnicode_InternFromString("end_ops")) == NULL)
        return -1;
    ns_slot_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return ns_slot_type == NULL ? -1 : PyModule_AddObjectRef(module, "SlotTurns", (PyObject *)ns_slot_type);
}
