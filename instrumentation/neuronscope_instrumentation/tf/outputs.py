"""Where the tensor of a layer's output is, by Keras' backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from neuronscope.signals.records import Attributes
from neuronscope_instrumentation.common.host_arrays import NOTHING, ArraySnapshot, refusing
from neuronscope_instrumentation.common.methods import Arguments
from neuronscope_instrumentation.tf import graphs
from neuronscope_instrumentation.tf.snapshot import first, of_eager

if TYPE_CHECKING:
    from neuronscope_instrumentation.tf.slots import Slot


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


_BACKENDS: Final[dict[str, Callable[..., None]]] = {"tensorflow": see_tensorflow, "jax": see_jax}


def of_backend(backend: str) -> Callable[..., None]:
    """What finds an output's tensor, where Keras runs on this backend, and lends it to observers."""
    return _BACKENDS.get(backend, see_array)


def symbolic() -> bool:
    """Is Keras only working out shapes?"""
    scope: Any = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return scope is not None and bool(scope.in_symbolic_scope())
