/* What is asked of every tensor, read where torch keeps it: `torch.layout` has found out where that is, or nothing is
 * read here and torch's bindings are asked. */
#include "tensors.h"

#include <string.h>

enum { AT_TENSOR, AT_KEYS, AT_COUNT, AT_OFFSET, AT_STORAGE, AT_DATA, AT_HELD, PLACES };

static Py_ssize_t places[PLACES];
static int known;

/* bind_layout(offsets in bytes, in this order); None: no longer */
PyObject *
ns_bind_layout(PyObject *Py_UNUSED(module), PyObject *given)
{
    known = 0;
    if (given == Py_None)
        Py_RETURN_NONE;
    if (!PyTuple_Check(given) || PyTuple_Size(given) != PLACES)
        return PyErr_Format(PyExc_TypeError, "bind_layout takes a tuple of %d offsets", PLACES);
    for (int i = 0; i < PLACES; i++) {
        places[i] = PyLong_AsSsize_t(PyTuple_GetItem(given, i));
        if (places[i] < 0 || places[i] > 4096 || places[i] % (Py_ssize_t)sizeof(int64_t))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no place for a number");
    }
    known = 1;
    Py_RETURN_NONE;
}

static const char *
pointer(const char *from, int which)
{
    const char *found;
    memcpy(&found, from + places[which], sizeof(found));
    return found;
}

static int64_t
word(const char *from, int which)
{
    int64_t found;
    memcpy(&found, from + places[which], sizeof(found));
    return found;
}

int
ns_lay_out(PyObject *tensor, Laid *laid)
{
    if (!known || !ns_is_exact(tensor))
        return 0;
    const char *body = pointer((const char *)tensor, AT_TENSOR), *storage;
    if (body == NULL || (storage = pointer(body, AT_STORAGE)) == NULL)
        return 0;
    *laid = (Laid){
        .keys = (uint64_t)word(body, AT_KEYS),
        .count = word(body, AT_COUNT),
        .offset = word(body, AT_OFFSET),
        .data = pointer(storage, AT_DATA),
        .held = word(storage, AT_HELD),
    };
    return 1;
}

/* laid_out(tensor) -> (dispatch keys, elements, offset, address of its storage, its bytes), or None */
PyObject *
ns_laid_out(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Laid laid;
    if (!ns_lay_out(tensor, &laid))
        Py_RETURN_NONE;
    return Py_BuildValue("(KLLKL)", (unsigned long long)laid.keys, (long long)laid.count, (long long)laid.offset,
                         (unsigned long long)(uintptr_t)laid.data, (long long)laid.held);
}
