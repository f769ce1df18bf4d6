/* OTLP `KeyValue`s from attributes: the twin of `neuronscope_exporters.otlp.attributes`. */
#include "wire.h"

enum { ANY_VALUE, UTF8, UNENCODABLE }; /* of `twins` */

#define TEXT 0x0a    /* AnyValue.string_value = 1 */
#define BOOL 0x10    /* AnyValue.bool_value = 2 */
#define INTEGER 0x18 /* AnyValue.int_value = 3 */
#define DOUBLE 0x21  /* AnyValue.double_value = 4 */
#define ARRAY 0x2a   /* AnyValue.array_value = 5 */
#define KEY 0x0a     /* KeyValue.key = 1 */
#define VALUE 0x12   /* KeyValue.value = 2 */

/* A value whose encoding is known to be plain: its bytes or its number, and the size of its `AnyValue`. */
typedef struct {
    enum { NOT_PLAIN, IS_TEXT, IS_BOOL, IS_INTEGER, IS_DOUBLE } kind;
    const char *text;
    PyObject *held;
    uint64_t number; /* of an integer, a bool, or the text's size */
    double real;
    size_t size;
} Plain;

/* Look at a value; NOT_PLAIN leaves it to Python.  -1 with an exception. */
static int
look(PyObject *value, PyObject *twins, Plain *plain)
{
    plain->kind = NOT_PLAIN;
    plain->held = NULL;
    if (PyUnicode_CheckExact(value)) {
        Py_ssize_t size;
        plain->text = ns_utf8(value, PyTuple_GetItem(twins, UTF8), &size, &plain->held);
        if (plain->text == NULL)
            return -1;
        plain->kind = IS_TEXT;
        plain->number = (uint64_t)size;
        plain->size = 1 + ns_varint_size(plain->number) + (size_t)size;
    } else if (PyLong_CheckExact(value)) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (!overflow) {
            plain->kind = IS_INTEGER;
            plain->number = (uint64_t)number;
            plain->size = 1 + ns_varint_size(plain->number);
        }
    } else if (PyFloat_CheckExact(value)) {
        plain->kind = IS_DOUBLE;
        plain->real = PyFloat_AsDouble(value);
        plain->size = 9;
    } else if (value == Py_True || value == Py_False) {
        plain->kind = IS_BOOL;
        plain->number = value == Py_True;
        plain->size = 2;
    }
    return 0;
}

/* Write an `AnyValue` that was looked at; the room is there.  Returns the place behind it. */
static char *
put(char *at, const Plain *plain)
{
    uint64_t bits;
    switch (plain->kind) {
    case IS_TEXT:
        *at++ = TEXT;
        at = ns_varint_at(at, plain->number);
        memcpy(at, plain->text, (size_t)plain->number);
        return at + plain->number;
    case IS_INTEGER:
        *at++ = INTEGER;
        return ns_varint_at(at, plain->number);
    case IS_BOOL:
        *at++ = BOOL;
        *at++ = (char)plain->number;
        return at;
    case IS_DOUBLE:
        *at++ = DOUBLE;
        memcpy(&bits, &plain->real, 8);
        for (int i = 0; i < 8; i++)
            at[i] = (char)(unsigned char)(bits >> (8 * i));
        return at + 8;
    case NOT_PLAIN:
        break;
    }
    return at;
}

/* The items of a list or tuple of plain values, each an `ArrayValue.values`; 1 if some item is not plain. */
static int
items(Buffer *out, PyObject *value, PyObject *twins)
{
    int is_list = PyList_CheckExact(value);
    for (Py_ssize_t i = 0; i < (is_list ? PyList_Size(value) : PyTuple_Size(value)); i++) {
        PyObject *item = is_list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
        if (item == NULL)
            return -1;
        Py_INCREF(item);
        Plain plain;
        int found = look(item, twins, &plain);
        if (found == 0 && plain.kind == NOT_PLAIN) {
            found = 1;
        } else if (found == 0) {
            found = ns_reserve(out, 1 + NS_LONGEST_VARINT + plain.size);
            if (found == 0) {
                ns_byte(out, 0x0a); /* values = 1 */
                ns_varint(out, plain.size);
                out->size = (size_t)(put(out->data + out->size, &plain) - out->data);
            }
        }
        Py_XDECREF(plain.held);
        Py_DECREF(item);
        if (found != 0)
            return found;
    }
    return 0;
}

/* The `AnyValue` that the twin in Python writes: new bytes; NULL without an exception if there is none. */
static PyObject *
by_twin(PyObject *value, PyObject *twins)
{
    PyObject *body = PyObject_CallFunctionObjArgs(PyTuple_GetItem(twins, ANY_VALUE), value, NULL);
    if (body == NULL && PyErr_ExceptionMatches(PyTuple_GetItem(twins, UNENCODABLE)))
        PyErr_Clear();
    if (body != NULL && !PyBytes_CheckExact(body)) {
        Py_DECREF(body);
        PyErr_SetString(PyExc_TypeError, "any_value must return bytes");
        return NULL;
    }
    return body;
}

/* One pair whose `AnyValue` has these bytes. */
static int
pair(Buffer *out, unsigned char tag, const char *key, size_t key_size, const Plain *plain, const char *body,
     size_t size)
{
    if (ns_reserve(out, 4 + 4 * NS_LONGEST_VARINT + key_size + size) < 0)
        return -1;
    char *at = out->data + out->size;
    *at++ = (char)tag;
    at = ns_varint_at(at, 2 + ns_varint_size(key_size) + key_size + ns_varint_size(size) + size);
    *at++ = KEY;
    at = ns_varint_at(at, key_size);
    memcpy(at, key, key_size);
    at += key_size;
    *at++ = VALUE;
    at = ns_varint_at(at, size);
    if (plain != NULL) {
        at = put(at, plain);
    } else {
        memcpy(at, body, size);
        at += size;
    }
    out->size = (size_t)(at - out->data);
    return 0;
}

/* A pair whose value is no plain one; 1 if it has no form in OTLP. */
static int
unusual(Buffer *out, unsigned char tag, const char *key, size_t key_size, PyObject *value, PyObject *twins)
{
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        Buffer inner, array;
        ns_begin(&inner);
        int found = items(&inner, value, twins);
        if (found == 0) {
            ns_begin(&array);
            found = ns_delimited(&array, ARRAY, inner.data, inner.size);
            if (found == 0)
                found = pair(out, tag, key, key_size, NULL, array.data, array.size);
            ns_end(&array);
        }
        ns_end(&inner);
        if (found <= 0)
            return found;
    }
    PyObject *body = by_twin(value, twins);
    if (body == NULL)
        return PyErr_Occurred() ? -1 : 1;
    char *bytes;
    Py_ssize_t size;
    int found = PyBytes_AsStringAndSize(body, &bytes, &size);
    if (found == 0)
        found = pair(out, tag, key, key_size, NULL, bytes, (size_t)size);
    Py_DECREF(body);
    return found;
}

static int
attribute(Buffer *out, unsigned char tag, PyObject *key, PyObject *value, PyObject *twins)
{
    if (!PyUnicode_CheckExact(key))
        return 1;
    PyObject *held;
    Py_ssize_t key_size;
    const char *text = ns_utf8(key, PyTuple_GetItem(twins, UTF8), &key_size, &held);
    if (text == NULL)
        return -1;
    Plain plain;
    int found = look(value, twins, &plain);
    if (found == 0) {
        if (plain.kind != NOT_PLAIN)
            found = pair(out, tag, text, (size_t)key_size, &plain, NULL, plain.size);
        else
            found = unusual(out, tag, text, (size_t)key_size, value, twins);
    }
    Py_XDECREF(plain.held);
    Py_XDECREF(held);
    return found;
}

Py_ssize_t
ns_pairs(Buffer *out, unsigned char tag, PyObject *attributes, PyObject *twins)
{
    Py_ssize_t unencodable = 0;
    PyObject *key, *value;
    if (PyDict_CheckExact(attributes)) {
        Py_ssize_t at = 0;
        while (PyDict_Next(attributes, &at, &key, &value)) {
            Py_INCREF(key); /* a twin may change the dictionary */
            Py_INCREF(value);
            int found = attribute(out, tag, key, value, twins);
            Py_DECREF(key);
            Py_DECREF(value);
            if (found < 0)
                return -1;
            unencodable += found;
        }
        return unencodable;
    }
    PyObject *pairs = PyMapping_Items(attributes);
    if (pairs == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_Size(pairs); i++) {
        PyObject *one = PyList_GetItem(pairs, i);
        int found = -1;
        if (!PyTuple_Check(one) || PyTuple_Size(one) != 2)
            PyErr_SetString(PyExc_TypeError, "items of a mapping must be pairs");
        else
            found = attribute(out, tag, PyTuple_GetItem(one, 0), PyTuple_GetItem(one, 1), twins);
        if (found < 0) {
            unencodable = -1;
            break;
        }
        unencodable += found;
    }
    Py_DECREF(pairs);
    return unencodable;
}

/* encode_attributes(attributes, tag, twins) -> (bytes, unencodable) */
PyObject *
ns_encode_attributes(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("encode_attributes", n, 3))
        return NULL;
    if (!PyTuple_Check(args[2]) || PyTuple_Size(args[2]) < 3)
        return PyErr_Format(PyExc_TypeError, "encode_attributes takes a tuple of twins");
    long tag = PyLong_AsLong(args[1]);
    if (tag == -1 && PyErr_Occurred())
        return NULL;
    Buffer out;
    ns_begin(&out);
    PyObject *found = NULL;
    Py_ssize_t unencodable = ns_pairs(&out, (unsigned char)tag, args[0], args[2]);
    if (unencodable >= 0)
        found = Py_BuildValue("(y#n)", out.data, (Py_ssize_t)out.size, unencodable);
    ns_end(&out);
    return found;
}
