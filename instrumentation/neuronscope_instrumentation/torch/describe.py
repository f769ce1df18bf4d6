"""How a model is adapted (PEFT), distributed, compiled and stored, and its weights: told on spans."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple, cast

import torch
from torch import nn

from neuronscope.signals import names
from neuronscope_instrumentation.torch.internals import has_own_dispatch, is_real_run, isolated

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
_SAMPLED: Final = 16  # elements of each parameter
_AGAIN_S: Final = 5.0
_SHARE: Final = 1000  # a look that takes long is repeated less often: it may take a thousandth of the time
_taken: weakref.WeakKeyDictionary[nn.Module, _Taken] = weakref.WeakKeyDictionary()
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
    told[names.MODEL_KERNELS] = _kernels(model)
    taken = _taken.get(model)
    now = time.monotonic()
    if (taken is None or (taken.repeat and now >= taken.again)) and is_real_run():
        before = time.thread_time()
        taken = _look_at_weights(model)
        again = now + max(_AGAIN_S, _SHARE * (time.thread_time() - before))
        taken = _taken[model] = taken._replace(again=again)
    if taken is not None:
        told.update(taken.told)
    return told


class _Taken(NamedTuple):
    """What a look at a model's weights told.

    Attributes:
        repeat: may it be taken again?  On a device it would wait for all work before it.
        again: from when on, by the monotonic clock.
    """

    told: Mapping[str, Any]
    repeat: bool
    again: float = 0.0


def _look_at_weights(model: nn.Module) -> _Taken:
    """Fingerprint and element type, from a few elements of each parameter: milliseconds."""
    digest, sizes = blake2b(digest_size=8), Counter[str]()
    pieces: list[torch.Tensor] = []
    on_host = True
    with torch.no_grad(), isolated():
        for name, parameter in model.named_parameters():
            weights = parameter.data
            plain = type(weights) is torch.Tensor and weights.layout is torch.strided
            # `.data` of a wrapper loses its class here, and still has no memory of its own.
            plain = plain and not has_own_dispatch(parameter)
            if not plain or weights.device.type == "meta" or not weights.numel():
                continue  # sharded, quantised, or not there
            on_host = on_host and weights.device.type == "cpu"
            sizes[str(weights.dtype).removeprefix("torch.")] += weights.numel()
            digest.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode())
            some = weights.reshape(-1) if weights.is_contiguous() else weights[(0,) * (weights.dim() - 1)]
            pieces.append(some[:: max(1, some.numel() // _SAMPLED)][:_SAMPLED].float())
        if not pieces:
            return _Taken({}, repeat=True)
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for piece in pieces:
            by_device.setdefault(piece.device, []).append(piece)
        for group in by_device.values():
            digest.update(torch.cat(group).cpu().numpy().tobytes())
    told = {names.MODEL_WEIGHTS: digest.hexdigest(), names.MODEL_DTYPE: sizes.most_common(1)[0][0]}
    return _Taken(told, on_host)


def _kernels(model: nn.Module) -> list[str]:
    """What may make the same weights round differently; nothing of it is fixed when a model is loaded."""
    told = [f"threads {torch.get_num_threads()}"]
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if isinstance(attention, str):
        told.append(f"attention {attention}")
    products = torch.get_float32_matmul_precision()
    if products != "highest":
        told.append(f"products {products}")
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
