"""A torch tensor on loan to an observer: nothing is copied or computed before it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import torch

from neuronscope.compiled import find
from neuronscope.signals.records import Attributes, AttributeValue
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_instrumentation.common.host_arrays import NOTHING, loan_is_over
from neuronscope_instrumentation.torch.internals import (
    function_modes,
    graph_task,
    isolated,
    without_function_modes,
)
from neuronscope_instrumentation.torch.memory import EXACT, dtype_name, host_copy, readable
from neuronscope_instrumentation.torch.summary import summarize, summarize_later

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neuronscope.summaries.details import Details

# Where values are read at once.  Elsewhere the device computes, and the worker waits for it.
READ_AT_ONCE: Final = frozenset({"cpu", "meta"})
# Shape, element type and bytes of a plain tensor; None for any other.
_describe: Final[Callable[[torch.Tensor], tuple[tuple[int, ...], str, int] | None] | None] = find("describe")


class TorchSnapshot(TensorSnapshot):
    """Shape and type at once; values and statistics while the observer's callback runs.

    Not shared between threads: it lives in the model's thread, for one callback.
    """

    __slots__ = ("_more", "_nbytes", "_summary", "_tensor", "_whole")

    def __init__(self, tensor: torch.Tensor, attributes: Attributes = NOTHING) -> None:
        self._whole: torch.Tensor | None = tensor
        self._tensor: torch.Tensor | None = tensor
        self._summary: TensorSummary | None = None
        self._more = attributes
        told = _describe(tensor) if _describe is not None else None
        if told is not None:
            self.shape, self.dtype, self._nbytes = told
            self._array = None
            return
        if type(tensor) in EXACT and not function_modes():
            self._note(tensor)
            return
        with without_function_modes():  # a mode of the user's would see even `.shape`
            local = shard(tensor)
            if local is not None:
                self._tensor, self._more = local.tensor, {**attributes, **local.attributes}
            self._note(self._tensor)

    def _note(self, tensor: torch.Tensor) -> None:
        nested = tensor.is_nested
        self.shape = () if nested else tuple(tensor.shape)
        self.dtype = dtype_name(tensor.dtype)
        self._array = None
        self._nbytes = 0 if nested else tensor.numel() * tensor.element_size()

    @property
    def nbytes(self) -> int:
        """Bytes that the full array takes on the host (0 if it cannot be read); nothing is copied to tell."""
        self._live()
        return self._nbytes

    def numpy(self) -> NDArray[Any]:
        """A host copy, bit for bit; types that numpy lacks come as their bits (BF16 as uint16).

        Raises:
            UnsupportedTensorError: the tensor has no plain dense memory to read.
        """
        with isolated():
            plain = readable(self._live()).resolve_conj().resolve_neg()
            return host_copy(plain)

    def summarize(self) -> TensorSummary:
        """The statistics, computed now, where the tensor is.

        Raises:
            UnsupportedTensorError: the tensor has no plain dense memory to read.
        """
        tensor, found = self._tensor, self._summary
        if tensor is None:
            tensor = self._live()
        if found is None:  # several observers of one layer share it
            self._summary = found = summarize(tensor)
        return found

    def summarize_later(self) -> Callable[[], TensorSummary] | None:
        """On an accelerator: start, and wait elsewhere; None on the CPU, where an in-place layer may follow.

        Raises:
            UnsupportedTensorError: the tensor has no plain dense memory to read.
        """
        tensor = self._live()
        if tensor.device.type in READ_AT_ONCE:
            return None
        return summarize_later(tensor)

    def details(self) -> Details:
        """Histogram and sketch of the values (see `neuronscope.summaries.details`); costs several passes.

        Raises:
            UnsupportedTensorError: the tensor has no plain dense memory to read.
        """
        from neuronscope.summaries import arrays

        with isolated():
            plain = readable(self._live()).resolve_conj().resolve_neg()
            if dtype_name(plain.dtype).startswith(("BF16", "F8_")):
                plain = plain.to(torch.float32)
            # Without a copy, if it is in host memory.
            return arrays.details(plain.cpu().numpy())

    def active_units(self) -> NDArray[Any]:
        """Which positions of the last dimension are not zero in some row: an array of bools.

        Raises:
            UnsupportedTensorError: the tensor has no plain dense memory to read.
        """
        with isolated():
            plain = readable(self._live())
            rows = plain.reshape(-1, plain.shape[-1])
            return host_copy((rows != 0).any(dim=0))

    @property
    def attributes(self) -> Attributes:
        """Was this run a recomputation (activation checkpointing), and on which rank."""
        recomputed = graph_task() != -1
        distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
        rank: int | None = distributed.get_rank() if distributed and distributed.is_initialized() else None
        if rank is None and not (recomputed or self._more):
            return self._more
        found: dict[str, AttributeValue] = dict(self._more)
        if recomputed:
            found["recomputed"] = True
        if rank is not None:
            found["rank"] = rank
        return found

    def on_gradient(self, hook: Callable[[torch.Tensor], None]) -> bool:
        """Call `hook` with the gradient by this tensor when there is one; False if there will be none."""
        tensor = self._whole
        if tensor is None or not tensor.requires_grad:
            return False
        cast(Any, tensor).register_hook(hook)
        return True

    def close(self) -> None:
        """End the loan: the tensor is let go, and values can no longer be read."""
        self._tensor = self._whole = None

    def _live(self) -> torch.Tensor:
        if self._tensor is None:
            raise loan_is_over()
        return self._tensor


class Shard(NamedTuple):
    """This rank's part of a distributed tensor."""

    tensor: torch.Tensor
    attributes: Attributes


def shard(tensor: torch.Tensor) -> Shard | None:
    """This rank's part of a DTensor, as it lies in memory; None for any other tensor.

    None also where ranks hold terms of a sum: they are no values yet, so the DTensor itself is refused.
    """
    if type(tensor).__qualname__ != "DTensor":
        return None
    local: Any = getattr(tensor, "_local_tensor", None)
    spec: Any = getattr(tensor, "_spec", None)
    if local is None or spec is None or any(placement.is_partial() for placement in spec.placements):
        return None
    told: dict[str, AttributeValue] = {
        "placements": tuple([str(placement) for placement in spec.placements]),
        "global_shape": tuple([int(size) for size in spec.shape]),
    }
    return Shard(local, told)
