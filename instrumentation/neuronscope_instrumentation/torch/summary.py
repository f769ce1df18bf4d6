"""Statistics of a tensor, where it is: by the compiled kernel in host memory, by torch's operations else.

The kernel is given an address, and a wrong one is a fault that no guard can catch.  So it only gets exact
tensors and parameters in plain host memory that is really there: no subclass (FakeTensor, DTensor and
jagged tensors report addresses, too), no wrapper of functorch, no negated or conjugated view, nothing
nested, sparse, quantised or freed (design §8).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from neuronscope.compiled import find
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import Moments, kernel
from neuronscope_instrumentation.torch import fallback
from neuronscope_instrumentation.torch.internals import (
    dispatch_keys,
    function_modes,
    isolated,
    plain_keys,
    without_function_modes,
)
from neuronscope_instrumentation.torch.memory import EXACT, dtype_name, host_copy, readable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TABLE8: Final = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def _dtypes(*names: str) -> frozenset[torch.dtype]:
    found = (getattr(torch, name, None) for name in names)
    return frozenset(dtype for dtype in found if isinstance(dtype, torch.dtype))


_TABLES: Final = _dtypes(*_TABLE8)
_NUMERIC: Final = _TABLES | _dtypes(
    "float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128",
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
)  # fmt: skip
_KINDS: Final = {
    dtype: kernel.KINDS[dtype_name(dtype)] for dtype in _NUMERIC if dtype_name(dtype) in kernel.KINDS
} | dict.fromkeys(_TABLES, kernel.TABLE8)


OTHER_KEYS: Final = ~plain_keys()
# By element type: its name, its bytes, and the kernel's number of it, -1 where that is not enough.
ELEMENTS: Final = {
    dtype: (dtype_name(dtype), dtype.itemsize, -1 if dtype in _TABLES else _KINDS.get(dtype, -1))
    for dtype in _NUMERIC
}
# In one piece, for plain tensors in one piece; None for all others, which are looked at below.
compiled_summarize: Final[Callable[[torch.Tensor], TensorSummary | None] | None] = find("summarize")


def summarize(tensor: torch.Tensor, fraction: float = 1.0) -> TensorSummary:
    """Statistics of a dense tensor of any numeric type and layout (complex: by modulus).

    On the CPU the values are read at once.  Elsewhere the device computes and one small transfer
    waits for it.  Changes no random state, records no graph, is seen by no mode of the user's.

    Args:
        fraction: of rows that mean, deviation and norm may be estimated from, where reading them all costs
            several passes over memory: without the kernel.  Extremes and counts are always exact.

    Raises:
        UnsupportedTensorError: no plain dense memory (see `readable`), or a type without arithmetic.
    """
    if compiled_summarize is not None and (found := compiled_summarize(tensor)) is not None:
        return found
    raw = _by_kernel(tensor)
    if raw is not None:
        return kernel.summary(raw)
    with isolated():
        plain = _numeric(tensor)
        if plain.device.type != "cpu":
            return fallback.device_moments(plain).summary()
        if (raw := _by_kernel(plain)) is not None:  # a subclass without a dispatch of its own
            return kernel.summary(raw)
        if fraction < 1.0 and (sampled := fallback.sampled_summary(plain, fraction)) is not None:
            return sampled
        return fallback.cpu_moments(plain).summary()


def summarize_later(tensor: torch.Tensor) -> Callable[[], TensorSummary]:
    """Start computing on the tensor's device; the function returned, called from any thread, waits for it.

    Raises:
        UnsupportedTensorError: see `summarize`.
    """
    with isolated():
        rows = fallback.device_rows(_numeric(tensor))
    done: Any = None
    if rows is not None and rows.device.type == "cuda":  # another thread may read on another stream
        done = cast(Any, torch.cuda.Event)()
        done.record()

    def read() -> TensorSummary:
        if done is not None:
            done.synchronize()
        with isolated():
            return fallback.read_rows(rows).summary()

    return read


def moments(tensor: torch.Tensor) -> Moments:
    """The same as moments, which merge with those of other parts.

    Raises:
        UnsupportedTensorError: see `summarize`.
    """
    raw = _by_kernel(tensor)
    if raw is not None:
        return kernel.moments(raw)
    with isolated():
        plain = _numeric(tensor)
        if (raw := _by_kernel(plain)) is not None:
            return kernel.moments(raw)
        return (fallback.cpu_moments if plain.device.type == "cpu" else fallback.device_moments)(plain)


def _numeric(tensor: torch.Tensor) -> torch.Tensor:
    plain = readable(tensor)
    if plain.is_conj():
        plain = plain.conj()  # the modulus is the same
    if plain.dtype not in _NUMERIC:
        raise UnsupportedTensorError(f"dtype:{dtype_name(plain.dtype)}")
    return plain


def _by_kernel(tensor: torch.Tensor) -> tuple[float, ...] | None:
    """Raw moments by the kernel, or None for a tensor that it must not be given."""
    compiled, _ = kernel.load()
    if compiled is None:
        return None
    if function_modes():  # a mode of the user's would see even `.dtype`
        with without_function_modes():
            return _measure(compiled, tensor)
    return _measure(compiled, tensor)


def _measure(compiled: kernel.Kernel, tensor: torch.Tensor) -> tuple[float, ...] | None:
    if type(tensor) not in EXACT or dispatch_keys(tensor) & OTHER_KEYS:
        return None
    kind = _KINDS.get(dtype := tensor.dtype)
    if kind is None:
        return None
    count = tensor.numel()
    try:
        address = tensor.data_ptr()
        # FSDP frees shards by shrinking their storage: the address of what is left means nothing.
        held = tensor.untyped_storage().nbytes() // kernel.SIZES[kind] - tensor.storage_offset()
    except (RuntimeError, NotImplementedError):  # a wrapper of functorch's has no memory of its own
        return None
    table = _table(dtype).ctypes.data if kind == kernel.TABLE8 else 0
    if tensor.is_contiguous():
        return (
            compiled.flat(address, kind, count, table) if (address and count <= held) or not count else None
        )
    sizes, strides = tensor.size(), tensor.stride()
    last = sum((extent - 1) * stride for extent, stride in zip(sizes, strides, strict=True))
    if not address or last >= held or len(sizes) > kernel.MAX_DIMS:
        return None
    return compiled.strided(address, kind, sizes, strides, table)


@cache
def _table(dtype: torch.dtype) -> NDArray[Any]:
    """An 8-bit type's 256 values, as torch reads them."""
    with isolated():
        return host_copy(torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32))
