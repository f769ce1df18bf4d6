/* Protobuf's wire format into a growing buffer.  Source: protobuf.dev, "Encoding". */
#ifndef NEURONSCOPE_WIRE_H
#define NEURONSCOPE_WIRE_H

#include "native.h"
#include <string.h>

#define NS_FIRST 2048 /* most spans fit, and need no allocation */

typedef struct {
    char *data;
    size_t size, room;
    char first[NS_FIRST];
} Buffer;

static inline void
ns_begin(Buffer *out)
{
    out->data = out->first;
    out->size = 0;
    out->room = NS_FIRST;
}

static inline void
ns_end(Buffer *out)
{
    if (out->data != out->first)
        PyMem_Free(out->data);
}

int ns_grow(Buffer *out, size_t more);

/* Make room for `more` bytes; -1 with an exception. */
static inline int
ns_reserve(Buffer *out, size_t more)
{
    return more <= out->room - out->size ? 0 : ns_grow(out, more);
}

/* The ones below need the room to be there. */
static inline void
ns_byte(Buffer *out, unsigned char byte)
{
    out->data[out->size++] = (char)byte;
}

static inline void
ns_bytes(Buffer *out, const void *bytes, size_t size)
{
    memcpy(out->data + out->size, bytes, size);
    out->size += size;
}

#define NS_LONGEST_VARINT 10

/* Writes at a place, and returns the one behind: a compiler has to read `out->size` again after each byte. */
static inline char *
ns_varint_at(char *at, uint64_t number)
{
    while (number > 127) {
        *at++ = (char)((unsigned char)(number & 127) | 128);
        number >>= 7;
    }
    *at++ = (char)number;
    return at;
}

static inline void
ns_varint(Buffer *out, uint64_t number)
{
    out->size = (size_t)(ns_varint_at(out->data + out->size, number) - out->data);
}

static inline size_t
ns_varint_size(uint64_t number)
{
    size_t size = 1;
    while (number > 127) {
        number >>= 7;
        size++;
    }
    return size;
}

static inline void
ns_little64(Buffer *out, uint64_t number)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> (8 * i));
    ns_bytes(out, bytes, 8);
}

static inline void
ns_big64(Buffer *out, uint64_t number)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> (56 - 8 * i));
    ns_bytes(out, bytes, 8);
}

/* A length-delimited field; makes its own room. */
static inline int
ns_delimited(Buffer *out, unsigned char tag, const void *bytes, size_t size)
{
    if (ns_reserve(out, 1 + NS_LONGEST_VARINT + size) < 0)
        return -1;
    ns_byte(out, tag);
    ns_varint(out, size);
    ns_bytes(out, bytes, size);
    return 0;
}

/* UTF-8 of a text.  `*held` is NULL, or an object to release when the bytes have been used: a text with lone
 * surrogates has no UTF-8, and `twins` holds the Python function that replaces them. */
const char *ns_utf8(PyObject *text, PyObject *utf8, Py_ssize_t *size, PyObject **held);

/* A text as a length-delimited field. */
int ns_text(Buffer *out, unsigned char tag, PyObject *text, PyObject *utf8);

/* pairs.c: attributes as repeated `KeyValue` fields with this tag.  What only Python knows how to write is
 * asked of `any_value`; returns how many have no form in OTLP, or -1 with an exception. */
Py_ssize_t ns_pairs(Buffer *out, unsigned char tag, PyObject *attributes, PyObject *twins);

/* spans.c: the body of a `Span` message; -1 with an exception. */
int ns_span(Buffer *out, PyObject *record, PyObject *kinds, PyObject *statuses, PyObject *twins);

/* An unsigned integer of at most 64 bits; -1 with an exception. */
int ns_uint64(PyObject *number, uint64_t *found);

#endif
