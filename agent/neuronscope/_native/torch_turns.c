/* Turns between a traced model and its body: twins of `interventions.turning` in Python.
 *
 * A visited module takes two turns, and before each torch is asked ten times about the state of the thread.
 * Its functions are resolved once, by `bind_turns`, and called as the interpreter would call them. */
#include "torch.h"
#include <structmember.h>

/* --- torch's functions -------------------------------------------------------------------------------- */

/* In the order in which `bind_turns` takes them. */
enum { CURRENT, GRAD, INFERENCE, FUNCTIONS, DISPATCH, NEST, UNNEST, FUNCTIONS_ON, HOOKS, TRANSFORM, ENGINE, COUNT };

static Function asked[COUNT];
static PyObject *advance_name, *pause_name, *change_body_name, *before_name, *not_reached_name, *assign_name,
    *output_name;

/* bind_turns(function, ...): as many as are listed above. */
PyObject *
ns_bind_turns(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_turns", n, COUNT))
        return NULL;
    for (int i = 0; i < COUNT; i++)
        if (!PyCallable_Check(args[i]))
            return PyErr_Format(PyExc_TypeError, "bind_turns takes functions");
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

/* --- runs --------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *at_in, *at_out, *value, *inputs;   /* where the model waits, and with what */
    PyObject *greenlet, *body, *resume, *to_body; /* the two sides, and the ways to them */
    PyObject *grad, *inference, *finished, *dynamo;
} Run;

#define RUN_FIELDS 12
#define FIELDS(run) (&(run)->at_in)

static int
run_traverse(Run *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (int i = 0; i < RUN_FIELDS; i++)
        Py_VISIT(FIELDS(self)[i]);
    return 0;
}

static int
run_clear(Run *self)
{
    for (int i = 0; i < RUN_FIELDS; i++)
        Py_CLEAR(FIELDS(self)[i]);
    return 0;
}

static void
run_dealloc(Run *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    run_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

static void
put(PyObject **field, PyObject *value) /* takes the reference */
{
    PyObject *before = *field;
    *field = value;
    Py_XDECREF(before);
}

/* Does the thread's state differ from what is plain for this run, or may it not be left now?  -1: failed. */
static int
apart(Run *run)
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

static PyObject *
run_apart(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    int truth = apart((Run *)self);
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

static PyMethodDef run_methods[] = {
    {"apart", run_apart, METH_NOARGS, "Must the thread's state be looked at more closely before a turn?"},
    {NULL, NULL, 0, NULL},
};

#define FIELD(kind, name) {#name, T_OBJECT_EX, offsetof(kind, name), 0, NULL}
static PyMemberDef run_members[] = {
    FIELD(Run, at_in),    FIELD(Run, at_out), FIELD(Run, value),  FIELD(Run, inputs),
    FIELD(Run, greenlet), FIELD(Run, body),   FIELD(Run, resume), FIELD(Run, to_body),
    FIELD(Run, grad),     FIELD(Run, inference), FIELD(Run, finished), FIELD(Run, dynamo),
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject *run_type;

/* --- sites -------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *run, *call, *slot, *observers;
    char want_in, want_out;
    Py_ssize_t visits;
} Site;

static int
site_traverse(Site *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->run);
    Py_VISIT(self->call);
    Py_VISIT(self->slot);
    Py_VISIT(self->observers);
    return 0;
}

static int
site_clear(Site *self)
{
    Py_CLEAR(self->run);
    Py_CLEAR(self->call);
    Py_CLEAR(self->slot);
    Py_CLEAR(self->observers);
    return 0;
}

static void
site_dealloc(Site *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    site_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* The site's run; a new reference. */
static Run *
run_of(Site *self)
{
    if (self->run == NULL || !PyObject_TypeCheck(self->run, run_type)) {
        PyErr_SetString(PyExc_TypeError, "this site has no run");
        return NULL;
    }
    return (Run *)Py_NewRef(self->run);
}

static int
run_method(Run *run, PyObject *name)
{
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)run, name, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The other side's turn; `slow` is the run's method for what is unusual. */
static int
take_turn(Run *run, PyObject **way, PyObject *flag, PyObject *slow)
{
    int unusual = flag == Py_False ? apart(run) : 1;
    if (unusual < 0)
        return -1;
    if (unusual || *way == NULL)
        return run_method(run, slow);
    PyObject *there = Py_NewRef(*way), *done = PyObject_CallNoArgs(there);
    Py_DECREF(there);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* What `run.value` is; a new reference. */
static PyObject *
value_of(Run *run)
{
    if (run->value == NULL)
        return PyErr_Format(PyExc_AttributeError, "the run has not begun");
    return Py_NewRef(run->value);
}

static PyObject *
site_get_output(Site *self, void *Py_UNUSED(closure))
{
    Run *run = run_of(self);
    if (run == NULL)
        return NULL;
    PyObject *found = NULL;
    if (run->at_out != (PyObject *)self) {
        self->want_out = 1;
        PyObject *current = glance(CURRENT); /* it runs: it lives */
        if (current == NULL || (current != run->body && run_method(run, change_body_name) < 0) ||
            take_turn(run, &run->resume, run->finished, advance_name) < 0)
            goto done;
        if (run->at_out != (PyObject *)self) {
            PyObject *error = PyObject_CallMethodObjArgs((PyObject *)self, not_reached_name, NULL);
            if (error != NULL)
                PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_XDECREF(error);
            goto done;
        }
    }
    found = value_of(run);
done:
    Py_DECREF((PyObject *)run);
    return found;
}

static int
site_set_output(Site *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "an output cannot be deleted");
        return -1;
    }
    Run *run = run_of(self);
    if (run == NULL)
        return -1;
    PyObject *old = run->at_out == (PyObject *)self ? value_of(run) : site_get_output(self, NULL);
    int done = old == NULL ? -1 : 0;
    if (old != NULL && old != value) {
        PyObject *set = PyObject_CallMethodObjArgs((PyObject *)self, assign_name, old, value, NULL);
        done = set == NULL ? -1 : 0;
        Py_XDECREF(set);
    }
    Py_XDECREF(old);
    Py_DECREF((PyObject *)run);
    return done;
}

/* Waits after a call as the body asked for; takes the output, gives what the model goes on with. */
static PyObject *
wait_after(Site *self, PyObject *args, PyObject *kwargs, PyObject *output)
{
    Run *run = run_of(self);
    PyObject *inputs = run == NULL ? NULL : PyTuple_Pack(2, args, kwargs);
    if (inputs == NULL) {
        Py_XDECREF((PyObject *)run);
        Py_DECREF(output);
        return NULL;
    }
    self->want_out = 0;
    put(&run->at_out, Py_NewRef((PyObject *)self));
    put(&run->inputs, inputs);
    put(&run->value, output);
    output = NULL;
    if (take_turn(run, &run->to_body, run->dynamo, pause_name) == 0) {
        put(&run->at_out, Py_NewRef(Py_None));
        output = value_of(run);
        if (output != NULL) {
            put(&run->value, Py_NewRef(Py_None));
            put(&run->inputs, Py_NewRef(Py_None));
        }
    }
    Py_DECREF((PyObject *)run);
    return output;
}

/* Gives an output through the site's observers; takes it. */
static PyObject *
observed(Site *self, PyObject *args, PyObject *kwargs, PyObject *output)
{
    PyObject *observers = Py_NewRef(self->observers);
    for (Py_ssize_t i = 0; output != NULL && i < PyTuple_Size(observers); i++) {
        PyObject *next = PyObject_CallMethodObjArgs(
            PyTuple_GetItem(observers, i), output_name, (PyObject *)self, args, kwargs, output, NULL);
        Py_DECREF(output);
        output = next;
    }
    Py_DECREF(observers);
    return output;
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

static PyObject *
site_visit(Site *self, PyObject *args, PyObject *kwargs)
{
    PyObject *current = glance(CURRENT);
    Run *run = current == NULL ? NULL : run_of(self);
    if (run == NULL)
        return NULL;
    int ours = current == run->greenlet;
    Py_DECREF((PyObject *)run);
    if (!ours)
        return call(self->slot, args, kwargs);
    PyObject *output = NULL, *named = kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs);
    if (named == NULL)
        return NULL;
    Py_INCREF(args);
    if (self->want_in) {
        PyObject *changed = PyObject_CallMethodObjArgs((PyObject *)self, before_name, args, named, NULL);
        PyObject *skipped;
        PyObject *new_args, *new_named;
        int read = changed != NULL && PyArg_ParseTuple(changed, "O!OO", &PyTuple_Type, &new_args, &new_named, &skipped);
        if (read) {
            Py_INCREF(new_args);
            put(&args, new_args);
            Py_INCREF(new_named);
            put(&named, new_named);
            if (skipped == Py_None)
                output = call(self->call, args, named);
            else if ((output = PySequence_GetItem(skipped, 0)) == NULL)
                read = 0;
        }
        Py_XDECREF(changed);
    }
    else
        output = call(self->call, args, named);
    if (output != NULL) {
        self->visits++;
        if (self->observers != NULL && PyTuple_Check(self->observers) && PyTuple_Size(self->observers) > 0)
            output = observed(self, args, named, output);
        if (output != NULL && self->want_out)
            output = wait_after(self, args, named, output);
    }
    Py_DECREF(args);
    Py_DECREF(named);
    return output;
}

static PyMethodDef site_methods[] = {
    {"visit", (PyCFunction)(void (*)(void))site_visit, METH_VARARGS | METH_KEYWORDS,
     "Make one of the module's calls, and wait before and after it as far as the body wants to be there."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef site_members[] = {
    FIELD(Site, run),
    FIELD(Site, call),
    FIELD(Site, slot),
    FIELD(Site, observers),
    {"want_in", T_BOOL, offsetof(Site, want_in), 0, NULL},
    {"want_out", T_BOOL, offsetof(Site, want_out), 0, NULL},
    {"visits", T_PYSSIZET, offsetof(Site, visits), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef site_properties[] = {
    {"output", (getter)site_get_output, (setter)site_set_output, "What the module returned.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot run_slots[] = {
    {Py_tp_traverse, run_traverse}, {Py_tp_clear, run_clear},     {Py_tp_dealloc, run_dealloc},
    {Py_tp_methods, run_methods},   {Py_tp_members, run_members}, {0, NULL},
};

static PyType_Slot site_slots[] = {
    {Py_tp_traverse, site_traverse},  {Py_tp_clear, site_clear},     {Py_tp_dealloc, site_dealloc},
    {Py_tp_methods, site_methods},    {Py_tp_members, site_members}, {Py_tp_getset, site_properties},
    {0, NULL},
};

#define KIND (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC)
static PyType_Spec run_spec = {"neuronscope._native.RunTurns", sizeof(Run), 0, KIND, run_slots};
static PyType_Spec site_spec = {"neuronscope._native.SiteTurns", sizeof(Site), 0, KIND, site_slots};

int
ns_add_turns(PyObject *module)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&advance_name, "advance"},           {&pause_name, "pause"},   {&change_body_name, "change_body"},
        {&before_name, "_before"},            {&assign_name, "_assign"}, {&output_name, "output"},
        {&not_reached_name, "_not_reached"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    run_type = (PyTypeObject *)PyType_FromSpec(&run_spec);
    PyObject *site_type = PyType_FromSpec(&site_spec);
    int done = run_type == NULL || site_type == NULL ? -1
               : PyModule_AddObjectRef(module, "RunTurns", (PyObject *)run_type) < 0 ||
                       PyModule_AddObjectRef(module, "SiteTurns", site_type) < 0
                   ? -1
                   : 0;
    Py_XDECREF(site_type);
    return done;
}
