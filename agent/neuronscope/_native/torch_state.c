/* The state of the thread that a model and its body share: twin of `interventions.threadstate.differs`.
 *
 * Asked before every turn, so torch's functions are resolved once and called as the interpreter would. */
#include "turns.h"

/* In the order in which `bind_state` takes them. */
enum { CURRENT, GRAD, INFERENCE, FUNCTIONS, DISPATCH, NEST, UNNEST, FUNCTIONS_ON, HOOKS, TRANSFORM, ENGINE, DYNAMO,
       COUNT };

static Function asked[COUNT];

/* bind_state(function, ...): as many as are listed above. */
PyObject *
ns_bind_state(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_state", n, COUNT))
        return NULL;
    for (int i = 0; i < COUNT; i++)
        if (!PyCallable_Check(args[i]))
            return PyErr_Format(PyExc_TypeError, "bind_state takes functions");
    for (int i = 0; i < COUNT; i++) {
        Py_XDECREF(asked[i].callable);
        asked[i] = ns_resolve(args[i]);
    }
    Py_RETURN_NONE;
}

static PyObject *
glance(int which)
{
    return ns_glance(&asked[which], which == HOOKS ? Py_True : NULL);
}

static int
is_true(int which)
{
    return ns_is_true(&asked[which]);
}

PyObject *
ns_current(void)
{
    return glance(CURRENT);
}

PyObject *
ns_set_dynamo(PyObject *compiler)
{
    return ns_ask(&asked[DYNAMO], compiler);
}

/* Does the thread's state differ from what is plain for this run, or may it not be left now?  -1: failed. */
int
ns_apart(NsRun *run)
{
    PyObject *found = glance(GRAD);
    if (found == NULL)
        return -1;
    if (found != run->grad)
        return 1;
    if ((found = glance(INFERENCE)) == NULL)
        return -1;
    if (found != run->inference)
        return 1;
    int truth;
    if ((truth = is_true(FUNCTIONS)) != 0 || (truth = is_true(DISPATCH)) != 0)
        return truth;
    if ((truth = is_true(NEST)) < 0 || (truth && (truth = is_true(UNNEST)) != 0))
        return truth;
    if ((truth = is_true(FUNCTIONS_ON)) <= 0)
        return truth < 0 ? -1 : 1;
    if ((found = glance(HOOKS)) != Py_None)
        return found == NULL ? -1 : 1;
    if ((truth = is_true(TRANSFORM)) != 0)
        return truth;
    if (run->grad != Py_False) {
        if ((found = ns_ask(&asked[ENGINE], NULL)) == NULL)
            return -1;
        long task = PyLong_AsLong(found);
        Py_DECREF(found);
        if (task == -1 && PyErr_Occurred())
            return -1;
        return task != -1;
    }
    return 0;
}
