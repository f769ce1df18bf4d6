/* Keeping a site's outputs: twin of `PlainTakeTurns`. */
#include "turns.h"

typedef struct {
    PyObject_HEAD
    PyObject *kept; /* lists by path */
    char plain;     /* outputs only, neither copied nor moved */
} Take;

static PyTypeObject *take_type;
static PyObject *gradient_name, *version_name, *detach_name;

NS_COLLECTED(Take, take, kept, 1)

/* How often a tensor has been changed in place; a new reference. */
static PyObject *
version_of(PyObject *tensor)
{
    PyObject *version = PyObject_GetAttr(tensor, version_name);
    if (version == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* torch does not count in inference mode */
        PyErr_Clear();
        version = PyLong_FromLong(-1);
    }
    return version;
}

int
ns_take(PyObject *observer, NsSite *site, PyObject *output)
{
    if (!PyObject_TypeCheck(observer, take_type) || !((Take *)observer)->plain || !ns_is_exact(output))
        return 0;
    PyObject *kept = ((Take *)observer)->kept, *run = site->run;
    if (kept == NULL || !PyDict_Check(kept) || site->path == NULL || run == NULL ||
        !PyObject_TypeCheck(run, ns_run_type) || ((NsRun *)run)->inference != Py_False)
        return 0;
    PyObject *list = PyDict_GetItemWithError(kept, site->path);
    if (list == NULL || !PyList_Check(list))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *gradient = PyObject_GetAttr(output, gradient_name);
    Py_XDECREF(gradient);
    if (gradient == NULL)
        return -1;
    PyObject *value = gradient == Py_False ? Py_NewRef(output) : PyObject_CallMethodObjArgs(output, detach_name, NULL);
    PyObject *version = value == NULL ? NULL : version_of(value);
    PyObject *pair = version == NULL ? NULL : PyTuple_Pack(2, value, version);
    Py_XDECREF(value);
    Py_XDECREF(version);
    int done = pair == NULL || PyList_Append(list, pair) < 0 ? -1 : 1;
    Py_XDECREF(pair);
    return done;
}

static PyMemberDef members[] = {NS_FIELD(Take, kept), NS_FLAG(Take, plain), {NULL, 0, 0, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_traverse, take_traverse}, {Py_tp_clear, take_clear}, {Py_tp_dealloc, take_dealloc},
    {Py_tp_members, members},        {0, NULL},
};

static PyType_Spec spec = {"neuronscope._native.TakeTurns", sizeof(Take), 0, NS_KIND, slots};

int
ns_add_takes(PyObject *module)
{
    if ((gradient_name = PyUnicode_InternFromString("requires_grad")) == NULL ||
        (version_name = PyUnicode_InternFromString("_version")) == NULL ||
        (detach_name = PyUnicode_InternFromString("detach")) == NULL)
        return -1;
    take_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return take_type == NULL ? -1 : PyModule_AddObjectRef(module, "TakeTurns", (PyObject *)take_type);
}
