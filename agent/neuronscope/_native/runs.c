/* Runs of spans of one library, as they stand in a request: the twin of
 * `neuronscope_exporters.otlp.requests.RequestEncoder.members`. */
#include "wire.h"

#define SPAN 0x12 /* ScopeSpans.spans = 2 */
enum { OVERHEAD = 6 }; /* what a record is counted for beside its body */

static PyObject *library_name, *version_name;

int
ns_runs_ready(void)
{
    if (library_name == NULL)
        library_name = PyUnicode_InternFromString("library");
    if (version_name == NULL)
        version_name = PyUnicode_InternFromString("library_version");
    return library_name == NULL || version_name == NULL ? -1 : 0;
}

/* Is a record's field this very object?  -1 with an exception. */
static int
is_of(PyObject *record, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_GetAttr(record, name);
    if (value == NULL)
        return -1;
    Py_DECREF(value); /* the record keeps it */
    return value == wanted;
}

/* Add a record; 0 if it has to be looked at alone, -1 with an exception. */
static int
add(Buffer *out, Py_ssize_t *size, PyObject *record, Py_ssize_t largest, Py_ssize_t room, PyObject *const *given)
{
    Buffer body;
    ns_begin(&body);
    int done = ns_span(&body, record, given[0], given[1], given[2]);
    Py_ssize_t length = (Py_ssize_t)body.size;
    if (done == 0 && (length > largest || *size + length > room))
        done = 1;
    if (done == 0)
        done = ns_delimited(out, SPAN, body.data, body.size);
    ns_end(&body);
    if (done != 0)
        return done < 0 ? -1 : 0;
    *size += length + OVERHEAD;
    return 1;
}

/* encode_spans(records, start, stop, library, version, largest, room, kinds, statuses, twins)
 *     -> (bytes, how many, size)
 *
 * The records of a list from `start` on, before `stop`, as long as they are of this library, none is larger than
 * `largest`, and they fit into `room`.  One that cannot be encoded ends the run, too: its own encoding tells why. */
PyObject *
ns_encode_spans(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("encode_spans", n, 10))
        return NULL;
    PyObject *records = args[0];
    Py_ssize_t start = PyLong_AsSsize_t(args[1]), stop = PyLong_AsSsize_t(args[2]);
    Py_ssize_t largest = PyLong_AsSsize_t(args[5]), room = PyLong_AsSsize_t(args[6]);
    if (PyErr_Occurred())
        return NULL;
    if (!PyList_Check(records) || start < 0)
        return PyErr_Format(PyExc_TypeError, "encode_spans takes a list, and where to begin");
    for (int i = 7; i < 10; i++)
        if (!PyTuple_Check(args[i]) || PyTuple_Size(args[i]) < 3)
            return PyErr_Format(PyExc_TypeError, "encode_spans takes three tuples");
    Buffer out;
    ns_begin(&out);
    Py_ssize_t size = 0, at = start;
    for (int going_on = 1; going_on > 0 && at < stop && at < PyList_Size(records); at += going_on > 0) {
        PyObject *record = Py_NewRef(PyList_GetItem(records, at));
        going_on = is_of(record, library_name, args[3]);
        if (going_on > 0)
            going_on = is_of(record, version_name, args[4]);
        if (going_on > 0)
            going_on = add(&out, &size, record, largest, room, args + 7);
        Py_DECREF(record);
        if (going_on < 0) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                break; /* an interrupt, say */
            PyErr_Clear();
        }
    }
    PyObject *found = NULL;
    if (!PyErr_Occurred())
        found = Py_BuildValue("(y#nn)", out.data, (Py_ssize_t)out.size, at - start, size);
    ns_end(&out);
    return found;
}
