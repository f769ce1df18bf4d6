"""A tensor's memory: whether it can be read, under which name its elements go, and a copy of it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.tensors import DTYPE_NAMES
from neuronscope_instrumentation.torch.internals import has_own_dispatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT: Final = frozenset({torch.Tensor, torch.nn.Parameter})  # no subclass, so no code of anybody else's
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


def host_copy(plain: torch.Tensor) -> NDArray[Any]:
    """A numpy array of the tensor's values that shares no memory with it.  Call it `isolated`."""
    import numpy as np

    if plain.dtype is torch.complex32:
        plain = plain.to(torch.complex64)
    elif dtype_name(plain.dtype).startswith(("BF16", "F8_")):
        plain = plain.view(_AS_BITS[plain.element_size()])
    return np.array(plain.cpu().numpy(), copy=True, order="C")
