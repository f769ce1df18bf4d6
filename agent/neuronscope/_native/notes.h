/* Permits to note runs of layers, and what they are paid out of.  torch_permits.c */
#ifndef NEURONSCOPE_NOTES_H
#define NEURONSCOPE_NOTES_H

#include "native.h"

/* What a budget has advanced to captures that are noted: nanoseconds. */
typedef struct {
    PyObject_HEAD
    double left;
} Allowance;

typedef struct {
    PyObject_HEAD
    PyObject *told, *context, *recording, *costs, *allowance;
    Py_ssize_t unclocked; /* runs until the next whose time is taken */
} Permit;

/* What an observer inherits. */
typedef struct {
    PyObject_HEAD
    PyObject *permit;
} Holder;

extern PyTypeObject *ns_permit_type, *ns_holder_type;

#endif
