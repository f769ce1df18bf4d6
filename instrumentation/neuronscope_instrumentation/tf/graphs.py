"""`tf.function`: observing layers in graphs, only in traces that are made for it.

A layer that runs while a function is traced leaves an operation in the graph that shows its output to us
in every run.  Such a trace is kept under a key of its own in the function's cache, made of the layers that
are watched: a service that calls the function while nobody watches gets a trace without us, and pays
nothing.  These rules keep the service's own functions as they are:

- A function whose trace was there before anyone watched is not traced again: its Python side effects and
  the state of its random operations are the service's.  Its layers are told as ``traced before``.  Keras'
  own steps of `fit`, `evaluate` and `predict` have neither, and are traced anew.
- Concrete functions are made to be kept, saved or exported: nothing is put into them (``exported``).
- XLA cannot compile a callback: ``compiled``.

While nobody watches, nothing of TensorFlow's is patched.
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.native import new_lock
from neuronscope.signals.records import Attributes
from neuronscope_instrumentation.common.host_arrays import NOTHING, ArraySnapshot, of_array

if TYPE_CHECKING:
    from neuronscope_instrumentation.tf.slots import Slot

_KERAS_STEPS: Final = "keras.src.backend.tensorflow.trainer"
_FUNCTIONS: Final = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_TRACING: Final = "tensorflow.python.eager.polymorphic_function.tracing_compilation"
_SAVING: Final = "tensorflow.python.saved_model.save_context"

_lock: Final = new_lock()
_watched: weakref.WeakSet[Slot] = weakref.WeakSet()
_state: Final = threading.local()
_running: Final[list[contextvars.Context]] = []  # of the functions called and not yet returned from


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # the threads that ran them are not there


@dataclasses.dataclass(slots=True)
class _Frame:
    """A call of a function, or the making of a concrete one, in this thread.

    Attributes:
        observed: may operations of ours be put into what is traced?
        reason: why not.
        steps: it is a step of Keras' trainer.
        touched: some were, here or in a function called from here.
    """

    observed: bool
    reason: str = ""
    steps: bool = False
    touched: bool = False


# --- who watches --------------------------------------------------------------------------------------
def watch(slot: Slot) -> None:
    """Functions are traced with this slot from now on."""
    with _lock:
        _watched.add(slot)
        _PATCH.install()


def unwatch(slot: Slot) -> None:
    """They no longer are."""
    with _lock:
        _watched.discard(slot)
        if not _watched:
            _PATCH.remove()


# --- in the slot ----------------------------------------------------------------------------------------
def open_to(slot: Slot) -> bool:
    """May something of the slot's be put into the graph being traced?  If not it is told why."""
    frames = _frames()
    if frames and frames[-1].observed:
        return True
    slot.unseen(frames[-1].reason if frames else "graph")
    return False


def attach(slot: Slot, tensor: Any, told: Attributes = NOTHING, *, gradient: bool = False) -> Any:
    """Show the slot this tensor of the graph being traced, in every run of it: by the operation returned."""
    tf: Any = sys.modules["tensorflow"]
    if not open_to(slot):
        return None
    if not isinstance(tensor, tf.Tensor):
        slot.unseen(type(tensor).__name__)
        return None
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
            or tensor.dtype.is_complex):  # fmt: skip
        slot.unseen(f"dtype:{tensor.dtype.name}")
        return None
    reference = weakref.ref(slot)

    def seen(array: Any) -> None:
        watcher = reference()
        if watcher is not None and (watcher.gradients if gradient else watcher.observers):
            GUARD.call("tf.graph", _in_context, watcher, of_array(array, told), gradient)

    shown = tf.numpy_function(seen, [tensor], [], name="neuronscope")
    touch()
    return shown


def touch() -> None:
    """Something of ours is in the graph being traced: it is kept apart from the service's own."""
    _frames()[-1].touched = True


def _in_context(slot: Slot, snapshot: ArraySnapshot, gradient: bool) -> None:
    """In a thread of TensorFlow's: as if in the caller's, where there is but one caller."""
    context = None
    if not _frames():
        with _lock:
            context = _running[0].copy() if len(_running) == 1 else None
    if context is None:
        slot.notify(snapshot, gradient=gradient)
    else:
        context.run(partial(slot.notify, snapshot, gradient=gradient))


# --- in TensorFlow --------------------------------------------------------------------------------------
def _frames() -> list[_Frame]:
    frames: list[_Frame] | None = getattr(_state, "frames", None)
    if frames is None:
        frames = _state.frames = []
    return frames


@contextmanager
def _frame(frame: _Frame) -> Generator[None]:
    frames = _frames()
    frames.append(frame)
    try:
        yield
    finally:
        frames.pop()
        if frames and frame.touched:
            frames[-1].touched = True


@contextmanager
def _run() -> Generator[None]:
    """A function is called from Python: its callbacks belong where it was called."""
    context = contextvars.copy_context()
    with _lock:
        _running.append(context)
    try:
        yield
    finally:
        with _lock:
            _running[:] = [other for other in _running if other is not context]


def _opened(function: Any) -> _Frame:
    """The frame of a function's call."""
    frames = _frames()
    saving: Any = sys.modules[_SAVING]
    if saving.in_save_context():
        return _Frame(observed=False, reason="exported")
    if frames and not frames[-1].observed:
        return _Frame(observed=False, reason=frames[-1].reason)
    if getattr(function, "_jit_compile", None):
        return _Frame(observed=False, reason="compiled")
    python = getattr(function, "_python_function", None)
    return _Frame(observed=True, steps=getattr(python, "__module__", None) == _KERAS_STEPS)


class _Traces:
    """A function's cache of traces, as seen while layers are watched: ours come under another key."""

    def __init__(
        self, cache: Any, frame: _Frame, key: frozenset[tuple[int, bool, bool]], slots: tuple[Slot, ...]
    ) -> None:
        self._cache = cache
        self._frame = frame
        self._key = key
        self._slots = slots

    def lookup(self, kind: Any, context: Any = None) -> Any:
        ours = self._cache.lookup(kind, self._under(context))
        if ours is not None:
            self._frame.touched = True
            return ours
        plain = self._cache.lookup(kind, context)
        if plain is None or (concerned := self._concerned(plain)) is None:
            return plain
        if self._frame.steps:
            return None
        for slot in concerned:
            slot.unseen("traced before")
        return plain

    def add(self, function: Any, context: Any = None) -> None:
        self._cache.add(function, self._under(context) if self._frame.touched else context)

    def generalize(self, context: Any, kind: Any) -> Any:
        return self._cache.generalize(self._under(context), kind)

    def __len__(self) -> int:
        return len(self._cache)

    def _under(self, context: Any) -> Any:
        return context._replace(context=(context.context, self._key))

    def _concerned(self, plain: Any) -> list[Slot] | None:
        """The watched layers that a trace holds, by their variables; None if it holds none."""
        held = {id(variable) for variable in plain.graph.variables}
        found: list[Slot] = []
        for slot in self._slots:
            variables = slot.variables()
            if not variables or any(id(variable) in held for variable in variables):
                found.append(slot)
        return found or None


class _Patch:
    """The two functions of TensorFlow's that are replaced while someone watches."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        if self._undo or _FUNCTIONS not in sys.modules:
            return
        self._replace(sys.modules[_FUNCTIONS].Function, "_call", _watched_call)
        self._replace(sys.modules[_TRACING], "_maybe_define_function", _watched_definition)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(holder, name)
        ours = make(original)
        setattr(holder, name, ours)

        def undo() -> None:
            if getattr(holder, name) is ours:  # else somebody has patched it after us: theirs stays
                setattr(holder, name, original)

        self._undo.append(undo)


def _watched_call(original: Any) -> Any:
    def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _watched:  # whoever watched was collected with its model
            _PATCH.remove()
            return original(self, *args, **kwargs)
        frame = _opened(self)
        if _frames():
            with _frame(frame):
                return original(self, *args, **kwargs)
        with _run(), _frame(frame):
            return original(self, *args, **kwargs)

    return _call


def _watched_definition(original: Any) -> Any:
    def _maybe_define_function(args: Any, kwargs: Any, tracing_options: Any) -> Any:
        frames = _frames()
        if not frames:
            with _frame(_Frame(observed=False, reason="exported")):
                return original(args, kwargs, tracing_options)
        frame = frames[-1]
        cache = tracing_options.function_cache
        slots = tuple(_watched)
        if not frame.observed or cache is None or isinstance(cache, _Traces) or not slots:
            return original(args, kwargs, tracing_options)
        key = frozenset([slot.key for slot in slots])
        ours = _Traces(cache, frame, key, slots)
        return original(args, kwargs, dataclasses.replace(tracing_options, function_cache=ours))

    return _maybe_define_function


_PATCH: Final = _Patch()
