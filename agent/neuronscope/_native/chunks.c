/* What is noted of each chunk of a stream: the twin of `engine.chunks`'. */
#include "native.h"
#include <structmember.h>
#include <time.h>

enum { TIMED_EVERY = 4, HAND_OVER_EVERY = 32, FIRST_ROOM = 64 }; /* as `engine.chunks` has them */

typedef struct {
    PyObject_HEAD
    PyObject *kept; /* list: chunks that are not with the worker yet */
    int64_t *times;
    Py_ssize_t count, room;
    long long held_ns;
    char waits; /* until the first chunk with content */
} Chunks;

static int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static PyObject *
chunks_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Chunks *self = (Chunks *)make(type, 0);
    if (self == NULL)
        return NULL;
    self->waits = 1;
    self->kept = PyList_New(0);
    if (self->kept == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int
chunks_traverse(Chunks *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->kept);
    return 0;
}

static int
chunks_clear(Chunks *self)
{
    Py_CLEAR(self->kept);
    return 0;
}

static void
chunks_dealloc(Chunks *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    chunks_clear(self);
    PyMem_Free(self->times);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* take(chunk) -> whether `attend` is due (True), or the time until the next is asked for is taken (False), else None */
static PyObject *
chunks_take(Chunks *self, PyObject *chunk)
{
    int64_t now = now_ns();
    if (self->count == self->room) {
        Py_ssize_t room = self->room == 0 ? FIRST_ROOM : self->room * 2;
        int64_t *times = PyMem_Realloc(self->times, (size_t)room * sizeof(int64_t));
        if (times == NULL)
            return PyErr_NoMemory();
        self->times = times;
        self->room = room;
    }
    if (self->kept == NULL)
        return PyErr_Format(PyExc_ValueError, "this stream's chunks are gone");
    if (PyList_Append(self->kept, chunk) < 0)
        return NULL;
    self->times[self->count++] = now;
    if (self->waits || PyList_Size(self->kept) >= HAND_OVER_EVERY)
        Py_RETURN_TRUE;
    if (self->count % TIMED_EVERY == 0)
        Py_RETURN_FALSE;
    Py_RETURN_NONE;
}

/* asked(): the next chunk is asked for; of some the time since they came is added to `held_ns` */
static PyObject *
chunks_asked(Chunks *self, PyObject *Py_UNUSED(none))
{
    if (self->count != 0 && self->count % TIMED_EVERY == 0)
        self->held_ns += now_ns() - self->times[self->count - 1];
    Py_RETURN_NONE;
}

/* hand_over() -> the chunks so far, which are let go of */
static PyObject *
chunks_hand_over(Chunks *self, PyObject *Py_UNUSED(none))
{
    PyObject *fresh = PyList_New(0), *kept = self->kept;
    if (fresh == NULL)
        return NULL;
    self->kept = fresh;
    return kept == NULL ? PyList_New(0) : kept;
}

/* times() -> when each came, as bytes of 64-bit numbers of this machine */
static PyObject *
chunks_times(Chunks *self, PyObject *Py_UNUSED(none))
{
    return PyBytes_FromStringAndSize((const char *)self->times, self->count * (Py_ssize_t)sizeof(int64_t));
}

static PyObject *
chunks_last(Chunks *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->count == 0 ? 0 : self->times[self->count - 1]);
}

static PyMethodDef chunks_methods[] = {
    {"take", (PyCFunction)(void (*)(void))chunks_take, METH_O, NULL},
    {"asked", (PyCFunction)(void (*)(void))chunks_asked, METH_NOARGS, NULL},
    {"hand_over", (PyCFunction)(void (*)(void))chunks_hand_over, METH_NOARGS, NULL},
    {"times", (PyCFunction)(void (*)(void))chunks_times, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef chunks_members[] = {
    {"kept", T_OBJECT_EX, offsetof(Chunks, kept), READONLY, NULL},
    {"count", T_PYSSIZET, offsetof(Chunks, count), READONLY, NULL},
    {"held_ns", T_LONGLONG, offsetof(Chunks, held_ns), READONLY, NULL},
    {"waits", T_BOOL, offsetof(Chunks, waits), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef chunks_computed[] = {
    {"last", (getter)chunks_last, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot chunks_slots[] = {
    {Py_tp_doc, "What passed through a stream, and when."},
    {Py_tp_new, chunks_new},
    {Py_tp_traverse, chunks_traverse},
    {Py_tp_clear, chunks_clear},
    {Py_tp_dealloc, chunks_dealloc},
    {Py_tp_methods, chunks_methods},
    {Py_tp_members, chunks_members},
    {Py_tp_getset, chunks_computed},
    {0, NULL},
};

static PyType_Spec chunks_spec = {
    .name = "neuronscope._native.Chunks",
    .basicsize = sizeof(Chunks),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = chunks_slots,
};

int
ns_add_chunks(PyObject *module)
{
    static PyObject *type;
    if (type == NULL && (type = PyType_FromSpec(&chunks_spec)) == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Chunks", type);
}
