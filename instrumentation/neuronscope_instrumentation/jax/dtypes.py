"""Element types of JAX arrays: their names, and how numpy can hold them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import jax.numpy as jnp
import numpy as np

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.tensors import DTYPE_NAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_JAX_ONLY_NAMES: Final = {
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex128": "C128",
}
# Narrower than a byte: held as the next type that has one.
_WIDENED: Final = {
    "int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8", "float4_e2m1fn": "float32",
}  # fmt: skip
_BITS: Final = {1: np.uint8, 2: np.uint16}


def dtype_name(dtype: Any) -> str:
    """The safetensors name of an element type; JAX's own where safetensors has none."""
    name = _WIDENED.get(str(dtype), str(dtype))
    return DTYPE_NAMES.get(name) or _JAX_ONLY_NAMES.get(name, name)


def is_numeric(dtype: Any) -> bool:
    """False for random keys and other types without arithmetic, and for JAX's ``float0``."""
    return bool(jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_))


def is_integral(dtype: Any) -> bool:
    """Integers and truth values: always finite."""
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_))


def host_nbytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes that an array of this shape takes on the host, as we hold it."""
    if not is_numeric(dtype):
        return 0
    return math.prod(shape) * int(np.dtype(_WIDENED.get(str(dtype), dtype)).itemsize)


def widened(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers that arithmetic in numpy can take; without a copy but for types narrower than a byte.

    Raises:
        UnsupportedTensorError: no numbers.
    """
    if not is_numeric(values.dtype):
        raise UnsupportedTensorError(f"dtype:{values.dtype}")
    wide = _WIDENED.get(str(values.dtype))
    return values if wide is None else values.astype(wide)


def host_copy(values: NDArray[Any]) -> NDArray[Any]:
    """A copy that owns its memory; types that numpy lacks come as their bits (BF16 as uint16).

    Raises:
        UnsupportedTensorError: no numbers.
    """
    plain = widened(values)
    if dtype_name(plain.dtype).startswith(("BF16", "F8_")) or plain.dtype.kind == "V":
        plain = plain.view(_BITS[plain.dtype.itemsize])
    return np.array(plain, copy=True, order="C")
