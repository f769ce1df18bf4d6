/* What a usual call costs: the twin of `neuronscope.prices.bill_in_python`. */
#include "native.h"

/* Of `keys`. */
enum {
    INPUT, OUTPUT, CACHE_READ, CACHE_WRITE, AUDIO_INPUT, AUDIO_OUTPUT, IMAGE_OUTPUT, KEPT_LONGER,
    PROVIDER, RESPONSE_MODEL, REQUEST_MODEL, TIER, OPERATION, COST, PRICES, KEYS
};
/* Of a row: dollars for a million tokens, and the largest input that they are for. */
enum { INPUT_PRICE, OUTPUT_PRICE, READ_PRICE, WRITE_PRICE, UP_TO, CELLS };

static const long long LARGEST = 1LL << 53; /* what a double still holds exactly */

/* An attribute; NULL if it is absent, or with an exception. */
static PyObject *
told(PyObject *attributes, PyObject *keys, int key)
{
    PyObject *value = PyDict_GetItemWithError(attributes, PyTuple_GetItem(keys, key));
    return value == Py_None ? NULL : value;
}

/* A count of tokens: 1; 0 if there is none, -1 if it is odd or with an exception. */
static int
tokens(PyObject *attributes, PyObject *keys, int key, long long *found)
{
    *found = 0;
    PyObject *value = told(attributes, keys, key);
    if (value == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (!PyLong_CheckExact(value))
        return -1;
    int overflow;
    *found = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow || *found < 0 || *found > LARGEST || PyErr_Occurred() ? -1 : 1;
}

/* Is anything counted that has prices of its own?  -1 with an exception. */
static int
is_more_than_text(PyObject *attributes, PyObject *keys)
{
    for (int key = AUDIO_INPUT; key <= KEPT_LONGER; key++) {
        PyObject *value = told(attributes, keys, key);
        Py_XINCREF(value);
        int is = value == NULL ? (PyErr_Occurred() ? -1 : 0) : PyObject_IsTrue(value);
        Py_XDECREF(value);
        if (is != 0)
            return is;
    }
    return 0;
}

/* A new reference to the row of a call; NULL if there is none yet, or with an exception. */
static PyObject *
row_of(PyObject *attributes, PyObject *rows, PyObject *keys)
{
    PyObject *key = PyTuple_New(3);
    for (int i = 0; key != NULL && i < 3; i++) {
        PyObject *value = PyDict_GetItemWithError(attributes, PyTuple_GetItem(keys, PROVIDER + i));
        if (value == NULL && PyErr_Occurred()) {
            Py_CLEAR(key);
            break;
        }
        if (value == NULL)
            value = Py_None;
        if (value != Py_None && !PyUnicode_CheckExact(value)) {
            Py_CLEAR(key); /* no name */
            break;
        }
        if (PyTuple_SetItem(key, i, Py_NewRef(value)) < 0)
            Py_CLEAR(key);
    }
    PyObject *row = key == NULL ? NULL : PyDict_GetItemWithError(rows, key);
    Py_XINCREF(row);
    Py_XDECREF(key);
    return row;
}

/* A price; `*known` is 0 if there is none. */
static double
price(PyObject *row, int cell, int *known)
{
    PyObject *value = PyTuple_GetItem(row, cell);
    *known = value != Py_None;
    return *known ? PyFloat_AsDouble(value) : 0.0;
}

/* Add the cost, if every part of it has a price; -1 with an exception. */
static int
add_cost(PyObject *attributes, PyObject *keys, PyObject *row, const long long *counts)
{
    long long fresh = counts[INPUT] - counts[CACHE_READ] - counts[CACHE_WRITE];
    if (fresh < 0)
        return 0;
    PyObject *limit = PyTuple_GetItem(row, UP_TO);
    if (limit != Py_None && counts[INPUT] > PyLong_AsLongLong(limit))
        return PyErr_Occurred() ? -1 : 0;
    int known;
    /* Each step is rounded as Python does it: a compiler must not join a product and a sum. */
    volatile double sum = (double)fresh * price(row, INPUT_PRICE, &known), part;
    part = (double)counts[CACHE_READ] * price(row, READ_PRICE, &known);
    if (counts[CACHE_READ] > 0 && !known)
        return PyErr_Occurred() ? -1 : 0;
    sum = sum + part;
    part = (double)counts[CACHE_WRITE] * price(row, WRITE_PRICE, &known);
    if (counts[CACHE_WRITE] > 0 && !known)
        return PyErr_Occurred() ? -1 : 0;
    sum = sum + part;
    part = (double)counts[OUTPUT] * price(row, OUTPUT_PRICE, &known);
    sum = sum + part;
    if (PyErr_Occurred())
        return -1;
    PyObject *cost = PyFloat_FromDouble(sum / 1e6);
    int done = cost == NULL ? -1 : PyDict_SetItem(attributes, PyTuple_GetItem(keys, COST), cost);
    Py_XDECREF(cost);
    return done;
}

/* Bill by a row: 1; 0: Python decides; -1 with an exception. */
static int
bill_by(PyObject *attributes, PyObject *row, PyObject *keys, PyObject *tiers, PyObject *version,
        const long long *counts, int output)
{
    if (row == Py_None)
        return 1;
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a row is a tuple");
        return -1;
    }
    if (!output) { /* how much was written is not known, but for those that write nothing */
        PyObject *operation = told(attributes, keys, OPERATION);
        if (operation == NULL || !PyUnicode_Check(operation) ||
            PyUnicode_CompareWithASCIIString(operation, "embeddings") != 0)
            return PyErr_Occurred() ? -1 : 0;
    }
    int more = is_more_than_text(attributes, keys);
    PyObject *tier = more ? NULL : told(attributes, keys, TIER);
    if (tier != NULL)
        more = PyUnicode_CheckExact(tier) ? 1 - PySet_Contains(tiers, tier) : 1;
    if (more != 0 || PyErr_Occurred())
        return PyErr_Occurred() ? -1 : 0;
    if (PyTuple_Size(row) == CELLS && add_cost(attributes, keys, row, counts) < 0)
        return -1;
    return PyDict_SetItem(attributes, PyTuple_GetItem(keys, PRICES), version) < 0 ? -1 : 1;
}

/* 1: billed, or nothing to bill; 0: Python decides; -1 with an exception. */
static int
bill(PyObject *attributes, PyObject *rows, PyObject *keys, PyObject *tiers, PyObject *version)
{
    long long counts[CACHE_WRITE + 1];
    int output = 0;
    for (int key = INPUT; key <= CACHE_WRITE; key++) {
        int is = tokens(attributes, keys, key, &counts[key]);
        if (is < 0)
            return PyErr_Occurred() ? -1 : 0;
        if (key == INPUT && !is)
            return 1;
        if (key == OUTPUT)
            output = is;
    }
    PyObject *row = row_of(attributes, rows, keys);
    if (row == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int done = bill_by(attributes, row, keys, tiers, version, counts, output);
    Py_DECREF(row);
    return done;
}

/* bill(attributes, rows, keys, tiers, version) -> whether that was all
 *
 * rows: prices by provider and models; None: it has no prices.  tiers: a set of those that cost the usual. */
PyObject *
ns_bill(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bill", n, 5))
        return NULL;
    if (!PyDict_Check(args[0]) || !PyDict_Check(args[1]) || !PyTuple_Check(args[2]) ||
        PyTuple_Size(args[2]) != KEYS || !PyAnySet_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "bill takes two dictionaries, the keys, and a set");
    int done = bill(args[0], args[1], args[2], args[3], args[4]);
    return done < 0 ? NULL : PyBool_FromLong(done);
}
