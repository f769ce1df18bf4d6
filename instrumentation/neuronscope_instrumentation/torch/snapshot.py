"""A torch tensor on loan to an observer: nothing is copied or computed before it is asked for."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.tensors import DTYPE_NAMES, TensorSnapshot, TensorSummary
from neuronscope_instrumentation.torch.internals import has_own_dispatch, isolated, without_function_modes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TORCH_ONLY_NAMES: Final = {
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex128": "C128",
}
# numpy lacks these types: their bits travel as unsigned integers, under their own name.
_AS_BITS: Final = {1: torch.uint8, 2: torch.uint16}
_QUANTIZED: Final = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The safetensors name of an element type; torch's own where safetensors has none."""
    name = str(dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(name) or _TORCH_ONLY_NAMES.get(name, name)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without graph and subclass, sharing its memory.  Call it `isolated`.

    Raises:
        UnsupportedTensorError: the tensor has no plain dense memory to read.
    """
    if tensor.is_nested:
        raise UnsupportedTensorError("nested")
    if has_own_dispatch(tensor):
        raise UnsupportedTensorError(f"subclass:{type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise UnsupportedTensorError(f"layout:{str(tensor.layout).removeprefix('torch.')}")
    if tensor.dtype in _QUANTIZED:
        raise UnsupportedTensorError(f"dtype:{dtype_name(tensor.dtype)}")
    if tensor.device.type == "meta":
        raise UnsupportedTensorError("meta")
    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    if plain.numel() and not plain.untyped_storage().nbytes():  # FSDP frees shards this way
        raise UnsupportedTensorError("no memory")
    return plain


class TorchSnapshot(TensorSnapshot):
    """Shape and type at once; values and statistics while the observer's callback runs.

    Not shared between threads: it lives in the model's thread, for one callback.
    """

    __slots__ = ("_summary", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._summary: TensorSummary | None = None
        with without_function_modes():  # a mode of the user's would see even `.shape`
            shape = () if tensor.is_nested else tuple(tensor.shape)
            super().__init__(shape, dtype_name(tensor.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes that the full array takes on the host (0 if it cannot be read); nothing is copied to tell."""
        tensor = self._live()
        with without_function_modes():
            return 0 if tensor.is_nested else tensor.numel() * tensor.element_size()

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
        from neuronscope_instrumentation.torch.summary import summarize

        tensor = self._live()
        if self._summary is None:  # several observers of one layer share it
            self._summary = summarize(tensor)
        return self._summary

    def close(self) -> None:
        """End the loan: the tensor is let go, and values can no longer be read."""
        self._tensor = None

    def _live(self) -> torch.Tensor:
        if self._tensor is None:
            raise ValueError(
                "this snapshot was valid only while the observer's callback ran; "
                "call numpy() or summarize() there, and keep what they return"
            )
        return self._tensor


def host_copy(plain: torch.Tensor) -> NDArray[Any]:
    """A numpy array of the tensor's values that shares no memory with it.  Call it `isolated`."""
    import numpy as np

    if plain.dtype is torch.complex32:
        plain = plain.to(torch.complex64)
    elif dtype_name(plain.dtype).startswith(("BF16", "F8_")):
        plain = plain.view(_AS_BITS[plain.element_size()])
    return np.array(plain.cpu().numpy(), copy=True, order="C")
