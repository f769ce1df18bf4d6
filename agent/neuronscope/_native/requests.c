/* What is kept of a request that is posted to a known path: the twin of `openai.routes.snapshot_in_python`. */
#include "native.h"

/* What it is made with. */
enum { TWIN, FIELDS, POSTED, SERVERS, SNAPSHOT, KEPT, TOOLS_END };
/* What of a route is read here, in its order. */
enum { ENDPOINT, KEEP, USUAL, TARGET, ROUTE_END };
/* What a route keeps of most bodies: how long a list is, if none of the rare parameters is there. */
enum { LISTED, COUNTED, RARE, USUAL_END };

#define NAMES(NAME) NAME(options) NAME(method) NAME(url) NAME(json_data) NAME(extra_json) NAME(_base_url)
#define AS_INDEX(name) N_##name,
#define AS_TEXT(name) #name,
enum { NAMES(AS_INDEX) NAMES_END };
static const char *const TEXTS[] = {NAMES(AS_TEXT)};
static PyObject *names[NAMES_END];

int
ns_requests_ready(void)
{
    return ns_intern(names, TEXTS, NAMES_END);
}

/* All of these: 1, done; 0, the twin decides; -1 with an exception. */

/* Copy those parameters that are scalars; the rest may hold none that is rare. */
static int
keep_scalars(PyObject *kept, PyObject *body, PyObject *scalars, PyObject *rare)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(body, &at, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) /* anything else compares itself by code of its own */
            return 0;
        int is = PySet_Contains(scalars, key);
        if (is > 0)
            is = PyDict_SetItem(kept, key, value);
        else if (is == 0 && rare != NULL && (is = PySet_Contains(rare, key)) > 0)
            return 0;
        if (is < 0)
            return -1;
    }
    return 1;
}

/* Count what is listed, and with content copy the list. */
static int
keep_list(PyObject *kept, PyObject *body, PyObject *usual, int content)
{
    PyObject *value = PyDict_GetItemWithError(body, PyTuple_GetItem(usual, LISTED)), *made;
    int is_list = value != NULL && (PyList_CheckExact(value) || PyTuple_CheckExact(value)), done = 0;
    if (value == NULL && PyErr_Occurred())
        return -1;
    if (value != NULL && !is_list && (PyList_Check(value) || PyTuple_Check(value)))
        return 0;
    if (is_list) {
        if ((made = PyLong_FromSsize_t(PyObject_Size(value))) == NULL)
            return -1;
        done = PyDict_SetItem(kept, PyTuple_GetItem(usual, COUNTED), made);
        Py_DECREF(made);
    }
    if (done == 0 && content) {
        if ((made = is_list ? PySequence_List(value) : PyList_New(0)) == NULL)
            return -1;
        done = PyDict_SetItem(kept, PyTuple_GetItem(usual, LISTED), made);
        Py_DECREF(made);
    }
    return done < 0 ? -1 : 1;
}

/* What a route keeps of a body, in `kept`. */
static int
keep_body(PyObject *tools, PyObject *route, PyObject *body, PyObject *content, PyObject *kept)
{
    PyObject *usual = PyTuple_GetItem(route, USUAL), *done;
    if (PyTuple_Check(usual) && PyTuple_Size(usual) == USUAL_END && PyAnySet_Check(PyTuple_GetItem(usual, RARE))) {
        int reads = PyObject_IsTrue(content);
        int is = reads < 0 ? -1 : keep_scalars(kept, body, PyTuple_GetItem(tools, KEPT), PyTuple_GetItem(usual, RARE));
        return is > 0 ? keep_list(kept, body, usual, reads) : is;
    }
    int is = keep_scalars(kept, body, PyTuple_GetItem(tools, KEPT), NULL);
    if (is <= 0)
        return is;
    done = PyObject_CallFunctionObjArgs(PyTuple_GetItem(route, KEEP), kept, body, content, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 1;
}

/* The server of the client's requests, if it is known already; a new reference. */
static int
server_of(PyObject *tools, PyObject *client, PyObject **server)
{
    PyObject *base = PyObject_GetAttr(client, names[N__base_url]), *place, *known;
    if (base == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    place = PyLong_FromVoidPtr(base);
    known = place == NULL ? NULL : PyDict_GetItemWithError(PyTuple_GetItem(tools, SERVERS), place);
    int is = known == NULL && PyErr_Occurred() ? -1 : 0;
    if (known != NULL && PyTuple_Check(known) && PyTuple_Size(known) == 3 && PyTuple_GetItem(known, 0) == base &&
        PyTuple_GetItem(known, 1) == (PyObject *)Py_TYPE(client)) {
        *server = Py_NewRef(PyTuple_GetItem(known, 2));
        is = 1;
    }
    Py_XDECREF(place);
    Py_DECREF(base);
    return is;
}

/* A posted body, by its route. */
static int
snap(PyObject *tools, PyObject *route, PyObject *client, PyObject *body, PyObject *content, PyObject **made)
{
    PyObject *named = PyTuple_GetItem(route, TARGET), *server = NULL, *target;
    if (named == Py_None || PyTuple_GetItem(route, KEEP) == Py_None)
        return 0;
    int is = server_of(tools, client, &server);
    if (is <= 0)
        return is;
    PyObject *kept = PyDict_New();
    is = kept == NULL ? -1 : keep_body(tools, route, body, content, kept);
    if (is > 0) {
        target = PyDict_GetItemWithError(kept, named);
        target = target == NULL && PyErr_Occurred() ? NULL : ns_text_of(NULL, target == NULL ? Py_None : target);
        if (target != NULL)
            *made = PyObject_CallFunctionObjArgs(PyTuple_GetItem(tools, SNAPSHOT), PyTuple_GetItem(route, ENDPOINT),
                                                 target, kept, server, NULL);
        Py_XDECREF(target);
        is = *made == NULL ? -1 : 1;
    }
    Py_XDECREF(kept);
    Py_DECREF(server);
    return is;
}

/* Is a text this one? */
static int
says(PyObject *value, const char *text)
{
    return value != NULL && PyUnicode_CheckExact(value) && PyUnicode_CompareWithASCIIString(value, text) == 0;
}

/* What was posted to before: the route, and whether it is a path at the client's own server. */
static int
keep_told(PyObject *tools, PyObject *client, PyObject *told, PyObject *content, PyObject **made)
{
    PyObject *url = PyDict_GetItemWithError(told, names[N_url]), *extra, *body, *known, *route;
    if (!says(PyDict_GetItemWithError(told, names[N_method]), "post") || url == NULL || !PyUnicode_CheckExact(url))
        return PyErr_Occurred() ? -1 : 0;
    known = PyDict_GetItemWithError(PyTuple_GetItem(tools, POSTED), url);
    if (known == NULL || !PyTuple_Check(known) || PyTuple_Size(known) != 2)
        return PyErr_Occurred() ? -1 : 0;
    route = PyTuple_GetItem(known, 0);
    if (route == Py_None) {
        *made = Py_NewRef(Py_None); /* no model works on it */
        return 1;
    }
    if (PyTuple_GetItem(known, 1) != Py_True || !PyTuple_Check(route) || PyTuple_Size(route) != ROUTE_END)
        return 0;
    extra = PyDict_GetItemWithError(told, names[N_extra_json]);
    body = PyDict_GetItemWithError(told, names[N_json_data]);
    if (PyErr_Occurred())
        return -1;
    if ((extra != NULL && extra != Py_None) || body == NULL || !PyDict_CheckExact(body))
        return 0;
    Py_INCREF(route); /* held: what follows may run Python code */
    Py_INCREF(body);
    int is = snap(tools, route, client, body, content, made);
    Py_DECREF(body);
    Py_DECREF(route);
    return is;
}

/* snapshot(client, arguments, content) -> what is kept of the call, or None */
static PyObject *
snapshot(PyObject *tools, Args args, Py_ssize_t n)
{
    if (!ns_takes("snapshot", n, 3))
        return NULL;
    PyObject *options = PyDict_CheckExact(args[1]) ? PyDict_GetItemWithError(args[1], names[N_options]) : NULL;
    PyObject *told = NULL, *made = NULL;
    int is = options == NULL && PyErr_Occurred() ? -1 : 0;
    if (options != NULL) {
        told = ns_fields(PyTuple_GetItem(tools, FIELDS), options);
        is = told == NULL ? -1 : PyDict_CheckExact(told) ? keep_told(tools, args[0], told, args[2], &made) : 0;
        Py_XDECREF(told);
    }
    if (is == 0)
        return PyObject_CallFunctionObjArgs(PyTuple_GetItem(tools, TWIN), args[0], args[1], args[2], NULL);
    return made;
}

static PyMethodDef snapshot_function = {"snapshot", (PyCFunction)(void (*)(void))snapshot, METH_FASTCALL, NULL};

/* make_snapshot((twin, fields' twin, routes by path, servers by URL, Snapshot, scalars)) -> snapshot */
PyObject *
ns_make_snapshot(PyObject *Py_UNUSED(module), PyObject *tools)
{
    if (!PyTuple_Check(tools) || PyTuple_Size(tools) != TOOLS_END)
        return PyErr_Format(PyExc_TypeError, "make_snapshot takes %d things", TOOLS_END);
    if (!PyDict_Check(PyTuple_GetItem(tools, POSTED)) || !PyDict_Check(PyTuple_GetItem(tools, SERVERS)) ||
        !PyAnySet_Check(PyTuple_GetItem(tools, KEPT)))
        return PyErr_Format(PyExc_TypeError, "make_snapshot takes two dictionaries and a set");
    return PyCFunction_New(&snapshot_function, tools);
}
