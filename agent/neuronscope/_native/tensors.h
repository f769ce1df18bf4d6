/* What is known of a torch tensor that the summary kernel may read, and of the run it comes from.  torch_tensors.c */
#ifndef NEURONSCOPE_TENSORS_H
#define NEURONSCOPE_TENSORS_H

#include "torch.h"

/* Functions of torch's and ours, and what else `bind_tensors` takes, in its order. */
enum { MODES, KEYS, TRACING, TRANSFORM, DISPATCH, ON_DEVICE, RAW, DYNAMO, REAL, FIRST, SNAPSHOT, FAULT, FUNCTIONS };
enum { TENSOR = FUNCTIONS, PARAMETER, TYPES, OTHER_KEYS, SUMMARY, DISABLED, COMPILER, QUESTION, NOTHING, KERNEL, HOLD, COUNT };

extern Function ns_torch[FUNCTIONS];
extern PyObject *ns_disabled;                 /* the guard's sites */
extern PyObject *ns_compiler, *ns_question;   /* torch.compiler's namespace; its `is_compiling`, if that is known */
extern PyObject *ns_nothing;                  /* a snapshot's attributes */

typedef struct {
    double count, finite, mean, squares, energy, low, high, zeros, nans, infs;
} Moments;

typedef struct {
    PyObject *elements; /* borrowed: (name, bytes of an element, the kernel's number) */
    const void *data;
    long long kind, count, width;
} Place;

/* What torch keeps of a tensor. */
typedef struct {
    uint64_t keys;
    int64_t count, offset, held;
    const char *data;
} Laid;

/* Read that of an exact tensor: 1; 0: torch must be asked.  torch_layout.c */
int ns_lay_out(PyObject *tensor, Laid *laid);

int ns_telling_ready(void); /* torch_telling.c */

/* Is it an exact tensor or parameter, no subclass? */
int ns_is_exact(PyObject *tensor);

/* False while something runs the model to learn its structure; -1 with an exception. */
int ns_is_real(void);

/* Does an observer run in this thread? */
int ns_is_notifying(void);

/* Is any of the guard's sites switched off? */
int ns_any_off(void);

/* Where its values are, if they are plain host memory in one piece that is really there: 1; 0: the twin has to
 * look; -1 with an exception. */
int ns_locate(PyObject *tensor, Place *place);

/* Its moments: 1; 0 if the kernel cannot. */
int ns_measure(const Place *place, Moments *moments);

/* The moments as a `TensorSummary`. */
PyObject *ns_summary(const Moments *moments);

/* Call a function of ours, with an argument or none (NULL), while Dynamo compiles nothing; what it raises goes to the
 * guard: -1 if not. */
int ns_call_undisturbed(PyObject *function, PyObject *argument);

/* Note the output for its observers, if each of them holds a permit: 1; 0: they are to be told.  torch_notes.c */
int ns_jot(PyObject *observers, PyObject *output);

#endif
