"""Gradients by a layer's output, through tensor hooks.

A full backward hook on the module would wrap its inputs and outputs, and make
``Sequential(Linear, ReLU(inplace=True))`` raise.  A tensor hook sees the same gradient and changes nothing.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable

import torch
from torch import nn

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.common.host_arrays import refusing
from neuronscope_instrumentation.common.observing import NO_GRADIENT
from neuronscope_instrumentation.torch import slots
from neuronscope_instrumentation.torch.snapshot import TorchSnapshot


def observe_gradients(module: nn.Module, callback: LayerCallback) -> Callable[[], None]:
    """Call `callback` with the gradient by each output; see `TorchAdapter.observe_gradient`."""
    observer = _Observer(callback)
    undo = slots.observe(module, observer)

    def undo_all() -> None:
        observer.active = False
        undo()

    return undo_all


class _Observer:
    """Puts a hook on each output, for as long as somebody watches."""

    __slots__ = ("active", "callback")

    def __init__(self, callback: LayerCallback) -> None:
        self.callback = callback
        self.active = True

    def __call__(self, snapshot: TensorSnapshot) -> None:
        if isinstance(snapshot, TorchSnapshot) and not snapshot.on_gradient(_Hook(self)):
            self.callback(refusing(NO_GRADIENT))


class _Hook:
    """Hands one gradient on, in the context of the forward that it belongs to."""

    # torch warns when a tensor with hooks is pickled, unless they say that they need not come along.
    __torch_unserialize__ = True
    __slots__ = ("_context", "_observer")

    def __init__(self, observer: _Observer) -> None:
        self._observer = observer
        self._context = contextvars.copy_context()

    def __call__(self, gradient: torch.Tensor) -> None:
        if self._observer.active:
            GUARD.call("torch.gradient", self._hand_on, gradient)

    def _hand_on(self, gradient: torch.Tensor) -> None:
        snapshot = TorchSnapshot(gradient)
        try:
            self._context.copy().run(self._observer.callback, snapshot)
        finally:
            snapshot.close()
