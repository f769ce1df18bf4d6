"""How a JAX model is stored and distributed: told on the spans of its calls."""

from __future__ import annotations

from typing import Any, Final

import jax

from neuronscope.signals import names
from neuronscope_instrumentation.jax import models, structure
from neuronscope_instrumentation.jax.structure import EQUINOX, NNX

_SHORT: Final = ("float8", "float4", "int4", "uint4", "int2", "uint2", "int8", "uint8")


def describe_model(model: Any) -> dict[str, Any]:
    """See `neuronscope.instrumentation.DescribingBackend`.

    Costs one look at the model's arrays the first time; what is stored changes with another model only.
    """
    handle = models.handle(model)
    if handle.described is None:
        handle.described = _describe(model) if handle.kind in (NNX, EQUINOX) else {}
    return dict(handle.described)


def _describe(model: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    wrappers: dict[str, None] = {}
    stored: dict[str, None] = {}
    for _, module in structure.walk(model):
        for _, leaf in structure.own_arrays(module):
            short = str(leaf.dtype).startswith(_SHORT)
            if short and leaf.ndim > 1:
                stored[str(leaf.dtype)] = None
            sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.Array) else None
            if sharding is not None and len(sharding.device_set) > 1:
                wrappers[type(sharding).__name__] = None
    if stored:
        told[names.MODEL_QUANTIZATION] = ", ".join(stored)
    if wrappers:
        told[names.MODEL_WRAPPERS] = list(wrappers)
    return told
