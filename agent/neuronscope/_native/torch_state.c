/* The state of the thread that a model and its body share: twin of `interventions.threadstate.differs`.
 *
 * Asked before every turn.  Where `interventions.direct` has found and tried the functions of torch's libraries behind
 * those that Python sees, they are called; else Python's, resolved once and called as the interpreter would. */
#include "turns.h"
#include <string.h>

/* In the order in which `bind_state` takes them. */
enum { CURRENT, GRAD, INFERENCE, FUNCTIONS, DISPATCH, NEST, UNNEST, FUNCTIONS_ON, HOOKS, TRANSFORM, ENGINE, DYNAMO,
       COUNT };

static Function asked[COUNT];

/* torch's own functions, in the order in which `bind_direct` takes them.  None takes the GIL, waits or raises. */
static struct {
    const unsigned char *(*modes)(void);         /* c10::AutogradState */
    int64_t (*functions)(void), (*dispatch)(void); /* lengths of stacks */
    int (*functions_off)(void);
    int (*nest)(void), (*unnest)(void);
    void *const *(*hooks)(void); /* a std::deque */
    _Bool (*included)(uint16_t); /* is a dispatch key in this thread's? */
    int (*task)(void);
} direct;
static uint16_t transform_keys[2];
static int is_direct;

#define MODES 24 /* offset of the modes' byte */
enum { GRAD_BIT = 1, INFERENCE_BIT = 2 };
enum { DEQUE_START = 2, DEQUE_FINISH = 6 }; /* pointers to its first and past its last element */

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

/* bind_direct(addresses of the functions, the keys of functorch's layers); None: Python's again */
PyObject *
ns_bind_direct(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    is_direct = 0;
    if (n == 1 && args[0] == Py_None)
        Py_RETURN_NONE;
    if (!ns_takes("bind_direct", n, 2))
        return NULL;
    void *found[9];
    if (!PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != 9 || !PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != 2)
        return PyErr_Format(PyExc_TypeError, "bind_direct takes nine addresses and two keys");
    for (int i = 0; i < 9; i++)
        if ((found[i] = PyLong_AsVoidPtr(PyTuple_GetItem(args[0], i))) == NULL)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no function at address 0");
    for (int i = 0; i < 2; i++) {
        long key = PyLong_AsLong(PyTuple_GetItem(args[1], i));
        if (key < 0 || key > UINT16_MAX)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no dispatch key");
        transform_keys[i] = (uint16_t)key;
    }
    memcpy(&direct, found, sizeof(found));
    is_direct = 1;
    Py_RETURN_NONE;
}

/* `ns_apart`, of torch's own functions. */
static int
apart(NsRun *run)
{
    unsigned char modes = direct.modes()[MODES];
    if (run->grad != (modes & GRAD_BIT ? Py_True : Py_False) ||
        run->inference != (modes & INFERENCE_BIT ? Py_True : Py_False) || direct.functions() || direct.dispatch())
        return 1;
    direct.nest();
    if (direct.unnest() || direct.functions_off())
        return 1;
    void *const *hooks = direct.hooks();
    return hooks[DEQUE_START] != hooks[DEQUE_FINISH] || direct.included(transform_keys[0]) ||
           direct.included(transform_keys[1]) || (run->grad != Py_False && direct.task() != -1);
}

/* Does the thread's state differ from what is plain for this run, or may it not be left now?  -1: failed. */
int
ns_apart(NsRun *run)
{
    if (is_direct)
        return apart(run);
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
