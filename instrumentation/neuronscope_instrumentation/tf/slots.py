"""Watching Keras layers, and whatever else TensorFlow runs: outputs, gradients, and both out of graphs.

`keras.Layer.__call__` ends in ``self.call(...)`` (``self.quantized_call`` once quantised), looked up on the
instance: these are the methods watched.  Copies, pickles and saved files are made from configuration and
weights by Keras, so that none of them has an entry of ours.

On PyTorch a Keras layer is an `nn.Module`: the slots of the `torch` adapter serve it, with all their rules.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import UnsupportedProbeError
from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.common.host_arrays import ArraySnapshot
from neuronscope_instrumentation.common.methods import LOCK, Arguments, Entry, MethodSlot
from neuronscope_instrumentation.common.observing import Lender, Observer
from neuronscope_instrumentation.tf import gradients, graphs, outputs

_CALLS: Final = ("call", "quantized_call")
RUNTIME: Final = "tf"
_LENDER: Final = Lender()
_slots: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Slot]] = weakref.WeakKeyDictionary()
_reasons: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_serials: Final = itertools.count()
See = Callable[["Slot", object, Arguments], None]


class Slot(MethodSlot):
    """Tells one object's observers of outputs, and of gradients by them, also out of graphs.

    Attributes:
        gradients: who is told of gradients; replaced, never changed.
        serial: tells slots apart in the keys of traces; an object keeps its own.
    """

    def __init__(self, owner: Any, names: tuple[str, ...], find: See) -> None:
        super().__init__(owner, names, RUNTIME)
        self._find = find
        self.gradients: tuple[Observer, ...] = ()
        self.serial = next(_serials)

    def see(self, output: Any, call: Arguments) -> None:
        """Find the output's tensor, and lend it."""
        self._find(self, output, call)

    def after(self, output: Any, call: Arguments) -> Any:
        """Where gradients are watched, the caller gets the output through an identity that shows them."""
        output = super().after(output, call)
        if self.gradients:
            return GUARD.call("tf.gradient", gradients.through, self, output, default=output)
        return output

    @property
    def wanted(self) -> bool:
        """Is anybody here?"""
        return bool(self.observers or self.gradients)

    def drop(self, observer: Observer) -> None:
        """One of the observers has left, of whichever kind."""
        self.gradients = tuple([other for other in self.gradients if other is not observer])
        super().drop(observer)

    def install(self, owner: Any) -> None:
        """Put entries in place; functions are traced with this slot from now on."""
        if not self.entries:
            _reasons.pop(owner, None)
            super().install(owner)
            graphs.watch(self)

    def entry(self, name: str, below: Callable[..., Any] | None) -> Entry:
        """One that AutoGraph leaves alone."""
        return _Entry(self, name, below)

    def remove(self) -> None:
        """Take them out; functions no longer are."""
        graphs.unwatch(self)
        super().remove()

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
        """Lend the snapshot to the observers."""
        _LENDER.lend(self.gradients if gradient else self.observers, snapshot)


class _Entry(Entry):
    # AutoGraph converts no method that Keras calls, and calls what has this as it is.
    autograph_info__: Final[Mapping[str, Any]] = {}


def observe(layer: Any, callback: LayerCallback) -> Callable[[], None]:
    """Call `callback` with a snapshot of the layer's output after each of its runs; returns the undo."""
    keras: Any = sys.modules["keras"]  # whoever has a layer has imported it
    backend = keras.backend.backend()
    if backend == "torch":
        from neuronscope_instrumentation.torch import slots

        return slots.observe(layer, _outside_of_shapes(callback))
    return join(layer, _CALLS, outputs.of_backend(backend), callback)


def _outside_of_shapes(callback: LayerCallback) -> LayerCallback:
    """On PyTorch Keras works out shapes by running layers on real tensors, or on those of `meta`."""

    @wraps(callback)
    def call(snapshot: TensorSnapshot) -> None:
        if not outputs.symbolic():
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
    return join(layer, _CALLS, outputs.see_tensorflow, callback, gradient=True)


def join(
    owner: Any, names: tuple[str, ...], find: See, callback: LayerCallback, *, gradient: bool = False
) -> Callable[[], None]:
    """Observe the methods `names` of an object; `find` gives the tensor of an output to the slot."""
    with LOCK:
        slots = _slots.setdefault(owner, {})
        slot = slots.get(names)
        if slot is None:
            slot = slots[names] = Slot(owner, names, find)
        observer = Observer(slot, callback, RUNTIME)
        if gradient:
            slot.gradients += (observer,)
        else:
            slot.observers += (observer,)
        slot.install(owner)
    return observer.undo


def why_not_visited(layer: Any) -> str:
    """See `KerasAdapter.not_visited`."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(layer, torch.nn.Module):
        return "not run"
    return _reasons.get(layer, "not run")
