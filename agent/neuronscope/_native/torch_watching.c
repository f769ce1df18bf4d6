/* Watching a module, and no longer: twins of `torch.slots.watch` and `unwatch`. */
#include "turns.h"

static PyObject *joined, *observer_class, *runtime, *undo_name, *leave_name;

/* bind_watching(joined, class of observers, the runtime's name) */
PyObject *
ns_bind_watching(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_watching", n, 3))
        return NULL;
    if (!PyCallable_Check(args[0]) || !PyType_Check(args[1]) || !PyUnicode_Check(args[2]) ||
        !PyType_IsSubtype((PyTypeObject *)args[1], ns_observer_type))
        return PyErr_Format(PyExc_TypeError, "bind_watching takes a function, a class of observers and a name");
    if ((undo_name == NULL && (undo_name = PyUnicode_InternFromString("undo")) == NULL) ||
        (leave_name == NULL && (leave_name = PyUnicode_InternFromString("leave_if_unwanted")) == NULL))
        return NULL;
    ns_put(&joined, Py_NewRef(args[0]));
    ns_put(&observer_class, Py_NewRef(args[1]));
    ns_put(&runtime, Py_NewRef(args[2]));
    Py_RETURN_NONE;
}

static int
is_bound(void)
{
    if (joined == NULL)
        PyErr_SetString(PyExc_RuntimeError, "watching is not bound");
    return joined != NULL;
}

/* One more observer at the end; a running forward keeps the tuple that it has. */
static int
add(NsSlot *slot, PyObject *observer)
{
    PyObject *before = slot->observers;
    if (before == NULL || !PyTuple_Check(before))
        return PyErr_Format(PyExc_AttributeError, "this slot was never made"), -1;
    Py_ssize_t count = PyTuple_Size(before);
    PyObject *now = PyTuple_New(count + 1);
    if (now == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SetItem(now, i, Py_NewRef(PyTuple_GetItem(before, i)));
    PyTuple_SetItem(now, count, Py_NewRef(observer));
    ns_put(&slot->observers, now);
    return 0;
}

static PyObject *
watch(PyObject *module, PyObject *callback)
{
    PyObject *slot = ns_come_back(NULL, module);
    if (slot == Py_None) {
        Py_DECREF(slot);
        slot = PyObject_CallFunctionObjArgs(joined, module, NULL);
    }
    if (slot == NULL)
        return NULL;
    PyObject *observer = NULL;
    if (!PyObject_TypeCheck(slot, ns_slot_type))
        PyErr_SetString(PyExc_TypeError, "watch takes a module");
    else
        observer = PyObject_CallFunctionObjArgs(observer_class, slot, callback, runtime, NULL);
    if (observer != NULL && add((NsSlot *)slot, observer) < 0)
        Py_CLEAR(observer);
    Py_DECREF(slot);
    return observer;
}

/* watch(module, callback): the observer. */
PyObject *
ns_watch(PyObject *Py_UNUSED(self), Args args, Py_ssize_t n)
{
    if (!ns_takes("watch", n, 2) || !is_bound() || ns_lock() < 0)
        return NULL;
    PyObject *observer = watch(args[0], args[1]);
    if (ns_unlock() < 0)
        Py_CLEAR(observer);
    return observer;
}

static int
is_empty(PyObject *some)
{
    return some != NULL && (PyTuple_Check(some) ? PyTuple_Size(some) : PyDict_Check(some) ? PyDict_Size(some) : 1) == 0;
}

/* Whether nobody else is there. */
static int
is_alone(NsSlot *slot, PyObject *observer)
{
    return slot->observers != NULL && PyTuple_Check(slot->observers) && PyTuple_Size(slot->observers) == 1 &&
           PyTuple_GetItem(slot->observers, 0) == observer && slot->visitor == Py_None && is_empty(slot->visitors) &&
           is_empty(slot->edits) && is_empty(slot->taps);
}

static int
unwatch(NsObserver *observer)
{
    if (!observer->active)
        return 0;
    if (observer->slot == NULL || !PyObject_TypeCheck(observer->slot, ns_slot_type) ||
        !is_alone((NsSlot *)observer->slot, (PyObject *)observer))
        return ns_do((PyObject *)observer, undo_name);
    PyObject *nobody = PyTuple_New(0);
    if (nobody == NULL)
        return -1;
    NsSlot *slot = (NsSlot *)Py_NewRef(observer->slot);
    observer->active = 0;
    ns_put(&slot->observers, nobody);
    int done = ns_rest_slot(slot);
    if (done == 0)
        done = ns_do((PyObject *)slot, leave_name);
    Py_DECREF((PyObject *)slot);
    return done < 0 ? -1 : 0;
}

/* unwatch(observer): idempotent, from any thread. */
PyObject *
ns_unwatch(PyObject *Py_UNUSED(self), PyObject *observer)
{
    if (!PyObject_TypeCheck(observer, ns_observer_type))
        return PyErr_Format(PyExc_TypeError, "unwatch takes an observer");
    if (!is_bound() || ns_lock() < 0)
        return NULL;
    int done = unwatch((NsObserver *)observer);
    if (ns_unlock() < 0 || done < 0)
        return NULL;
    Py_RETURN_NONE;
}
