/* Functions of torch's, resolved once and called as the interpreter would call them. */
#ifndef NEURONSCOPE_TORCH_H
#define NEURONSCOPE_TORCH_H

#include "native.h"

typedef PyObject *(*NsFast)(PyObject *self, Args args, Py_ssize_t n);
typedef PyObject *(*NsFastNamed)(PyObject *self, Args args, Py_ssize_t n, PyObject *names);
typedef PyObject *(*NsNamed)(PyObject *self, PyObject *args, PyObject *kwargs);

typedef struct {
    PyObject *callable, *self; /* `callable` is held for good */
    PyCFunction function;
    int flags;
} Function;

static inline Function
ns_resolve(PyObject *callable)
{
    Function found = {.callable = Py_NewRef(callable), .flags = -1};
    if (PyCFunction_CheckExact(callable)) {
        found.flags = PyCFunction_GetFlags(callable) & ~(METH_CLASS | METH_STATIC | METH_COEXIST);
        found.function = PyCFunction_GetFunction(callable);
        found.self = PyCFunction_GetSelf(callable);
    }
    return found;
}

/* Call it with one argument, or with none: NULL. */
static inline PyObject *
ns_ask(const Function *which, PyObject *argument)
{
    Py_ssize_t n = argument != NULL;
    switch (which->flags) {
    case METH_NOARGS:
    case METH_O:
        if ((which->flags == METH_O) == n)
            return which->function(which->self, argument);
        break;
    case METH_FASTCALL:
        return ((NsFast)(void (*)(void))which->function)(which->self, &argument, n);
    case METH_FASTCALL | METH_KEYWORDS:
        return ((NsFastNamed)(void (*)(void))which->function)(which->self, &argument, n, NULL);
    default:
        break;
    }
    if (which->callable == NULL)
        return PyErr_Format(PyExc_RuntimeError, "torch's functions have not been bound");
    PyObject *args = n ? PyTuple_Pack(1, argument) : PyTuple_New(0), *found;
    if (args == NULL)
        return NULL;
    if (which->flags == METH_VARARGS)
        found = which->function(which->self, args);
    else if (which->flags == (METH_VARARGS | METH_KEYWORDS))
        found = ((NsNamed)(void (*)(void))which->function)(which->self, args, NULL);
    else
        found = PyObject_Call(which->callable, args, NULL);
    Py_DECREF(args);
    return found;
}

/* What it returned, without owning it: True, False, None, or what lives on elsewhere. */
static inline PyObject *
ns_glance(const Function *which, PyObject *argument)
{
    PyObject *found = ns_ask(which, argument);
    Py_XDECREF(found);
    return found;
}

static inline int
ns_is_true(const Function *which)
{
    PyObject *found = ns_ask(which, NULL);
    if (found == NULL)
        return -1;
    int truth = found == Py_True ? 1 : found == Py_False || found == Py_None ? 0 : PyObject_IsTrue(found);
    Py_DECREF(found);
    return truth;
}

#endif
