/* OTLP `Span` messages from finished spans: the twin of `neuronscope_exporters.otlp.encode_spans`.
 * Source: opentelemetry-proto, trace/v1/trace.proto. */
#include "wire.h"

static const char *const NAMES[] = {
    "trace_id", "span_id", "name", "kind", "start_unix_ns", "end_unix_ns", "attributes", "parent_span_id",
    "parent_is_remote", "events", "links", "status", "status_message", "trace_state", "dropped_attributes",
    "dropped_events", "dropped_links", "time_unix_ns",
};
enum {
    TRACE_ID, SPAN_ID, NAME, KIND, START, END, ATTRIBUTES, PARENT, REMOTE, EVENTS, LINKS, STATUS, MESSAGE,
    TRACE_STATE, DROPPED_ATTRIBUTES, DROPPED_EVENTS, DROPPED_LINKS, TIME, NAMES_END
};
enum { TWINS_END = 3 };

static PyObject *names[NAMES_END];

int
ns_spans_ready(void)
{
    return ns_intern(names, NAMES, NAMES_END);
}

/* The number that a field holds. */
static int
number(PyObject *record, int name, uint64_t *found)
{
    PyObject *value = PyObject_GetAttr(record, names[name]);
    if (value == NULL)
        return -1;
    int done = ns_uint64(value, found);
    Py_DECREF(value);
    return done;
}

/* A `fixed64` field. */
static int
fixed64(Buffer *out, unsigned char tag, PyObject *record, int name)
{
    uint64_t value;
    if (number(record, name, &value) < 0 || ns_reserve(out, 9) < 0)
        return -1;
    ns_byte(out, tag);
    ns_little64(out, value);
    return 0;
}

/* A trace id and a span id: fields 1 and 2 of spans and of links. */
static int
identity(Buffer *out, PyObject *record)
{
    uint64_t high = 0, low = 0, span;
    PyObject *trace = PyObject_GetAttr(record, names[TRACE_ID]);
    if (trace == NULL)
        return -1;
    PyObject *bits = PyLong_FromLong(64), *top = bits == NULL ? NULL : PyNumber_Rshift(trace, bits);
    int done = top == NULL ? -1 : ns_uint64(top, &high);
    if (done == 0) {
        low = PyLong_AsUnsignedLongLongMask(trace);
        if (low == (uint64_t)-1 && PyErr_Occurred())
            done = -1;
    }
    Py_XDECREF(bits);
    Py_XDECREF(top);
    Py_DECREF(trace);
    if (done < 0 || number(record, SPAN_ID, &span) < 0 || ns_reserve(out, 28) < 0)
        return -1;
    ns_byte(out, 0x0a);
    ns_byte(out, 16);
    ns_big64(out, high);
    ns_big64(out, low);
    ns_byte(out, 0x12);
    ns_byte(out, 8);
    ns_big64(out, span);
    return 0;
}

/* A text field; with `optional` an empty one is left out. */
static int
text(Buffer *out, unsigned char tag, PyObject *record, int name, PyObject *twins, int optional)
{
    PyObject *value = PyObject_GetAttr(record, names[name]);
    if (value == NULL)
        return -1;
    int done = 0;
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be a string", NAMES[name]);
        done = -1;
    } else if (!optional || PyUnicode_GetLength(value) > 0) {
        done = ns_text(out, tag, value, PyTuple_GetItem(twins, 1));
    }
    Py_DECREF(value);
    return done;
}

/* A `uint32` field that tells how many were dropped, if any were. */
static int
dropped(Buffer *out, unsigned char tag, PyObject *record, int name, Py_ssize_t more)
{
    PyObject *value = PyObject_GetAttr(record, names[name]);
    if (value == NULL)
        return -1;
    int overflow;
    long long count = PyLong_AsLongLongAndOverflow(value, &overflow);
    Py_DECREF(value);
    if (count == -1 && PyErr_Occurred())
        return -1;
    if (overflow > 0 || count > UINT32_MAX - more)
        count = UINT32_MAX;
    else
        count += more;
    if (count == 0)
        return 0;
    if (ns_reserve(out, 1 + NS_LONGEST_VARINT) < 0)
        return -1;
    ns_byte(out, tag);
    ns_varint(out, (uint64_t)count);
    return 0;
}

/* Attributes, and how many of them were dropped. */
static int
attributes(Buffer *out, unsigned char tag, unsigned char dropped_tag, PyObject *record, PyObject *twins)
{
    PyObject *value = PyObject_GetAttr(record, names[ATTRIBUTES]);
    if (value == NULL)
        return -1;
    Py_ssize_t unencodable = ns_pairs(out, tag, value, twins);
    Py_DECREF(value);
    return unencodable < 0 ? -1 : dropped(out, dropped_tag, record, DROPPED_ATTRIBUTES, unencodable);
}

static int
event(Buffer *out, PyObject *record, PyObject *twins)
{
    if (fixed64(out, 0x09, record, TIME) < 0 || text(out, 0x12, record, NAME, twins, 0) < 0)
        return -1;
    return attributes(out, 0x1a, 0x20, record, twins);
}

static int
flags(Buffer *out, const char *tag, size_t size, unsigned char low, unsigned char high)
{
    if (ns_reserve(out, size + 4) < 0)
        return -1;
    ns_bytes(out, tag, size);
    ns_byte(out, low);
    ns_byte(out, high);
    ns_byte(out, 0);
    ns_byte(out, 0);
    return 0;
}

static int
a_link(Buffer *out, PyObject *record, PyObject *twins)
{
    if (identity(out, record) < 0 || text(out, 0x1a, record, TRACE_STATE, twins, 1) < 0 ||
        attributes(out, 0x22, 0x28, record, twins) < 0)
        return -1;
    return flags(out, "\x35", 1, 0, 1); /* Link.flags = 6: the link's context is known to be local */
}

/* What a span has several of. */
static int
several(Buffer *out, unsigned char tag, PyObject *record, int name, PyObject *twins,
        int (*write)(Buffer *, PyObject *, PyObject *))
{
    PyObject *all = PyObject_GetAttr(record, names[name]);
    if (all == NULL)
        return -1;
    Py_ssize_t count = PySequence_Size(all);
    int done = count < 0 ? -1 : 0;
    for (Py_ssize_t i = 0; i < count && done == 0; i++) {
        PyObject *one = PySequence_GetItem(all, i);
        if (one == NULL) {
            done = -1;
            break;
        }
        Buffer body;
        ns_begin(&body);
        done = write(&body, one, twins);
        if (done == 0)
            done = ns_delimited(out, tag, body.data, body.size);
        ns_end(&body);
        Py_DECREF(one);
    }
    Py_DECREF(all);
    return done;
}

/* The position of an enum's member in a tuple; -1 with an exception. */
static Py_ssize_t
position(PyObject *record, int name, PyObject *members)
{
    PyObject *value = PyObject_GetAttr(record, names[name]);
    if (value == NULL)
        return -1;
    Py_ssize_t found = -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(members); i++)
        if (PyTuple_GetItem(members, i) == value)
            found = i;
    Py_DECREF(value);
    if (found < 0)
        PyErr_Format(PyExc_TypeError, "%s is none of those known", NAMES[name]);
    return found;
}

/* Status (15): unset, ok or error; only errors have a description, by OpenTelemetry's rule. */
static int
status(Buffer *out, PyObject *record, PyObject *statuses, PyObject *twins)
{
    Py_ssize_t code = position(record, STATUS, statuses);
    if (code < 0)
        return -1;
    if (code == 0)
        return ns_delimited(out, 0x7a, "", 0);
    Buffer body;
    ns_begin(&body);
    int done = 0;
    if (code == 2) {
        PyObject *message = PyObject_GetAttr(record, names[MESSAGE]);
        if (message == NULL)
            done = -1;
        else if (message != Py_None && !PyUnicode_Check(message))
            done = (PyErr_SetString(PyExc_TypeError, "status_message must be a string"), -1);
        else if (message != Py_None && PyUnicode_GetLength(message) > 0)
            done = ns_text(&body, 0x12, message, PyTuple_GetItem(twins, 1));
        Py_XDECREF(message);
    }
    if (done == 0 && (done = ns_reserve(&body, 2)) == 0) {
        ns_byte(&body, 0x18);
        ns_byte(&body, (unsigned char)code);
        done = ns_delimited(out, 0x7a, body.data, body.size);
    }
    ns_end(&body);
    return done;
}

static int
parent(Buffer *out, PyObject *record)
{
    PyObject *value = PyObject_GetAttr(record, names[PARENT]);
    if (value == NULL)
        return -1;
    int done = 0;
    uint64_t id;
    if (value != Py_None && (done = ns_uint64(value, &id)) == 0 && (done = ns_reserve(out, 10)) == 0) {
        ns_byte(out, 0x22);
        ns_byte(out, 8);
        ns_big64(out, id);
    }
    Py_DECREF(value);
    return done;
}

static int
kind(Buffer *out, PyObject *record, PyObject *kinds)
{
    Py_ssize_t value = position(record, KIND, kinds);
    if (value < 0 || ns_reserve(out, 2) < 0)
        return -1;
    ns_byte(out, 0x30);
    ns_byte(out, (unsigned char)(value + 1));
    return 0;
}

/* Whether the parent was remote: that it is known (bit 8), and that it was (bit 9). */
static int
remote(Buffer *out, PyObject *record)
{
    PyObject *value = PyObject_GetAttr(record, names[REMOTE]);
    if (value == NULL)
        return -1;
    int is = PyObject_IsTrue(value);
    Py_DECREF(value);
    return is < 0 ? -1 : flags(out, "\x85\x01", 2, 0, is ? 3 : 1);
}

int
ns_span(Buffer *out, PyObject *record, PyObject *kinds, PyObject *statuses, PyObject *twins)
{
    if (identity(out, record) < 0 || text(out, 0x1a, record, TRACE_STATE, twins, 1) < 0 ||
        parent(out, record) < 0 || text(out, 0x2a, record, NAME, twins, 0) < 0 ||
        kind(out, record, kinds) < 0 || fixed64(out, 0x39, record, START) < 0 ||
        fixed64(out, 0x41, record, END) < 0 || attributes(out, 0x4a, 0x50, record, twins) < 0 ||
        several(out, 0x5a, record, EVENTS, twins, event) < 0 ||
        dropped(out, 0x60, record, DROPPED_EVENTS, 0) < 0 ||
        several(out, 0x6a, record, LINKS, twins, a_link) < 0 ||
        dropped(out, 0x70, record, DROPPED_LINKS, 0) < 0)
        return -1;
    return status(out, record, statuses, twins) < 0 ? -1 : remote(out, record);
}

/* encode_span(record, kinds, statuses, twins) -> the body of a `Span` message
 *
 * kinds, statuses: members of OpenTelemetry's enums in the order of their values; twins: `any_value`, `utf8`
 * and the exception of what has no form in OTLP, all Python's. */
PyObject *
ns_encode_span(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("encode_span", n, 4))
        return NULL;
    for (int i = 1; i < 4; i++)
        if (!PyTuple_Check(args[i]) || PyTuple_Size(args[i]) < TWINS_END)
            return PyErr_Format(PyExc_TypeError, "encode_span takes three tuples");
    Buffer out;
    ns_begin(&out);
    PyObject *found = NULL;
    if (ns_span(&out, args[0], args[1], args[2], args[3]) == 0)
        found = PyBytes_FromStringAndSize(out.data, (Py_ssize_t)out.size);
    ns_end(&out);
    return found;
}
