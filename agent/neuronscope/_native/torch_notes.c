/* What is noted of a layer's run where nothing is left to decide: the quick way to what `LayerObserver` does.
 *
 * The first run in a context goes through the observer, in Python, which then may hold a permit: for this context,
 * at these costs, out of an allowance.  Runs for which every observer has one are measured and noted here, and
 * `neuronscope.notes` makes records of the notes later, in another thread.  Whatever is unusual about a run (a
 * subclass, a recomputation, a process group, no allowance left) goes the long way.  So no twin is needed: it is
 * the long way. */
#include "notes.h"
#include "tensors.h"
#include "turns.h"
#include <math.h>
#include <time.h>

enum { CONTEXT, RECORDING, GRAPH, CLOCK, OURS, WAKE = OURS, REFILL, GROUPS, GIVEN };
enum { MOST = 8192, TOGETHER = 8, WAKE_EVERY = 256, CLOCKED_EVERY = 16 };

static Function asked[OURS];
static PyObject *wake, *refill, *groups, *shape_name;

typedef struct {
    PyObject *told, *shape, *elements; /* held */
    Moments moments;
    long long when, nbytes;
    double cost, spent;
} Note;

static Note *notes;
static Py_ssize_t waiting, room;

/* bind_notes(context, recording, graph task, CPU clock, wake, refill, process groups): functions without arguments, but
 * for `refill`, which is given what a permit tells when its allowance does not suffice; `wake` is called when a note
 * waits that nobody knows of. */
PyObject *
ns_bind_notes(PyObject *Py_UNUSED(module), Args args, Py_ssize_t n)
{
    if (!ns_takes("bind_notes", n, GIVEN))
        return NULL;
    for (int i = 0; i < GROUPS; i++)
        if (!PyCallable_Check(args[i]))
            return PyErr_Format(PyExc_TypeError, "bind_notes takes functions first");
    if (!PyDict_Check(args[GROUPS]))
        return PyErr_Format(PyExc_TypeError, "bind_notes takes a dictionary of process groups");
    if (shape_name == NULL && (shape_name = PyUnicode_InternFromString("shape")) == NULL)
        return NULL;
    for (int i = 0; i < OURS; i++) {
        Py_XDECREF(asked[i].callable);
        asked[i] = ns_resolve(args[i]);
    }
    PyObject *before[] = {wake, refill, groups};
    wake = Py_NewRef(args[WAKE]);
    refill = Py_NewRef(args[REFILL]);
    groups = Py_NewRef(args[GROUPS]);
    Py_XDECREF(before[0]);
    Py_XDECREF(before[1]);
    Py_XDECREF(before[2]);
    Py_RETURN_NONE;
}

/* --- noting -------------------------------------------------------------------------------------------- */
/* The permit of an observer, borrowed; None if it is not to be told any more; NULL if it has none. */
static PyObject *
permit_of(PyObject *observer)
{
    if (!PyObject_TypeCheck(observer, ns_observer_type))
        return NULL;
    if (!((NsObserver *)observer)->active)
        return Py_None;
    PyObject *callback = ((NsObserver *)observer)->callback;
    if (callback == NULL || !PyObject_TypeCheck(callback, ns_holder_type))
        return NULL;
    PyObject *permit = ((Holder *)callback)->permit;
    return permit != NULL && Py_IS_TYPE(permit, ns_permit_type) ? permit : NULL;
}

typedef struct {
    Permit *permits[TOGETHER]; /* held */
    double costs[TOGETHER];
    int count;
} Permits;

/* The permits of all observers, if each has one for this context: 1; 0: somebody is to be told; -1 with an exception.
 */
static int
permits_of(PyObject *observers, Permits *held)
{
    Py_ssize_t n = PyTuple_Size(observers);
    if (n > TOGETHER)
        return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *permit = permit_of(PyTuple_GetItem(observers, i));
        if (permit == NULL)
            return PyErr_Occurred() ? -1 : 0;
        if (permit != Py_None)
            held->permits[held->count++] = (Permit *)Py_NewRef(permit);
    }
    PyObject *context = ns_ask(&asked[CONTEXT], NULL);
    PyObject *recording = context == NULL ? NULL : ns_ask(&asked[RECORDING], NULL);
    int same = recording == NULL ? -1 : 1;
    for (int i = 0; i < held->count; i++)
        if (held->permits[i]->context != context || held->permits[i]->recording != recording)
            same = recording == NULL ? -1 : 0;
    Py_XDECREF(context);
    Py_XDECREF(recording);
    return same;
}

/* Is this a run as any other?  -1 with an exception. */
static int
is_usual(void)
{
    int real = ns_is_real();
    if (real <= 0)
        return real;
    PyObject *task = ns_ask(&asked[GRAPH], NULL); /* within a backward pass it is a recomputation */
    if (task == NULL)
        return -1;
    long none = PyLong_AsLong(task);
    Py_DECREF(task);
    return none == -1 && PyErr_Occurred() ? -1 : none == -1 && PyDict_Size(groups) == 0;
}

static PyObject *
tensor_in(PyObject *output)
{
    if (PyTuple_CheckExact(output) && PyTuple_Size(output) > 0)
        output = PyTuple_GetItem(output, 0);
    return ns_is_exact(output) ? output : NULL;
}

static int
cpu_ns(long long *now)
{
    PyObject *found = ns_ask(&asked[CLOCK], NULL);
    *now = found == NULL ? -1 : PyLong_AsLongLong(found);
    Py_XDECREF(found);
    return *now == -1 && PyErr_Occurred() ? -1 : 0;
}

/* What the budget expects it to cost; infinite or negative numbers do no harm. */
static double
cost_of(const Permit *permit, long long nbytes)
{
    Py_ssize_t size = 0;
    for (; nbytes; nbytes >>= 1)
        size++;
    PyObject *cost = size < PyList_Size(permit->costs) ? PyList_GetItem(permit->costs, size) : NULL;
    return cost != NULL && PyFloat_CheckExact(cost) ? PyFloat_AsDouble(cost) : HUGE_VAL;
}

/* Is there as much left of the allowance, or can there be?  -1 with an exception. */
static int
affords(const Permit *permit, double cost)
{
    const Allowance *allowance = (Allowance *)permit->allowance;
    if (cost <= allowance->left)
        return 1;
    if (cost == HUGE_VAL)
        return 0;
    return ns_call_undisturbed(refill, permit->told) < 0 ? -1 : cost <= allowance->left;
}

static int
make_room(int more)
{
    if (waiting + more <= room)
        return 1;
    Py_ssize_t wanted = room ? 2 * room : 256;
    Note *moved = wanted > MOST ? NULL : PyMem_Realloc(notes, wanted * sizeof(Note));
    if (moved == NULL)
        return 0; /* nobody empties it: the long way counts what is lost */
    notes = moved;
    room = wanted;
    return 1;
}

static long long
wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Keep what was measured: 1; 0 if nobody empties the notes.  Nothing here lets other threads in. */
static int
keep(const Permits *held, PyObject *shape, const Place *place, const Moments *moments, double spent)
{
    if (!make_room(held->count))
        return 0; /* the long way counts what is lost */
    long long when = wall_ns();
    for (int i = 0; i < held->count; i++) {
        Permit *permit = held->permits[i];
        int clocked = permit->unclocked <= 0;
        permit->unclocked = clocked ? CLOCKED_EVERY - 1 : permit->unclocked - 1;
        ((Allowance *)permit->allowance)->left -= held->costs[i];
        notes[waiting++] = (Note){
            Py_NewRef(permit->told), Py_NewRef(shape), Py_NewRef(place->elements), *moments, when,
            place->count * place->width, held->costs[i], clocked ? spent / held->count : -1.0,
        };
    }
    return 1;
}

/* Measure and note the tensor for all permits: 1; 0: not this way; -1 with an exception. */
static int
measure(Permits *held, PyObject *tensor)
{
    Place place;
    Moments moments;
    long long before = 0, after = 0;
    int clocked = 0;
    for (int i = 0; i < held->count; i++)
        clocked |= held->permits[i]->unclocked <= 0;
    if (clocked && cpu_ns(&before) < 0)
        return -1;
    int there = is_usual();
    if (there > 0)
        there = ns_locate(tensor, &place);
    if (there <= 0)
        return there;
    for (int i = 0; i < held->count; i++) {
        there = affords(held->permits[i], held->costs[i] = cost_of(held->permits[i], place.count * place.width));
        if (there <= 0)
            return there;
    }
    if (!ns_measure(&place, &moments))
        return 0;
    PyObject *shape = PyObject_GetAttr(tensor, shape_name);
    if (shape == NULL || (clocked && cpu_ns(&after) < 0)) {
        Py_XDECREF(shape);
        return -1;
    }
    there = keep(held, shape, &place, &moments, (double)(after - before));
    Py_DECREF(shape);
    return there;
}

int
ns_jot(PyObject *observers, PyObject *output)
{
    PyObject *tensor = tensor_in(output);
    if (tensor == NULL || wake == NULL || ns_is_notifying() || ns_any_off())
        return 0;
    Permits held = {.count = 0};
    int there = permits_of(observers, &held);
    if (there > 0 && held.count > 0) {
        Py_ssize_t before = waiting;
        there = measure(&held, tensor);
        if (there > 0 && (waiting <= held.count || before / WAKE_EVERY != waiting / WAKE_EVERY))
            there = ns_call_undisturbed(wake, NULL) < 0 ? -1 : 1;
    }
    for (int i = 0; i < held.count; i++)
        Py_DECREF((PyObject *)held.permits[i]);
    return there;
}

/* --- handing over -------------------------------------------------------------------------------------- */
PyObject *
ns_notes_waiting(PyObject *Py_UNUSED(module), Args Py_UNUSED(args), Py_ssize_t n)
{
    return ns_takes("notes_waiting", n, 0) ? PyLong_FromSsize_t(waiting) : NULL;
}

static PyObject *
told_of(const Note *note)
{
    PyObject *summary = ns_summary(&note->moments);
    PyObject *shape = summary == NULL ? NULL : PySequence_Tuple(note->shape);
    if (shape == NULL) {
        Py_XDECREF(summary);
        return NULL;
    }
    return Py_BuildValue("(ONNOLLdd)", note->told, summary, shape, PyTuple_GetItem(note->elements, 0), note->when,
                         note->nbytes, note->cost, note->spent);
}

/* take_notes() -> what has been noted since, in order: (what the permit tells, summary, shape, element type, unix
 * ns, bytes, what the budget expected it to cost, what it did or -1) */
PyObject *
ns_take_notes(PyObject *Py_UNUSED(module), Args Py_UNUSED(args), Py_ssize_t n)
{
    if (!ns_takes("take_notes", n, 0))
        return NULL;
    Note *taken = notes; /* others may note while these are handed over */
    Py_ssize_t count = waiting;
    notes = NULL;
    waiting = room = 0;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *told = list == NULL ? NULL : told_of(&taken[i]);
        if (told == NULL || PyList_Append(list, told) < 0)
            Py_CLEAR(list);
        Py_XDECREF(told);
        Py_DECREF(taken[i].told);
        Py_DECREF(taken[i].shape);
        Py_DECREF(taken[i].elements);
    }
    PyMem_Free(taken);
    return list;
}
