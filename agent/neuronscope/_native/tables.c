/* Many facts at once, by tables: twins of `neuronscope_instrumentation.common.fields`. */
#include "native.h"

enum { ANY, TEXT, COUNT, NUMBER, SOME, TRUTH, INTO, ONE, TEXTS, FLAG, CONSTANT, ODD, RARE, KINDS };

/* Whether a value is of this kind; -1 with an exception. */
static int
passes(PyObject *value, long kind)
{
    switch (kind) {
    case TEXT:
        if (!PyUnicode_Check(value))
            return 0;
        return PyUnicode_CheckExact(value) ? PyUnicode_GetLength(value) > 0 : PyObject_IsTrue(value);
    case COUNT:
        return PyLong_Check(value) && value != Py_True && value != Py_False;
    case NUMBER:
        return (PyFloat_Check(value) || PyLong_Check(value)) && value != Py_True && value != Py_False;
    case SOME:
        return passes(value, COUNT) ? PyObject_IsTrue(value) : 0;
    case TRUTH:
        return PyObject_IsTrue(value);
    default:
        return value != Py_None;
    }
}

static int pick_into(PyObject *twin, PyObject *found, PyObject *told, PyObject *table);

/* Add one fact, if it is told; `called` is a table where its fields are wanted. */
static int
pick_one(PyObject *twin, PyObject *found, PyObject *value, PyObject *called, long kind)
{
    if (kind == INTO) {
        PyObject *own = value == Py_None ? NULL : ns_fields(twin, value);
        int done = own == NULL ? (PyErr_Occurred() ? -1 : 0) : pick_into(twin, found, own, called);
        Py_XDECREF(own);
        return done;
    }
    if (kind < 0 || kind > INTO) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "pick has no such kind of facts");
        return -1;
    }
    int is = passes(value, kind);
    return is > 0 ? PyDict_SetItem(found, called, kind == TRUTH ? Py_True : value) : is;
}

static int
pick_into(PyObject *twin, PyObject *found, PyObject *told, PyObject *table)
{
    if (!PyTuple_Check(table) || PyTuple_Size(table) % 3 != 0) {
        PyErr_SetString(PyExc_TypeError, "pick takes a mapping and a table");
        return -1;
    }
    int done = 0;
    for (Py_ssize_t i = 0; done >= 0 && i < PyTuple_Size(table); i += 3) {
        PyObject *value, *name = PyTuple_GetItem(table, i);
        if (PyDict_CheckExact(told)) {
            value = PyDict_GetItemWithError(told, name);
            if (value == NULL && !PyErr_Occurred())
                continue;
            Py_XINCREF(value);
        } else {
            value = PyObject_CallMethod(told, "get", "O", name);
        }
        long kind = PyLong_AsLong(PyTuple_GetItem(table, i + 2));
        done = value == NULL ? -1 : pick_one(twin, found, value, PyTuple_GetItem(table, i + 1), kind);
        Py_XDECREF(value);
    }
    return done;
}

/* pick(told, table) -> those facts that are told, and of the kind they should be
 *
 * table: name, what it is called among the facts, kind, name, …; told: a mapping.  Of the kind INTO is what has
 * fields itself: a table of them is in the place of what it is called. */
static PyObject *
pick(PyObject *twin, Args args, Py_ssize_t n)
{
    if (!ns_takes("pick", n, 2))
        return NULL;
    PyObject *found = PyDict_New();
    if (found != NULL && pick_into(twin, found, args[0], args[1]) < 0)
        Py_CLEAR(found);
    return found;
}

static PyMethodDef pick_function = {"pick", (PyCFunction)(void (*)(void))pick, METH_FASTCALL, NULL};

/* make_pick(twin) -> `pick` with this twin of `fields` */
PyObject *
ns_make_pick(PyObject *Py_UNUSED(module), PyObject *twin)
{
    return PyCFunction_New(&pick_function, twin);
}

/* --- facts told as attributes ------------------------------------------------------------------------ */

/* A table, taken apart once. */
typedef struct Table Table;
typedef struct {
    PyObject *name, *called; /* `called` is NULL where there is `inner` */
    Table *inner;
    long kind;
} Row;
struct Table {
    Py_ssize_t size;
    Row rows[1];
};

static void
forget(Table *table)
{
    if (table == NULL)
        return;
    for (Py_ssize_t i = 0; i < table->size; i++) {
        Py_XDECREF(table->rows[i].name);
        Py_XDECREF(table->rows[i].called);
        forget(table->rows[i].inner);
    }
    PyMem_Free(table);
}

static Table *
take_apart(PyObject *given)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) % 3 != 0) {
        PyErr_SetString(PyExc_TypeError, "a table is a tuple of triples");
        return NULL;
    }
    if (Py_EnterRecursiveCall(" in a table"))
        return NULL;
    Py_ssize_t size = PyTuple_Size(given) / 3;
    Table *table = PyMem_Calloc(1, sizeof(Table) + (size_t)size * sizeof(Row));
    if (table == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; table != NULL && i < size; i++) {
        Row *row = &table->rows[i];
        table->size = i + 1;
        PyObject *called = PyTuple_GetItem(given, 3 * i + 1);
        row->name = Py_NewRef(PyTuple_GetItem(given, 3 * i));
        row->kind = PyLong_AsLong(PyTuple_GetItem(given, 3 * i + 2));
        int known = row->kind >= 0 && row->kind < KINDS;
        if (!known && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "there is no such kind of facts");
        if (known && (row->kind == INTO || row->kind == ONE))
            known = (row->inner = take_apart(called)) != NULL;
        else
            row->called = Py_NewRef(called);
        if (!known) {
            forget(table);
            table = NULL;
        }
    }
    Py_LeaveRecursiveCall();
    return table;
}

static int tell(PyObject *twin, PyObject *attributes, PyObject *told, const Table *table);

/* Tell the facts of an object that is in another one. */
static int
tell_inner(PyObject *twin, PyObject *attributes, PyObject *value, const Table *table)
{
    PyObject *own = ns_fields(twin, value);
    int done = own == NULL ? -1 : tell(twin, attributes, own, table);
    Py_XDECREF(own);
    return done;
}

/* Tell the facts of the only one of several. */
static int
tell_only(PyObject *twin, PyObject *attributes, PyObject *several, const Table *table)
{
    int is_list = PyList_Check(several);
    if (!is_list && !PyTuple_Check(several))
        return 1;
    Py_ssize_t count = is_list ? PyList_Size(several) : PyTuple_Size(several);
    if (count != 1)
        return count == 0;
    PyObject *one = Py_NewRef(is_list ? PyList_GetItem(several, 0) : PyTuple_GetItem(several, 0));
    int done = tell_inner(twin, attributes, one, table);
    Py_DECREF(one);
    return done;
}

/* Tell one fact: 1; 0 if it is an odd one; -1 with an exception. */
static int
tell_one(PyObject *twin, PyObject *attributes, PyObject *value, const Row *row)
{
    int is;
    switch (row->kind) {
    case INTO:
        return value == Py_None ? 1 : tell_inner(twin, attributes, value, row->inner);
    case ONE:
        return tell_only(twin, attributes, value, row->inner);
    case ODD:
        is = PyObject_IsTrue(value);
        return is < 0 ? -1 : !is;
    case RARE:
        return value == Py_None;
    case FLAG:
        return value != Py_True || PyDict_SetItem(attributes, row->called, value) == 0 ? 1 : -1;
    default:
        break;
    }
    is = passes(value, row->kind == TEXTS ? TEXT : row->kind);
    if (is <= 0)
        return is < 0 ? -1 : 1;
    if (row->kind != TEXTS)
        return PyDict_SetItem(attributes, row->called, row->kind == TRUTH ? Py_True : value) == 0 ? 1 : -1;
    PyObject *texts = PyList_New(1);
    if (texts == NULL)
        return -1;
    int done = PyList_SetItem(texts, 0, Py_NewRef(value)) == 0 &&
                       PyDict_SetItem(attributes, row->called, texts) == 0
                   ? 1
                   : -1;
    Py_DECREF(texts);
    return done;
}

static int
tell(PyObject *twin, PyObject *attributes, PyObject *told, const Table *table)
{
    int done = 1, plain = PyDict_CheckExact(told);
    for (Py_ssize_t i = 0; done > 0 && i < table->size; i++) {
        const Row *row = &table->rows[i];
        if (row->kind == CONSTANT) {
            done = PyDict_SetItem(attributes, row->called, row->name) == 0 ? 1 : -1;
            continue;
        }
        PyObject *value;
        if (plain) {
            value = PyDict_GetItemWithError(told, row->name);
            if (value == NULL && !PyErr_Occurred())
                continue;
            Py_XINCREF(value);
        } else {
            value = PyObject_CallMethod(told, "get", "O", row->name);
        }
        done = value == NULL ? -1 : tell_one(twin, attributes, value, row);
        Py_XDECREF(value);
    }
    return done;
}

/* What a teller holds: its twin of `fields`, and its table. */
typedef struct {
    PyObject *twin;
    Table *table;
} Teller;

static const char teller_name[] = "neuronscope._native.teller";

static void
forget_teller(PyObject *capsule)
{
    Teller *teller = PyCapsule_GetPointer(capsule, teller_name);
    if (teller != NULL) {
        Py_DECREF(teller->twin);
        forget(teller->table);
        PyMem_Free(teller);
    }
}

/* tell(attributes, value) -> whether all was told */
static PyObject *
tell_all(PyObject *capsule, Args args, Py_ssize_t n)
{
    Teller *teller = PyCapsule_GetPointer(capsule, teller_name);
    if (teller == NULL || !ns_takes("tell", n, 2))
        return NULL;
    if (!PyDict_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "tell takes a dictionary and what is told");
    int done = tell_inner(teller->twin, args[0], args[1], teller->table);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyMethodDef tell_function = {"tell", (PyCFunction)(void (*)(void))tell_all, METH_FASTCALL, NULL};

/* make_teller(twin, table) -> `tell` with this twin of `fields` and this table */
PyObject *
ns_make_teller(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("make_teller", n, 2))
        return NULL;
    Table *table = take_apart(args[1]);
    Teller *teller = table == NULL ? NULL : PyMem_Malloc(sizeof(Teller));
    if (teller == NULL) {
        if (table != NULL)
            PyErr_NoMemory();
        forget(table);
        return NULL;
    }
    teller->twin = Py_NewRef(args[0]);
    teller->table = table;
    PyObject *capsule = PyCapsule_New(teller, teller_name, forget_teller);
    if (capsule == NULL) {
        Py_DECREF(teller->twin);
        forget(table);
        PyMem_Free(teller);
        return NULL;
    }
    PyObject *made = PyCFunction_New(&tell_function, capsule);
    Py_DECREF(capsule);
    return made;
}
