/* A traced module's call, on the model's side: the rest of `PlainSiteTurns`. */
#include "turns.h"

/* nn.Module's `_call_impl`, the names of a module's own hooks, those of every module (`bind_calls`), and torch's
 * module whose `_trace_module_map` says that torch.jit wants the names of modules. */
static PyObject *plain_call, *global_hooks, *jit_names, *before_name, *output_name, *forward_name, *map_name;
static PyObject *own_hooks[4];

/* bind_calls(nn.Module._call_impl, global hooks, the namespace of torch.jit._trace) */
PyObject *
ns_bind_calls(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_calls", n, 3))
        return NULL;
    if (!PyTuple_Check(args[1]) || !PyDict_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "bind_calls takes a function, a tuple and a dictionary");
    ns_put(&plain_call, Py_NewRef(args[0]));
    ns_put(&global_hooks, Py_NewRef(args[1]));
    ns_put(&jit_names, Py_NewRef(args[2]));
    Py_RETURN_NONE;
}

static int
is_empty(PyObject *hooks)
{
    return hooks != NULL && PyDict_Check(hooks) && PyDict_Size(hooks) == 0;
}

/* Whether `_call_impl` would do no more than call `forward`. */
static int
has_no_hooks(PyObject *module)
{
    if (PyDict_GetItemWithError(jit_names, map_name) != Py_None)
        return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(global_hooks); i++)
        if (!is_empty(PyTuple_GetItem(global_hooks, i)))
            return 0;
    PyObject *entries = PyObject_GenericGetDict(module, NULL);
    if (entries == NULL)
        return -1;
    int none = 1;
    for (int i = 0; i < 4 && none; i++)
        none = is_empty(PyDict_GetItemWithError(entries, own_hooks[i]));
    Py_DECREF(entries);
    return PyErr_Occurred() ? -1 : none;
}

static PyObject *
call(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    if (callable == NULL)
        return PyErr_Format(PyExc_AttributeError, "this site was not entered");
    Py_INCREF(callable);
    PyObject *found = PyObject_Call(callable, args, kwargs);
    Py_DECREF(callable);
    return found;
}

PyObject *
ns_call_module(NsSite *self, int direct, PyObject *around, PyObject *args, PyObject *kwargs)
{
    if (direct && self->module != NULL && plain_call != NULL) {
        int none = has_no_hooks(self->module);
        if (none < 0)
            return NULL;
        if (none) {
            PyObject *forward = PyObject_GetAttr(self->module, forward_name);
            PyObject *output = forward == NULL ? NULL : PyObject_Call(forward, args, kwargs);
            Py_XDECREF(forward);
            return output;
        }
    }
    return call(around, args, kwargs);
}

/* Wait before a call as the body asked for.  What it is made with replaces `args` and `kwargs`; gives the tuple
 * with what stands for its output, or None: it is made. */
static PyObject *
wait_before(NsSite *self, NsRun *run, PyObject **args, PyObject **kwargs)
{
    if (run->stopped != Py_False && ns_do((PyObject *)self, before_name) < 0)
        return NULL; /* raises: the model ends here */
    PyObject *inputs = PyTuple_Pack(2, *args, *kwargs), *new_args, *new_kwargs, *skipped = NULL;
    if (inputs == NULL)
        return NULL;
    self->want_in = self->keep_in;
    ns_put(&run->at_in, Py_NewRef((PyObject *)self));
    ns_put(&run->value, inputs);
    if (ns_pause(run) < 0)
        return NULL;
    ns_put(&run->at_in, Py_NewRef(Py_None));
    inputs = run->value;
    run->value = Py_NewRef(Py_None);
    if (inputs != NULL && PyArg_ParseTuple(inputs, "O!O", &PyTuple_Type, &new_args, &new_kwargs)) {
        ns_put(args, Py_NewRef(new_args));
        ns_put(kwargs, Py_NewRef(new_kwargs));
        skipped = run->skipped == NULL ? Py_NewRef(Py_None) : run->skipped;
        run->skipped = Py_NewRef(Py_None);
    }
    Py_XDECREF(inputs);
    return skipped;
}

/* Wait after a call; takes the output, gives what the model goes on with. */
static PyObject *
wait_after(NsSite *self, NsRun *run, PyObject *args, PyObject *kwargs, PyObject *output)
{
    PyObject *inputs = PyTuple_Pack(2, args, kwargs);
    if (inputs == NULL) {
        Py_DECREF(output);
        return NULL;
    }
    self->want_out = 0;
    ns_put(&run->at_out, Py_NewRef((PyObject *)self));
    ns_put(&run->inputs, inputs);
    ns_put(&run->value, output);
    if (ns_pause(run) < 0)
        return NULL;
    ns_put(&run->at_out, Py_NewRef(Py_None));
    output = run->value;
    run->value = Py_NewRef(Py_None);
    ns_put(&run->inputs, Py_NewRef(Py_None));
    return output;
}

/* Gives an output through the site's observers; takes it. */
static PyObject *
observed(NsSite *self, PyObject *args, PyObject *kwargs, PyObject *output)
{
    if (self->observers == NULL || !PyTuple_Check(self->observers) || PyTuple_Size(self->observers) == 0)
        return output;
    PyObject *observers = Py_NewRef(self->observers);
    for (Py_ssize_t i = 0; output != NULL && i < PyTuple_Size(observers); i++) {
        PyObject *observer = PyTuple_GetItem(observers, i);
        int taken = ns_take(observer, self, output);
        if (taken == 0) {
            PyObject *next = PyObject_CallMethodObjArgs(observer, output_name, (PyObject *)self, args, kwargs, output,
                                                        NULL);
            Py_DECREF(output);
            output = next;
        }
        else if (taken < 0)
            Py_CLEAR(output);
    }
    Py_DECREF(observers);
    return output;
}

/* One call of the run's own; takes references to the arguments. */
static PyObject *
visit(NsSite *self, NsRun *run, PyObject *args, PyObject *kwargs)
{
    PyObject *skipped = self->want_in ? wait_before(self, run, &args, &kwargs) : Py_NewRef(Py_None);
    PyObject *output = skipped == NULL      ? NULL
                       : skipped == Py_None ? ns_call_module(self, self->direct, self->call, args, kwargs)
                                            : PySequence_GetItem(skipped, 0);
    Py_XDECREF(skipped);
    if (output != NULL) {
        self->visits++;
        output = observed(self, args, kwargs, output);
        if (output != NULL && self->want_out)
            output = wait_after(self, run, args, kwargs, output);
    }
    Py_DECREF(args);
    Py_DECREF(kwargs);
    return output;
}

PyObject *
ns_visit(NsSite *self, PyObject *args, PyObject *kwargs)
{
    PyObject *current = ns_current();
    NsRun *run = current == NULL ? NULL : ns_run_of(self);
    if (run == NULL)
        return NULL;
    PyObject *output = NULL;
    if (current != run->greenlet) /* somebody else's call */
        output = call(self->slot, args, kwargs);
    else {
        PyObject *named = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
        if (named != NULL)
            output = visit(self, run, Py_NewRef(args), named);
    }
    Py_DECREF((PyObject *)run);
    return output;
}

int
ns_visits_ready(void)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&before_name, "_before"},      {&output_name, "output"},
        {&forward_name, "forward"},     {&map_name, "_trace_module_map"},
        {&own_hooks[0], "_backward_hooks"}, {&own_hooks[1], "_backward_pre_hooks"},
        {&own_hooks[2], "_forward_hooks"},  {&own_hooks[3], "_forward_pre_hooks"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    return 0;
}
