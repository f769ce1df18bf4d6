/* Facts of a call: fields that become attributes as they are, and small readings of foreign values.  Twins of
 * `engine.facts` and `neuronscope_instrumentation.common.fields`. */
#include "native.h"

/* add_fields(attributes, facts, table): each field that is not None becomes an attribute.
 *
 * table: field, key, field, key, … */
PyObject *
ns_add_fields(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("add_fields", n, 3))
        return NULL;
    if (!PyDict_Check(args[0]) || !PyTuple_Check(args[2]) || PyTuple_Size(args[2]) % 2 != 0)
        return PyErr_Format(PyExc_TypeError, "add_fields takes a dictionary, facts, and pairs");
    for (Py_ssize_t i = 0; i < PyTuple_Size(args[2]); i += 2) {
        PyObject *value = PyObject_GetAttr(args[1], PyTuple_GetItem(args[2], i));
        if (value == NULL)
            return NULL;
        int done = value == Py_None ? 0 : PyDict_SetItem(args[0], PyTuple_GetItem(args[2], i + 1), value);
        Py_DECREF(value);
        if (done < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

/* text(value) -> a string that is not empty, or None */
PyObject *
ns_text_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (PyUnicode_Check(value)) {
        int full = PyUnicode_CheckExact(value) ? PyUnicode_GetLength(value) > 0 : PyObject_IsTrue(value);
        if (full < 0)
            return NULL;
        if (full)
            return Py_NewRef(value);
    }
    Py_RETURN_NONE;
}

/* number(value) -> an int or a float, or None; booleans are neither */
PyObject *
ns_number_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    if ((PyFloat_Check(value) || PyLong_Check(value)) && value != Py_True && value != Py_False)
        return Py_NewRef(value);
    Py_RETURN_NONE;
}

/* count(value) -> an int, or None; booleans are none */
PyObject *
ns_count_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (PyLong_Check(value) && value != Py_True && value != Py_False)
        return Py_NewRef(value);
    Py_RETURN_NONE;
}

/* items(value) -> a list or tuple as it is, or () */
PyObject *
ns_items_of(PyObject *Py_UNUSED(module), PyObject *value)
{
    return PyList_Check(value) || PyTuple_Check(value) ? Py_NewRef(value) : PyTuple_New(0);
}

/* --- fields of foreign objects ----------------------------------------------------------------------- */

/* Which classes are pydantic's, by their addresses; they are held, so that no other class gets the same. */
enum { CLASSES = 128 };
static struct {
    PyTypeObject *type;
    int is_model;
} seen[CLASSES];
static PyObject *fields_name, *extra_name;

int
ns_facts_ready(void)
{
    fields_name = PyUnicode_InternFromString("__pydantic_fields__");
    extra_name = PyUnicode_InternFromString("__pydantic_extra__");
    return fields_name == NULL || extra_name == NULL ? -1 : 0;
}

static int
has(PyObject *type, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(type, name);
    if (found == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(found);
    return 1;
}

/* Is this a class of pydantic's, whose objects keep fields in their dictionary, and others in `extra`? */
static int
is_model(PyTypeObject *type)
{
    size_t place = ((uintptr_t)type >> 5) % CLASSES;
    if (seen[place].type == type)
        return seen[place].is_model;
    int is = has((PyObject *)type, fields_name);
    if (is == 1)
        is = has((PyObject *)type, extra_name);
    if (is >= 0) {
        PyTypeObject *before = seen[place].type;
        seen[place].is_model = is;
        seen[place].type = (PyTypeObject *)Py_NewRef((PyObject *)type);
        Py_XDECREF((PyObject *)before); /* last: it may run Python code */
    }
    return is;
}

/* What a model of pydantic's keeps besides its fields; a slot, found without its own `__getattr__`. */
static PyObject *
extra_of(PyObject *value)
{
    PyObject *extra = PyObject_GenericGetAttr(value, extra_name);
    if (extra == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        extra = PyObject_GetAttr(value, extra_name);
    }
    return extra;
}

/* fields(value) -> a mapping of a parsed object's fields; the twin is for objects of other kinds. */
PyObject *
ns_fields(PyObject *twin, PyObject *value)
{
    if (PyDict_CheckExact(value))
        return Py_NewRef(value);
    if (value == Py_None)
        return PyDict_New();
    int is = is_model(Py_TYPE(value));
    if (is < 0)
        return NULL;
    if (!is)
        return PyObject_CallFunctionObjArgs(twin, value, NULL);
    PyObject *extra = extra_of(value);
    if (extra == NULL)
        return NULL;
    PyObject *own = PyObject_GenericGetDict(value, NULL);
    int more = own == NULL ? -1 : extra == Py_None ? 0 : PyObject_IsTrue(extra);
    if (more > 0) {
        PyObject *both = PyDict_Copy(own);
        if (both != NULL && PyDict_Update(both, extra) < 0)
            Py_CLEAR(both);
        Py_DECREF(own);
        own = both;
    } else if (more < 0) {
        Py_CLEAR(own);
    }
    Py_DECREF(extra);
    return own;
}

static PyMethodDef fields_function = {"fields", ns_fields, METH_O, NULL};

/* make_fields(twin) -> `fields` with this twin */
PyObject *
ns_make_fields(PyObject *Py_UNUSED(module), PyObject *twin)
{
    return PyCFunction_New(&fields_function, twin);
}

/* subset(told, names) -> a dictionary of those that are told; names: a frozenset */
PyObject *
ns_subset(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("subset", n, 2))
        return NULL;
    if (!PyAnySet_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "subset takes a mapping and a set");
    PyObject *told = args[0], *found = PyDict_New(), *key, *value;
    if (found == NULL)
        return NULL;
    int is = 0;
    if (PyDict_CheckExact(told)) {
        Py_INCREF(told);
    } else {
        told = PyDict_New();
        if (told == NULL || PyDict_Update(told, args[0]) < 0)
            is = -1;
    }
    Py_ssize_t at = 0;
    while (is >= 0 && PyDict_Next(told, &at, &key, &value)) {
        Py_INCREF(key);
        Py_INCREF(value);
        is = PySet_Contains(args[1], key);
        if (is > 0)
            is = PyDict_SetItem(found, key, value);
        Py_DECREF(key);
        Py_DECREF(value);
    }
    Py_XDECREF(told);
    if (is < 0)
        Py_CLEAR(found);
    return found;
}
