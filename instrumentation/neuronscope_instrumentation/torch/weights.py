"""The fingerprint of a model: its architecture, and every bit of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.fingerprints import fingerprint
from neuronscope_instrumentation.torch.internals import isolated
from neuronscope_instrumentation.torch.memory import dtype_name, host_copy, readable

_HASH_WHOLE: Final = 1 << 20  # bytes; larger tensors give a checksum of all words and hashed samples
_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 1 << 12


def fingerprint_model(model: nn.Module) -> str:
    """Name a model by classes, hyperparameters, parameters and persistent buffers.

    Reads all weights once, tensor by tensor, on their own device.  Of tensors above 1 MiB a 64-bit sum
    over all words and evenly spread samples enter the hash: any single change shows in the sum.
    """
    original = getattr(model, "_orig_mod", None)  # what torch.compile wrapped
    if isinstance(original, nn.Module):
        model = original
    architecture: dict[str, object] = {}
    weights: dict[str, object] = {}
    modules: Iterable[tuple[str, nn.Module]] = cast(Any, model).named_modules(remove_duplicate=False)
    for path, module in modules:
        kind = type(module)
        # Only torch's own descriptions are sure to hold no address and no state.
        details = module.extra_repr() if kind.__module__.startswith("torch.nn.") else ""
        architecture[path] = [f"{kind.__module__}.{kind.__qualname__}", details]
        for name, tensor in _own_tensors(module):
            weights[f"{path}.{name}"] = _describe(tensor)
    return fingerprint({"architecture": architecture, "weights": weights})


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    passing: set[str] = getattr(module, "_non_persistent_buffers_set", set())
    for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
        if name not in passing:
            yield name, buffer


def _describe(tensor: torch.Tensor) -> list[object]:
    """Shape, type and content of one tensor; without content where there is none (lazy, meta)."""
    if is_lazy(tensor):
        return ["lazy"]
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None:  # a quantised or distributed tensor: what it is made of
        names, _ = inner()
        return [type(tensor).__qualname__, {name: _describe(getattr(tensor, name)) for name in names}]
    with isolated():
        head: list[object] = [dtype_name(tensor.dtype), list(tensor.shape)]
        if tensor.is_quantized:
            tensor = tensor.int_repr()
        elif tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
            return [*head, *_content(tensor.indices()), *_content(tensor.values())]
        try:
            return [*head, *_content(readable(tensor))]
        except UnsupportedTensorError as error:
            return [*head, error.reason]


def _content(plain: torch.Tensor) -> list[Any]:
    plain = plain.detach().resolve_conj().resolve_neg()
    size = plain.numel() * plain.element_size()
    if size <= _HASH_WHOLE:
        return [host_copy(plain).tobytes()]
    raw = plain.contiguous().view(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    words = raw[: size - size % 8].view(torch.int64)
    starts = [(size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
    samples = torch.stack([raw[start : start + _SAMPLE_BYTES] for start in starts])
    return [int(words.sum().item()), host_copy(samples).tobytes()]
