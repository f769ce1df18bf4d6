"""Metrics of a model's layers: what one call of it was like inside.  Run by the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine.metrics import Aggregator
    from neuronscope.modelcall import ModelCall

MAX_LAYERS: Final = 256  # of a model; the guard against too many series holds for all models together
# The largest finite number of an element type, by its safetensors name.  IEEE 754; OCP 8-bit formats.
LARGEST: Final = {
    "F8_E4M3": 448.0,
    "F8_E5M2": 57_344.0,
    "F16": 65_504.0,
    "BF16": 3.3895313892515355e38,
    "F32": 3.4028234663852886e38,
    "F64": 1.7976931348623157e308,
    "C64": 3.4028234663852886e38,
}


def record_layers(metrics: Aggregator, call: ModelCall) -> None:
    """Set the gauges of the layers that the call recorded, and count the call."""
    if not call.records:
        return
    outcome = "non_finite" if call.non_finite else "finite"
    metrics.add(names.MODEL_CALLS, 1, ((names.MODEL_NAME, call.model), ("outcome", outcome)))
    for layer, seen in list(call.layers.items())[:MAX_LAYERS]:
        labels = ((names.MODEL_NAME, call.model), ("layer", layer))
        metrics.set(names.LAYER_SPREAD, seen.std(call.runs[layer]), labels)
        if seen.elements:
            metrics.set(names.LAYER_ZEROS, seen.zeros / seen.elements, labels)
        largest = LARGEST.get(seen.dtype)
        if largest is not None:
            metrics.set(names.LAYER_RANGE, seen.abs_max / largest, labels)
