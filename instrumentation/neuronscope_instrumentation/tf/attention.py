"""Attention weights of Keras' layers: where they compute them, else again from a fused kernel's arguments.

`MultiHeadAttention` and `GroupQueryAttention` do their work in a method that gets projected queries and
keys, `Attention` and `AdditiveAttention` in one that returns the weights.  These methods are watched, as
`call` is; the layer computes as it would, so where it uses a fused kernel the weights are computed twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Final

from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.records import Attributes
from neuronscope_instrumentation.common.host_arrays import ArraySnapshot, of_array, refusing
from neuronscope_instrumentation.common.methods import Arguments
from neuronscope_instrumentation.common.observing import MODEL, NO_ATTENTION, RECOMPUTED, OfHeads
from neuronscope_instrumentation.tf import layers, outputs, slots
from neuronscope_instrumentation.tf.slots import Slot

_PROJECTED: Final = "_compute_attention"
_SCORED: Final = "_apply_scores"
NAMES: Final = (_PROJECTED, _SCORED)


def observe(layer: Any, callback: LayerCallback, heads: Sequence[int] | None) -> Callable[[], None]:
    """Call `callback` with the weights of each run of the attention layers that a layer is, or holds."""
    attending = [
        each
        for each in (layer, *(below for _, below in layers.distinct(layer)))
        if any(hasattr(each.__class__, name) for name in NAMES)
    ]
    if not attending:
        return slots.observe(layer, lambda _: callback(refusing(NO_ATTENTION)))
    if heads is not None:
        callback = OfHeads(callback, heads, ArraySnapshot.of_heads)
    undo = [slots.join(each, NAMES, _see, callback) for each in attending]

    def undo_all() -> None:
        for step in undo:
            step()

    return undo_all


def _see(slot: Slot, output: Any, call: Arguments) -> None:
    if outputs.symbolic():
        return
    keras: Any = sys.modules["keras"]
    backend = keras.backend.backend()
    if backend == "torch":
        _see_torch(slot, output, call)
        return
    weights, source = _weights(slot.owner(), output, call)
    told: Attributes = {"source": source}
    outputs.of_backend(backend)(slot, weights, None, told)


def _see_torch(slot: Slot, output: Any, call: Arguments) -> None:
    import torch

    from neuronscope_instrumentation.torch.internals import is_real_run, isolated

    if torch.compiler.is_compiling() or not is_real_run():
        return
    with isolated(), torch.no_grad():
        weights, source = _weights(slot.owner(), output, call)
        host = weights.detach().to(device="cpu", dtype=torch.float32).numpy()
    slot.notify(of_array(host, {"source": source}))


def _weights(layer: Any, output: Any, call: Arguments) -> tuple[Any, str]:
    """(batch, head, query, key), and where from."""
    keras: Any = sys.modules["keras"]
    _, weights = output
    if weights is None:
        positional, named = call
        method = getattr(layer.__class__, _PROJECTED)  # its options differ from layer to layer
        given = signature(method).bind(layer, *positional, **named).arguments
        return _again(keras.ops, layer, given), RECOMPUTED
    weights = keras.ops.stop_gradient(weights)
    if not hasattr(layer.__class__, _PROJECTED):  # without heads
        weights = keras.ops.expand_dims(weights, 1)
    return weights, MODEL


def _again(ops: Any, layer: Any, given: Mapping[str, Any]) -> Any:
    """The weights of the layer's fused kernel, in float32."""
    query, key = (ops.cast(ops.stop_gradient(given[name]), "float32") for name in ("query", "key"))
    key = ops.repeat(key, query.shape[2] // key.shape[2], axis=2)
    scale = getattr(layer, "_inverse_sqrt_key_dim", None) or layer._inverse_sqrt_head_dim
    scores = ops.einsum("btnh,bsnh->bnts", query, key) * scale
    hidden = -1e30
    if (mask := given.get("attention_mask")) is not None:
        mask = ops.cast(mask, "bool")
        while len(mask.shape) < 4:
            mask = ops.expand_dims(mask, -3)
        scores = ops.where(mask, scores, hidden)
    if given.get("use_causal_mask"):
        later = ops.triu(ops.ones_like(scores), k=1)
        scores = ops.where(ops.cast(later, "bool"), hidden, scores)
    return ops.softmax(scores, axis=-1)
