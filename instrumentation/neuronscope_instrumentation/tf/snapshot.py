"""Finding Keras' tensors in outputs, and lending them to observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronscope.signals.records import Attributes
from neuronscope_instrumentation.common.host_arrays import NOTHING, ArraySnapshot
from neuronscope_instrumentation.common.structures import nodes


def of_eager(tensor: Any, attributes: Attributes = NOTHING) -> ArraySnapshot:
    """A snapshot of one of TensorFlow's eager tensors."""
    shape = tuple(tensor.shape)
    size = 1
    for extent in shape:
        size *= extent
    view: Any = getattr(tensor, "_numpy", None) or tensor.numpy  # `numpy` copies
    return ArraySnapshot(shape, tensor.dtype.name, size * tensor.dtype.size, view, attributes)


def first(output: object, wanted: Callable[[object], bool]) -> Any:
    """The first object of an output that is wanted, depth first, without running code of the user's."""
    return next((node for node in nodes(output) if wanted(node)), None)
