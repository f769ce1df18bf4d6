/* A slot that was in a module comes back, and rests again: twins of `torch.resting.come_back` and `rest`.  Both
 * run under the slots' lock. */
#include "turns.h"

static PyObject *hidden, *live, *resting, *compiled_key;

/* bind_resting(hidden, live, resting, key of the compiled call) */
PyObject *
ns_bind_resting(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_resting", n, 4))
        return NULL;
    if (!PyList_Check(args[0]) || !PyDict_Check(args[1]) || !PyDict_Check(args[2]) || !PyUnicode_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "bind_resting takes a list, two dictionaries and a name");
    ns_put(&hidden, Py_NewRef(args[0]));
    ns_put(&live, Py_NewRef(args[1]));
    ns_put(&resting, Py_NewRef(args[2]));
    ns_put(&compiled_key, Py_NewRef(args[3]));
    Py_RETURN_NONE;
}

static int
is_nothing(PyObject *value)
{
    return value == NULL || value == Py_None;
}

static int
has_entries(NsSlot *slot)
{
    return slot->entries != NULL && PyDict_Check(slot->entries) && PyDict_Size(slot->entries) > 0;
}

/* The slot's module; None if that is gone. */
static PyObject *
module_of(NsSlot *slot)
{
    if (slot->module == NULL)
        return PyErr_Format(PyExc_AttributeError, "this slot was never made"), NULL;
    return PyObject_CallNoArgs(slot->module);
}

/* Take what rests for a module; NULL without an error: nothing does. */
static PyObject *
taken_up(PyObject *key)
{
    PyObject *slot = PyList_Size(hidden) > 0 ? NULL : PyDict_GetItemWithError(resting, key);
    if (slot == NULL)
        return NULL;
    Py_INCREF(slot);
    if (PyDict_DelItem(resting, key) < 0)
        Py_CLEAR(slot);
    return slot;
}

/* Whether a module's dictionary has none of a slot's names. */
static int
is_free(PyObject *taken, NsSlot *slot)
{
    PyObject *name, *entry;
    int there = PyDict_Contains(taken, compiled_key);
    for (Py_ssize_t at = 0; there == 0 && PyDict_Next(slot->entries, &at, &name, &entry);)
        there = PyDict_Contains(taken, name);
    return there < 0 ? -1 : !there;
}

/* 1: it is in its module again. */
static int
put_in(NsSlot *slot, PyObject *module)
{
    PyObject *owner = module_of(slot);
    Py_XDECREF(owner);
    if (owner != module || slot->kind != (PyObject *)Py_TYPE(module) || !is_nothing(slot->entry) || !has_entries(slot))
        return owner == NULL ? -1 : 0;
    PyObject *taken = PyObject_GenericGetDict(module, NULL);
    if (taken == NULL)
        return -1;
    int done = is_free(taken, slot);
    if (done > 0 && (PyDict_Update(taken, slot->entries) < 0 ||
                     PyDict_SetItem(live, slot->identity, (PyObject *)slot) < 0))
        done = -1;
    Py_DECREF(taken);
    return done;
}

/* come_back(module): its slot, or None. */
PyObject *
ns_come_back(PyObject *Py_UNUSED(self), PyObject *module)
{
    if (resting == NULL)
        return PyErr_Format(PyExc_RuntimeError, "come_back is not bound");
    PyObject *key = PyLong_FromVoidPtr(module);
    if (key == NULL)
        return NULL;
    PyObject *slot = taken_up(key);
    Py_DECREF(key);
    int done = 0;
    if (slot != NULL && PyObject_TypeCheck(slot, ns_slot_type))
        done = put_in((NsSlot *)slot, module);
    if (done <= 0)
        Py_CLEAR(slot);
    return slot != NULL ? slot : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Whether a module's dictionary has all of a slot's entries, and no others by their names. */
static int
is_in(PyObject *taken, NsSlot *slot)
{
    PyObject *name, *entry;
    for (Py_ssize_t at = 0; PyDict_Next(slot->entries, &at, &name, &entry);)
        if (PyDict_GetItemWithError(taken, name) != entry)
            return PyErr_Occurred() ? -1 : 0;
    return 1;
}

static int
take_out(NsSlot *slot, PyObject *taken)
{
    PyObject *name, *entry;
    for (Py_ssize_t at = 0; PyDict_Next(slot->entries, &at, &name, &entry);)
        if (PyDict_DelItem(taken, name) < 0)
            return -1;
    if (PyDict_GetItemWithError(live, slot->identity) != NULL)
        return PyDict_DelItem(live, slot->identity);
    return PyErr_Occurred() ? -1 : 0;
}

static int
rest(NsSlot *slot, PyObject *module)
{
    PyObject *taken = PyObject_GenericGetDict(module, NULL);
    if (taken == NULL)
        return -1;
    int done = is_in(taken, slot);
    if (done > 0 && take_out(slot, taken) < 0)
        done = -1;
    Py_DECREF(taken);
    if (done <= 0)
        return done;
    PyObject *key = PyLong_FromVoidPtr(module);
    if (key == NULL || PyDict_SetItem(resting, key, (PyObject *)slot) < 0)
        done = -1;
    Py_XDECREF(key);
    return done;
}

int
ns_rest_slot(NsSlot *slot)
{
    if (resting == NULL)
        return PyErr_Format(PyExc_RuntimeError, "rest is not bound"), -1;
    if (!is_nothing(slot->below) || !is_nothing(slot->entry) || !has_entries(slot))
        return 0;
    PyObject *module = module_of(slot);
    if (module == NULL)
        return -1;
    int done = module == Py_None ? 0 : rest(slot, module);
    Py_DECREF(module);
    return done;
}

/* rest(slot): whether it was in its module, which is as if it had never been there. */
PyObject *
ns_rest(PyObject *Py_UNUSED(self), PyObject *slot)
{
    if (!PyObject_TypeCheck(slot, ns_slot_type))
        return PyErr_Format(PyExc_TypeError, "rest takes a slot");
    int done = ns_rest_slot((NsSlot *)slot);
    return done < 0 ? NULL : PyBool_FromLong(done);
}
