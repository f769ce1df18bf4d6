"""Attention weights: where the model computes them, else again from the queries and keys of a fused kernel.

The kernel's arguments are seen through a function mode that is on only while the watched module runs: the
same kernel is called with the same arguments.  `nn.MultiheadAttention` leaves its own fast path when a mode
is on, so its weights are computed from its inputs and projections instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.records import AttributeValue
from neuronscope_instrumentation.common.host_arrays import refusing
from neuronscope_instrumentation.common.observing import MODEL, NO_ATTENTION, RECOMPUTED
from neuronscope_instrumentation.torch import slots
from neuronscope_instrumentation.torch.internals import isolated
from neuronscope_instrumentation.torch.outputs import first_tensor, tensor_leaves
from neuronscope_instrumentation.torch.snapshot import TorchSnapshot

_KERNEL: Final[Any] = functional.scaled_dot_product_attention
_SHOWN: Final = 16  # leading outputs of a module that may be its weights


@dataclass(frozen=True, slots=True)
class Fused:
    """The arguments of a fused kernel that its weights follow from."""

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None = None
    causal: bool = False
    scale: float | None = None

    def weights(self, heads: Sequence[int] | None) -> torch.Tensor:
        """softmax(q kᵀ · scale + mask), in float32, of some heads: (batch, head, query, key)."""
        query, key, mask = self.query.detach(), self.key.detach(), self.mask
        total, groups = query.shape[-3], key.shape[-3]
        chosen = range(total) if heads is None else [head for head in heads if -total <= head < total]
        index = torch.tensor([head % total for head in chosen], dtype=torch.long, device=query.device)
        # Grouped queries: several heads share the keys of one.
        keys = key.index_select(-3, torch.div(index, total // groups, rounding_mode="floor"))
        queries = query.index_select(-3, index)
        scale = 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale
        scores = queries.to(torch.float32) @ keys.to(torch.float32).transpose(-2, -1) * scale
        if self.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~allowed, -math.inf)
        if mask is not None:
            mask = mask.detach()
            if mask.dim() >= 3 and mask.shape[-3] == total:
                mask = mask.index_select(-3, index)
            if mask.dtype is torch.bool:
                scores = scores.masked_fill(~mask, -math.inf)
            else:
                scores = scores + mask.to(torch.float32)
        return torch.nan_to_num(scores.softmax(-1), nan=0.0)  # a query that may see no key

    def unpacked(self) -> Fused:
        """The same of a step of one token, where queries that share keys were handed over as its length.

        transformers does so in decoding, to save the copies of the keys.
        """

        def spread(part: torch.Tensor) -> torch.Tensor:
            return part.detach().reshape(*part.shape[:-3], part.shape[-3] * part.shape[-2], 1, part.shape[-1])

        mask = self.mask
        if mask is not None and mask.dim() >= 3 and mask.shape[-2] == self.query.shape[-2]:
            mask = spread(mask)
        return replace(self, query=spread(self.query), mask=mask)


class _Watch(TorchFunctionMode):
    """Notes the arguments of fused attention kernels; calls everything as it was called.

    Args:
        groups: how many queries share a key, where the module was given but one token; else 1.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.fused: list[Fused] = []
        self._groups = groups

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _KERNEL:
            fused = _arguments(*args, **(kwargs or {}))
            packed = self._groups > 1 and fused.query.shape[-2] == self._groups
            self.fused.append(fused.unpacked() if packed else fused)
        return func(*args, **(kwargs or {}))


def _arguments(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Fused:
    return Fused(query, key, attn_mask, is_causal, scale)


def observe_attention(
    module: nn.Module, callback: LayerCallback, heads: Sequence[int] | None
) -> Callable[[], None]:
    """Call `callback` with each run's weights; see `TorchAdapter.observe_attention`."""
    return slots.tap(module, _Tap(callback, heads))


class _Tap:
    """Watches one module for one probe."""

    __slots__ = ("_callback", "_heads")

    def __init__(self, callback: LayerCallback, heads: Sequence[int] | None) -> None:
        self._callback = callback
        self._heads = heads

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin to watch for kernels, or keep the inputs of a module that must not be watched so."""
        if isinstance(module, nn.MultiheadAttention):
            return module, args, kwargs
        watch: Any = _Watch(_groups(module, args, kwargs))
        watch.__enter__()
        return watch

    def leave(self, opened: Any, output: object, *, failed: bool) -> None:
        """Hand the weights on, from wherever they can be had."""
        if type(opened) is _Watch:
            cast(Any, opened).__exit__(None, None, None)
        if failed:
            return
        with isolated(), torch.no_grad():
            found = self._find(opened, output)
        if found is None:
            self._callback(refusing(NO_ATTENTION))
            return
        weights, source = found
        told: dict[str, AttributeValue] = {"source": source}
        if self._heads is not None:
            told["heads"] = tuple(self._heads)
        snapshot = TorchSnapshot(weights, told)
        try:
            self._callback(snapshot)
        finally:
            snapshot.close()

    def _find(self, opened: Any, output: object) -> tuple[torch.Tensor, str] | None:
        fused: Sequence[Fused] = opened.fused if type(opened) is _Watch else [_of_multihead(*opened)]
        if fused:
            return torch.cat([one.weights(self._heads) for one in fused]), RECOMPUTED
        shown = next((leaf for leaf in tensor_leaves(output, _SHOWN) if _are_weights(leaf)), None)
        if shown is None:
            return None
        weights = shown.detach()
        if self._heads is not None:
            index = [head for head in self._heads if -weights.shape[1] <= head < weights.shape[1]]
            weights = weights[:, index]
        return weights, MODEL


def _groups(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many queries share a key, if this is a step of one token: (batch, 1) or (batch, 1, channels)."""
    given = first_tensor((args, kwargs))
    if given is None or given.dim() < 2 or given.shape[1] != 1:
        return 1
    found = (vars(part).get("num_key_value_groups") for part in module.modules())
    return next((int(groups) for groups in found if groups is not None), 1)


def _are_weights(leaf: torch.Tensor) -> bool:
    """Four dimensions, and rows that are shares of one: an eager module's weights."""
    if leaf.dim() != 4 or not leaf.is_floating_point() or not leaf.numel():
        return False
    row = leaf[0, 0, -1].detach().to(torch.float32)
    return bool(((row >= 0).all() & ((row.sum() - 1).abs() < 0.05)).item())


def _of_multihead(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Fused:
    """What `nn.MultiheadAttention` gives its kernel, from its own inputs and projections."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key = given["query"].detach(), given["key"].detach()
    batched = query.dim() == 3
    if not batched:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    size, heads = module.embed_dim, module.num_heads
    if module.in_proj_weight is not None:
        of_query, of_key = module.in_proj_weight[:size], module.in_proj_weight[size : 2 * size]
    else:
        of_query, of_key = module.q_proj_weight, module.k_proj_weight
    bias = module.in_proj_bias
    query = functional.linear(query, of_query, None if bias is None else bias[:size])
    key = functional.linear(key, of_key, None if bias is None else bias[size : 2 * size])
    query, key = (part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in (query, key))
    mask = _joined(given.get("attn_mask"), given.get("key_padding_mask"), query.shape[0], heads)
    return Fused(query, key, mask)


def _joined(
    mask: torch.Tensor | None, padding: torch.Tensor | None, batch: int, heads: int
) -> torch.Tensor | None:
    """Both of the module's masks (true: hidden) as one that is added to the scores."""
    total: torch.Tensor | None = None
    for each, is_padding in ((mask, False), (padding, True)):
        if each is None:
            continue
        added = each.detach()
        if added.dtype is torch.bool:
            added = torch.zeros(added.shape, device=added.device).masked_fill(added, -math.inf)
        if is_padding:
            added = added.view(-1, 1, 1, added.shape[-1])
        elif added.dim() == 3:
            added = added.view(batch, heads, *added.shape[-2:])
        total = added if total is None else total + added
    return total
