/* A module in a trace, as its body reads and changes it: the hot half of `Site`, and twin of `PlainSiteTurns`. */
#include "turns.h"

PyTypeObject *ns_site_type;

static PyObject *advance_name, *pause_name, *change_body_name, *assign_name, *assign_input_name, *assign_inputs_name,
    *not_reached_name, *missing_name, *child_name, *first_name;
static PyObject *kind_names[3], *watch_ops_name;

/* The site's run; a new reference. */
NsRun *
ns_run_of(NsSite *self)
{
    if (self->run == NULL || !PyObject_TypeCheck(self->run, ns_run_type)) {
        PyErr_SetString(PyExc_TypeError, "this site has no run");
        return NULL;
    }
    return (NsRun *)Py_NewRef(self->run);
}

/* Let the other side run. */
static int
go(PyObject *way)
{
    PyObject *there = Py_NewRef(way), *done = PyObject_CallNoArgs(there);
    Py_DECREF(there);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The same for the body, which Dynamo shall not compile though it compiles what called the module. */
static int
go_to_body(NsRun *run)
{
    PyObject *type, *error, *trace, *compiler = ns_set_dynamo(Py_None);
    if (compiler == NULL)
        return -1;
    int done = go(run->to_body);
    PyErr_Fetch(&type, &error, &trace);
    PyObject *back = ns_set_dynamo(compiler);
    Py_DECREF(compiler);
    Py_XDECREF(back);
    if (type != NULL) {
        PyErr_Clear();
        PyErr_Restore(type, error, trace);
    }
    return back == NULL ? -1 : done;
}

int
ns_pause(NsRun *run)
{
    int unusual = run->to_body == NULL ? 1 : ns_apart(run);
    if (unusual != 0)
        return unusual < 0 ? -1 : ns_do((PyObject *)run, pause_name);
    return run->dynamo == Py_False ? go(run->to_body) : go_to_body(run);
}

static int
advance(NsRun *run)
{
    int unusual = run->finished != Py_False || run->resume == NULL ? 1 : ns_apart(run);
    if (unusual != 0)
        return unusual < 0 ? -1 : ns_do((PyObject *)run, advance_name);
    return go(run->resume);
}

/* Let the model run until it is where the site wants it (`place`), or raise what `_not_reached` gives. */
static int
reach(NsSite *self, NsRun *run, PyObject **place)
{
    PyObject *current = ns_current(), *error;
    if (current == NULL || (current != run->body && ns_do((PyObject *)run, change_body_name) < 0) || advance(run) < 0)
        return -1;
    if (*place == (PyObject *)self)
        return 0;
    if ((error = PyObject_CallMethodObjArgs((PyObject *)self, not_reached_name, NULL)) != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return -1;
}

/* A field of the run's; a new reference. */
static PyObject *
field(PyObject *value)
{
    return value == NULL ? PyErr_Format(PyExc_AttributeError, "the run has not begun") : Py_NewRef(value);
}

/* --- outputs ------------------------------------------------------------------------------------------ */

static PyObject *
get_output(NsSite *self, void *Py_UNUSED(closure))
{
    NsRun *run = ns_run_of(self);
    if (run == NULL)
        return NULL;
    PyObject *found = NULL;
    if (run->at_out != (PyObject *)self)
        self->want_out = 1;
    if (run->at_out == (PyObject *)self || reach(self, run, &run->at_out) == 0)
        found = field(run->value);
    Py_DECREF((PyObject *)run);
    return found;
}

static int
assign(NsSite *self, PyObject *method, PyObject *old, PyObject *value)
{
    PyObject *set = PyObject_CallMethodObjArgs((PyObject *)self, method, old, value, NULL);
    Py_XDECREF(set);
    return set == NULL ? -1 : 0;
}

/* Whether a tensor can stand for another one without a closer look; nested ones, which have no shape, cannot. */
static int
fits(PyObject *old, PyObject *value)
{
    if (!ns_is_exact(old) || !ns_is_exact(value))
        return 0;
    int same = 1;
    for (int i = 0; i < 3 && same > 0; i++) {
        PyObject *before = PyObject_GetAttr(old, kind_names[i]), *after = PyObject_GetAttr(value, kind_names[i]);
        same = before == NULL || after == NULL ? -1
               : before == after               ? 1
                                               : PyObject_RichCompareBool(before, after, Py_EQ);
        Py_XDECREF(before);
        Py_XDECREF(after);
    }
    if (same < 0 && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        same = 0;
    }
    return same;
}

static int
no_deletion(PyObject *value)
{
    if (value == NULL)
        PyErr_SetString(PyExc_AttributeError, "what a module takes and returns cannot be deleted");
    return value == NULL;
}

static int
set_output(NsSite *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (no_deletion(value))
        return -1;
    PyObject *old = get_output(self, NULL);
    if (old == value || old == NULL) {
        Py_XDECREF(old);
        return old == NULL ? -1 : 0;
    }
    NsRun *run = ns_run_of(self);
    int done = run == NULL ? -1 : run->in_grad_mode == Py_False ? fits(old, value) : 0;
    if (done > 0)
        ns_put(&run->value, Py_NewRef(value));
    else if (done == 0)
        done = assign(self, assign_name, old, value);
    Py_XDECREF((PyObject *)run);
    Py_DECREF(old);
    return done < 0 ? -1 : 0;
}

/* --- inputs ------------------------------------------------------------------------------------------- */

static PyObject *
get_inputs(NsSite *self, void *Py_UNUSED(closure))
{
    NsRun *run = ns_run_of(self);
    if (run == NULL)
        return NULL;
    PyObject *found = NULL;
    if (run->at_in != (PyObject *)self && run->at_out == (PyObject *)self)
        found = field(run->inputs);
    else {
        if (run->at_in != (PyObject *)self)
            self->want_in = 1;
        if (run->at_in == (PyObject *)self || reach(self, run, &run->at_in) == 0)
            found = field(run->value);
    }
    Py_DECREF((PyObject *)run);
    return found;
}

static int
set_inputs(NsSite *self, PyObject *value, void *Py_UNUSED(closure))
{
    return no_deletion(value) ? -1 : assign(self, assign_inputs_name, value, NULL);
}

static PyObject *
get_input(NsSite *self, void *Py_UNUSED(closure))
{
    PyObject *inputs = get_inputs(self, NULL), *found = NULL;
    if (inputs == NULL)
        return NULL;
    PyObject *args = PyTuple_Check(inputs) && PyTuple_Size(inputs) > 0 ? PyTuple_GetItem(inputs, 0) : NULL;
    if (args != NULL && PyTuple_Check(args) && PyTuple_Size(args) > 0)
        found = Py_NewRef(PyTuple_GetItem(args, 0));
    else
        found = PyObject_CallMethodObjArgs((PyObject *)self, first_name, inputs, NULL);
    Py_DECREF(inputs);
    return found;
}

static int
set_input(NsSite *self, PyObject *value, void *Py_UNUSED(closure))
{
    return no_deletion(value) ? -1 : assign(self, assign_input_name, value, NULL);
}

/* --- sites below -------------------------------------------------------------------------------------- */

PyObject *
ns_known(PyObject *run, PyObject *names, PyObject *key)
{
    PyObject *path = names == NULL || !PyDict_Check(names) ? NULL : PyDict_GetItemWithError(names, key);
    return path == NULL ? NULL : ns_found(run, path);
}

PyObject *
ns_attribute(PyObject *self, PyObject *run, PyObject *names, PyObject *name)
{
    PyObject *found = ns_known(run, names, name);
    if (found != NULL || PyErr_Occurred())
        return found;
    found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_CallMethodObjArgs(self, missing_name, name, NULL);
}

static PyObject *
get_attribute(NsSite *self, PyObject *name)
{
    return ns_attribute((PyObject *)self, self->run, self->names, name);
}

static PyObject *
get_item(NsSite *self, PyObject *key)
{
    PyObject *found = PyUnicode_Check(key) || PyLong_CheckExact(key) ? ns_known(self->run, self->names, key) : NULL;
    if (found != NULL || PyErr_Occurred())
        return found;
    return PyObject_CallMethodObjArgs((PyObject *)self, child_name, key, NULL);
}

/* --- the type ----------------------------------------------------------------------------------------- */

NS_COLLECTED(NsSite, site, run, 11)

static PyObject *
get_ops(NsSite *self, void *Py_UNUSED(closure))
{
    if (self->ops_seen != NULL && self->ops_seen != Py_None)
        return Py_NewRef(self->ops_seen);
    PyObject *found = ns_ops_of(self);
    return found != NULL || PyErr_Occurred() ? found
                                             : PyObject_CallMethodObjArgs((PyObject *)self, watch_ops_name, NULL);
}

/* prepare(tree, run, path, module): nothing is asked for yet */
static PyObject *
prepare(NsSite *self, Args args, Py_ssize_t n)
{
    if (!ns_takes("prepare", n, 4))
        return NULL;
    PyObject **given[] = {&self->tree, &self->run, &self->path, &self->module};
    for (int i = 0; i < 4; i++)
        ns_put(given[i], Py_NewRef(args[i]));
    ns_put(&self->names, PyDict_New());
    ns_put(&self->observers, PyTuple_New(0));
    ns_put(&self->ops_seen, Py_NewRef(Py_None));
    ns_put(&self->ops_resting, Py_NewRef(Py_None));
    ns_put(&self->place, Py_NewRef(Py_None));
    ns_put(&self->call, Py_NewRef(Py_None));
    self->want_in = self->want_out = self->keep_in = self->here = self->direct = 0;
    self->visits = 0;
    if (self->names == NULL || self->observers == NULL)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"prepare", (PyCFunction)(void (*)(void))prepare, METH_FASTCALL, "Make the site of a module; nothing is asked for."},
    {"visit", (PyCFunction)(void (*)(void))ns_visit, METH_VARARGS | METH_KEYWORDS,
     "Make one of the module's calls, and wait before and after it as far as the body wants to be there."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    NS_FIELD(NsSite, run),      NS_FIELD(NsSite, call),    NS_FIELD(NsSite, slot),     NS_FIELD(NsSite, observers),
    NS_FIELD(NsSite, path),     NS_FIELD(NsSite, module),  NS_FIELD(NsSite, place),    NS_FIELD(NsSite, tree),
    NS_FIELD(NsSite, names),    NS_FIELD(NsSite, ops_seen), NS_FIELD(NsSite, ops_resting),
    NS_FLAG(NsSite, want_in),  NS_FLAG(NsSite, want_out),
    NS_FLAG(NsSite, keep_in),   NS_FLAG(NsSite, here),     NS_FLAG(NsSite, direct),    NS_NUMBER(NsSite, visits),
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"output", (getter)get_output, (setter)set_output, "What the module returned.", NULL},
    {"inputs", (getter)get_inputs, (setter)set_inputs,
     "The arguments that the module is called with: positional ones, and those by name.", NULL},
    {"input", (getter)get_input, (setter)set_input,
     "The first argument: the first positional one, or else the first by name.", NULL},
    {"ops", (getter)get_ops, NULL, "The torch functions that the module calls; see `Ops`.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_traverse, site_traverse}, {Py_tp_clear, site_clear},   {Py_tp_dealloc, site_dealloc},
    {Py_tp_methods, methods},        {Py_tp_members, members},    {Py_tp_getset, properties},
    {Py_tp_getattro, get_attribute}, {Py_mp_subscript, get_item}, {0, NULL},
};

static PyType_Spec spec = {"neuronscope._native.SiteTurns", sizeof(NsSite), 0, NS_KIND, slots};

int
ns_add_sites(PyObject *module)
{
    struct {
        PyObject **where;
        const char *text;
    } words[] = {
        {&advance_name, "advance"},     {&pause_name, "pause"},
        {&change_body_name, "change_body"}, {&assign_name, "_assign"},
        {&assign_input_name, "_assign_input"}, {&assign_inputs_name, "_assign_inputs"},
        {&not_reached_name, "_not_reached"}, {&missing_name, "_missing"},
        {&child_name, "_child"},        {&first_name, "_first"},
        {&kind_names[0], "dtype"},      {&kind_names[1], "shape"},
        {&kind_names[2], "device"},    {&watch_ops_name, "_watch_ops"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if ((*words[i].where = PyUnicode_InternFromString(words[i].text)) == NULL)
            return -1;
    ns_site_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return ns_site_type == NULL ? -1 : PyModule_AddObjectRef(module, "SiteTurns", (PyObject *)ns_site_type);
}
