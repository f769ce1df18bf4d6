"""The slot: how a Keras layer's calls are seen without a trace once nobody watches.

`keras.Layer.__call__` ends in ``self.call(...)`` (``self.quantized_call`` once quantised), looked up on the
instance.  While someone watches, the layer's instance dictionary holds an `Entry` under that name.  Copies,
pickles and saved files are made from configuration and weights by Keras, so that none of them has it.

On PyTorch a Keras layer is an `nn.Module`: the slots of the `torch` adapter serve it, with all their rules.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import UnsupportedProbeError
from neuronscope.instrumentation import LayerCallback
from neuronscope.native import new_lock
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.tf import gradients, graphs
from neuronscope_instrumentation.tf.snapshot import NOTHING, ArraySnapshot, first, of_eager, refusing

_CALLS: Final = ("call", "quantized_call")
_lock: Final = new_lock()  # re-entrant: the garbage collector may run an undo inside an install
_notifying = threading.local()
_slots: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Slot]] = weakref.WeakKeyDictionary()
_reasons: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_serials: Final = itertools.count()
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named ones of a call


class Observer:
    """One callback on one slot.

    Attributes:
        gradient: it is told of gradients, not of outputs.
        active: False once undone; a run already under way then no longer calls it.
    """

    __slots__ = ("active", "callback", "gradient", "site", "slot")

    def __init__(self, slot: Slot, callback: LayerCallback, *, gradient: bool = False) -> None:
        self.slot = slot
        self.callback = callback
        self.gradient = gradient
        self.active = True
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        self.site = f"tf.observer:{name}"  # a callback that keeps failing is switched off alone

    def undo(self) -> None:
        """Stop watching: idempotent, from any thread, also after the layer is gone."""
        with _lock:
            if not self.active:
                return
            self.active = False
            slot = self.slot
            slot.observers = tuple([other for other in slot.observers if other is not self])
            slot.gradients = tuple([other for other in slot.gradients if other is not self])
            if not slot.observers and not slot.gradients:
                slot.remove()


class Slot:
    """Tells one object's observers of each output; there is one per object, however many watch.

    `observers` and `gradients` are replaced, never changed, so that a run under way needs no lock.  The
    object is held weakly: it owns the slot.

    Attributes:
        serial: tells slots apart in the keys of traces; an object keeps its own.
    """

    __slots__ = ("__weakref__", "gradients", "names", "observers", "owner", "see", "serial", "watching")

    def __init__(
        self, owner: Any, names: tuple[str, ...], see: Callable[[Slot, object, Arguments], None]
    ) -> None:
        self.owner = weakref.ref(owner)
        self.names = names
        self.see = see
        self.observers: tuple[Observer, ...] = ()
        self.gradients: tuple[Observer, ...] = ()
        self.serial = next(_serials)
        self.watching = False

    def install(self, owner: Any) -> None:
        """Put entries in the place of the object's methods."""
        self.watching = True
        _reasons.pop(owner, None)
        entries = owner.__dict__
        for name in self.names:
            if hasattr(owner.__class__, name):
                entries[name] = Entry(self, name, entries.get(name))
        graphs.watch(self)

    def remove(self) -> None:
        """Take them out again; one that somebody else has wrapped stays, and passes through."""
        self.watching = False
        graphs.unwatch(self)
        owner = self.owner()
        if owner is None:
            return
        entries = owner.__dict__
        for name in self.names:
            entry = entries.get(name)
            if isinstance(entry, Entry) and entry.slot is self:
                if entry.below is None:
                    del entries[name]
                else:
                    entries[name] = entry.below

    def unseen(self, reason: str) -> None:
        """The object ran, or will, where it cannot be observed."""
        owner = self.owner()
        if owner is not None:
            _reasons[owner] = reason

    @property
    def key(self) -> tuple[int, bool, bool]:
        """Whose slot it is, and what it puts into a trace."""
        return self.serial, bool(self.observers), bool(self.gradients)

    def variables(self) -> list[Any]:
        """The object's TensorFlow variables."""
        found: list[Any] = getattr(self.owner(), "variables", [])
        return [getattr(variable, "_value", variable) for variable in found]

    def notify(self, snapshot: ArraySnapshot, *, gradient: bool = False) -> None:
        """Lend the snapshot to the observers; what they run is not observed itself."""
        if getattr(_notifying, "now", False):
            return
        _notifying.now = True
        try:
            for observer in self.gradients if gradient else self.observers:
                if observer.active:
                    GUARD.call(observer.site, observer.callback, snapshot)
        finally:
            _notifying.now = False
            snapshot.close()


class Entry:
    """Stands for a method of a watched object, under its name in the object's instance dictionary.

    Attributes:
        below: what had that place before, if anything; else the class's method is called.
    """

    # AutoGraph converts no method that Keras calls, and calls what has this as it is.
    autograph_info__: Final[Mapping[str, Any]] = {}

    def __init__(self, slot: Slot, name: str, below: Callable[..., Any] | None) -> None:
        self.slot = slot
        self.name = name
        self.below = below

    def _method(self) -> Callable[..., Any]:
        if self.below is not None:
            return self.below
        owner = self.slot.owner()
        if owner is None:
            raise ReferenceError("a watched layer was called after it was gone")
        method: Callable[..., Any] = getattr(owner.__class__, self.name).__get__(owner)
        return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method as if nobody watched, then tell the observers."""
        output = self._method()(*args, **kwargs)
        slot = self.slot
        if slot.observers:
            GUARD.call("tf.slot", slot.see, slot, output, (args, kwargs))
        if slot.gradients:
            return GUARD.call("tf.gradient", gradients.through, slot, output, default=output)
        return output

    @property
    def __signature__(self) -> inspect.Signature:
        """The method's own: Keras names arguments in its messages."""
        return inspect.signature(self._method())

    def __getattr__(self, name: str) -> Any:
        if name in {"below", "name", "slot"}:
            raise AttributeError(name)  # while a copy is being made
        return getattr(self._method(), name)


def observe(layer: Any, callback: LayerCallback) -> Callable[[], None]:
    """Call `callback` with a snapshot of the layer's output after each of its runs; returns the undo."""
    keras: Any = sys.modules["keras"]  # whoever has a layer has imported it
    backend = keras.backend.backend()
    if backend == "torch":
        from neuronscope_instrumentation.torch import slots

        return slots.observe(layer, _outside_of_shapes(callback))
    return join(layer, _CALLS, _BACKENDS.get(backend, see_array), callback)


def _outside_of_shapes(callback: LayerCallback) -> LayerCallback:
    """On PyTorch Keras works out shapes by running layers on real tensors, or on those of `meta`."""

    @wraps(callback)
    def call(snapshot: TensorSnapshot) -> None:
        if not symbolic():
            callback(snapshot)

    return call


def observe_gradient(layer: Any, callback: LayerCallback) -> Callable[[], None]:
    """Call `callback` with the gradient by each of the layer's outputs; returns the undo.

    Raises:
        UnsupportedProbeError: Keras runs on a backend that has no such thing.
    """
    keras: Any = sys.modules["keras"]
    backend = keras.backend.backend()
    if backend == "torch":
        from neuronscope_instrumentation.torch.gradients import observe_gradients

        return observe_gradients(layer, callback)
    if backend != "tensorflow":
        raise UnsupportedProbeError(
            f"Keras on {backend} shows no gradients by layers: its training step is one program. "
            "Keras on TensorFlow or PyTorch does, and so do models of Flax and Equinox"
        )
    return join(layer, _CALLS, see_tensorflow, callback, gradient=True)


def join(
    owner: Any,
    names: tuple[str, ...],
    see: Callable[[Slot, object, Arguments], None],
    callback: LayerCallback,
    *,
    gradient: bool = False,
) -> Callable[[], None]:
    """Observe the methods `names` of an object; `see` finds the tensor of an output."""
    with _lock:
        slots = _slots.setdefault(owner, {})
        slot = slots.get(names)
        if slot is None:
            slot = slots[names] = Slot(owner, names, see)
        observer = Observer(slot, callback, gradient=gradient)
        if gradient:
            slot.gradients += (observer,)
        else:
            slot.observers += (observer,)
        if not slot.watching:
            slot.install(owner)
    return observer.undo


def why_not_visited(layer: Any) -> str:
    """See `KerasAdapter.not_visited`."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(layer, torch.nn.Module):
        return "not run"
    return _reasons.get(layer, "not run")


# --- where the tensor of an output is, by Keras' backend --------------------------------------------------
def see_tensorflow(
    slot: Slot, output: object, _: Arguments | None = None, told: Attributes = NOTHING
) -> None:
    """TensorFlow: at once where layers run eagerly; else by an operation in the graph being traced."""
    tf: Any = sys.modules["tensorflow"]
    kinds: Any = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)
    tensor: Any = first(output, lambda node: isinstance(node, kinds))
    if tensor is None:
        return
    if not tf.executing_eagerly():
        if not symbolic():
            graphs.attach(slot, tensor, told)
        return
    if not isinstance(tensor, tf.Tensor):
        slot.notify(refusing(type(tensor).__name__))
        return
    slot.notify(of_eager(tensor, told))


def see_jax(slot: Slot, output: object, _: Arguments | None = None, told: Attributes = NOTHING) -> None:
    """JAX: at once where layers run eagerly; a compiled program shows nothing of its inside."""
    import numpy as np

    jax: Any = sys.modules["jax"]
    array: Any = first(output, lambda node: isinstance(node, jax.Array))
    if array is None:
        return
    if isinstance(array, jax.core.Tracer):
        if not symbolic():
            slot.unseen("compiled")
        return
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        slot.notify(refusing(f"dtype:{array.dtype}"))
        return
    slot.notify(ArraySnapshot(array.shape, array.dtype.name, array.nbytes, lambda: np.asarray(array), told))


def see_array(slot: Slot, output: object, _: Arguments | None = None, told: Attributes = NOTHING) -> None:
    """Other backends: whatever numpy can look at."""
    import numpy as np

    value: Any = first(output, lambda node: hasattr(node, "__array__"))
    if value is not None:
        array = np.asarray(value)
        slot.notify(ArraySnapshot(array.shape, array.dtype.name, array.nbytes, lambda: array, told))


_BACKENDS: Final = {"tensorflow": see_tensorflow, "jax": see_jax}


def symbolic() -> bool:
    """Is Keras only working out shapes?"""
    scope: Any = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return scope is not None and bool(scope.in_symbolic_scope())
