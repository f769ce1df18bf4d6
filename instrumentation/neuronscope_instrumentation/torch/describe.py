"""How a model is adapted (PEFT), distributed, compiled and stored: told on the spans of its calls."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Final, cast

from torch import nn

from neuronscope.signals import names

# Modules that stand around a model, by package: what their attribute holds is the model.
_WRAPPERS: Final = {
    "torch.nn.parallel.distributed": "module",
    "torch.nn.parallel.data_parallel": "module",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "_fsdp_wrapped_module",
    "torch._dynamo.eval_frame": "_orig_mod",
    "deepspeed.runtime.engine": "module",
    "deepspeed.runtime.pipe.engine": "module",
    "deepspeed.inference.engine": "module",
}
_stored: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def describe_model(model: nn.Module) -> dict[str, Any]:
    """See `neuronscope.instrumentation.DescribingBackend`."""
    told: dict[str, Any] = {}
    wrappers = [type(module).__name__ for module in _wrappers(model)]
    if "fully_shard" not in wrappers and _is_fully_sharded(model):
        wrappers.append("fully_shard")
    if wrappers:
        told[names.MODEL_WRAPPERS] = wrappers
    tuner = _first_tuner(model)
    if tuner is not None:
        told[names.MODEL_ADAPTERS] = [str(name) for name in cast(Any, tuner).active_adapters]
        told[names.MODEL_ADAPTERS_MERGED] = bool(getattr(tuner, "merged", False))
    stored = _stored.get(model)
    if stored is None:
        stored = _stored[model] = _storage(model)
    if stored:
        told[names.MODEL_QUANTIZATION] = stored
    return told


def _wrappers(model: nn.Module) -> Iterator[nn.Module]:
    module: Any = model
    while isinstance(module, nn.Module):
        inner = _WRAPPERS.get(type(module).__module__)
        if inner is None:
            return
        yield module
        module = getattr(module, inner, None)


def _is_fully_sharded(model: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(model).__mro__)


def _first_tuner(model: nn.Module) -> nn.Module | None:
    """The first layer that PEFT has replaced; adapters are switched and merged in all of them together."""
    inside: Any = model
    for wrapper in _wrappers(model):
        inside = getattr(wrapper, _WRAPPERS[type(wrapper).__module__])
    if getattr(inside, "peft_config", None) is None:
        return None
    modules: Any = model.modules()
    return next((module for module in modules if _is_tuner(module)), None)


def _is_tuner(module: nn.Module) -> bool:
    return (
        type(module).__module__.startswith("peft.")
        and hasattr(module, "active_adapters")
        and (hasattr(module, "merged_adapters") and hasattr(module, "base_layer"))
    )


def _storage(model: nn.Module) -> str:
    """The quantisation method by the configuration, else the tensor subclasses that weights are stored in."""
    config: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    method = getattr(config, "quant_method", None) if config is not None else None
    if method is not None:
        return str(getattr(method, "value", method))
    kinds: dict[str, None] = {}
    for parameter in model.parameters():
        kind = cast(type, type(parameter.data))
        if hasattr(kind, "__tensor_flatten__") and kind.__name__ != "DTensor":
            kinds[kind.__name__] = None
    return ", ".join(kinds)
