"""TensorFlow: gradients by a layer's output, through an identity that shows what flows back.

The layer's tensor is handed on through `tf.custom_gradient`: the same values, and whatever tape is recording
gives the gradient to us on its way.  In a graph the gradient is shown by an operation, as outputs are.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.common.host_arrays import refusing
from neuronscope_instrumentation.common.observing import NO_GRADIENT
from neuronscope_instrumentation.tf import graphs
from neuronscope_instrumentation.tf.snapshot import first, of_eager

if TYPE_CHECKING:
    from neuronscope_instrumentation.tf.slots import Slot

_RECORD: Final = "tensorflow.python.eager.record"


def through(slot: Slot, output: Any) -> Any:
    """A layer's output, for whoever runs on with it: as it is, or with the identity on its first tensor."""
    tf: Any = sys.modules["tensorflow"]
    tensor: Any = first(output, lambda node: isinstance(node, tf.Tensor))
    if tensor is None:
        return output
    eager = tf.executing_eagerly()
    differentiable = tensor.dtype.is_floating or tensor.dtype.is_complex
    if eager and not (differentiable and sys.modules[_RECORD].should_record_backprop([tensor])):
        slot.notify(refusing(NO_GRADIENT), gradient=True)
        return output
    if not eager and not (isinstance(tensor, tf.Tensor) and graphs.open_to(slot)):
        return output
    if not eager:
        slot.unseen(NO_GRADIENT)  # until one flows
        if not differentiable:
            return output
        graphs.touch()
    shown = _identity(tf, slot)(tensor)
    if output is tensor:
        return shown
    parts = [shown if part is tensor else part for part in tf.nest.flatten(output)]
    return tf.nest.pack_sequence_as(output, parts)


def _identity(tf: Any, slot: Slot) -> Any:
    def flows_back(gradient: Any) -> Any:
        return GUARD.call("tf.gradient", _show, tf, slot, gradient, default=gradient)

    def identity(x: Any) -> Any:
        return tf.identity(x), flows_back

    return tf.custom_gradient(identity)


def _show(tf: Any, slot: Slot, gradient: Any) -> Any:
    """Show a gradient; gives what flows on."""
    if not slot.gradients:
        return gradient
    if not isinstance(gradient, tf.Tensor):
        slot.notify(refusing(type(gradient).__name__), gradient=True)
    elif tf.executing_eagerly():
        slot.notify(of_eager(gradient), gradient=True)
    elif (shown := graphs.attach(slot, gradient, gradient=True)) is not None:
        # The graph of a backward pass runs nothing that its results do not need.
        with tf.control_dependencies([shown]):
            return tf.identity(gradient)
    return gradient
