"""The compiled kernel: found, checked, and called.

It is a shared library without Python in it (`kernel.c`), compiled when the package is built and called
through ctypes.  Where the package was built without a C compiler there is none, and adapters compute with
their framework instead; `why_not` says so (docs/decisions/0008).
"""

from __future__ import annotations

import ctypes
import logging
import math
import struct
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries.moments import Moments

# Not called *.so: Python would take it for an extension module.
LIBRARY: Final = Path(__file__).with_name("kernel.native")
ABI: Final = 1  # of `kernel.c`
# A short call keeps the GIL: letting it go may cost a wait of milliseconds until another thread yields.
HOLD_GIL: Final = 1 << 17  # bytes; about 3 µs
MAX_DIMS: Final = 64

# Element types, as `elements.h` numbers them, by their safetensors names.
KINDS: Final = {
    name: number
    for number, name in enumerate(
        (
            "F32", "F64", "F16", "BF16", "TABLE8", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64",
            "C64", "C128",
        )
    )
} | {"BOOL": 5}  # fmt: skip
TABLE8: Final = KINDS["TABLE8"]
SIZES: Final = (4, 8, 2, 2, 1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16)

_log: Final = logging.getLogger(__name__)
_Out: Final = ctypes.c_double * 10
_read: Final = struct.Struct("10d").unpack


class Kernel:
    """The loaded library.  Safe for threads.

    Attributes:
        variant: the instruction set it uses here: ``avx512``, ``avx2`` or ``baseline``.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        """Load and check the library.

        Raises:
            OSError: there is none, or it is not for this machine.
            ValueError: it is another version's, or computes wrongly here.
        """
        waiting, going = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        self._holding = _function(waiting)
        self._releasing = _function(going)
        # Where `ns_moments` is, for compiled code.
        self.address: int = ctypes.cast(self._releasing, ctypes.c_void_p).value or 0
        self._details = going.ns_details
        self._details.argtypes = (*self._releasing.argtypes, ctypes.c_void_p)
        self._details.restype = None
        self._use = going.ns_use
        going.ns_variant.restype = ctypes.c_char_p
        self._variant = going.ns_variant
        going.ns_digest.restype = ctypes.c_char_p
        self.digest: str = going.ns_digest().decode()
        if (found := going.ns_abi()) != ABI:
            raise ValueError(f"it has version {found}, {ABI} is needed")
        if not self._computes():
            raise ValueError("it computes wrongly on this machine")

    @property
    def variant(self) -> str:
        """See the class."""
        return str(self._variant().decode())

    def use(self, variant: str) -> bool:
        """Switch to another instruction set, for tests; False where there is none of that name."""
        return bool(self._use(variant.encode()))

    def flat(self, address: int, kind: int, count: int, table: int = 0) -> tuple[float, ...]:
        """Raw moments of `count` elements side by side.

        The memory must be there for the time of the call: nothing can check that.
        """
        out = _Out()
        call = self._holding if count * SIZES[kind] <= HOLD_GIL else self._releasing
        call(address, kind, table, count, None, out)
        return _read(out)

    def strided(
        self, address: int, kind: int, sizes: Sequence[int], strides: Sequence[int], table: int = 0
    ) -> tuple[float, ...]:
        """Raw moments of an array of any layout; strides in elements."""
        order, count = dense_order(sizes, strides)
        if count == 0 or not order:
            return self.flat(address, kind, count, table)
        if len(order) > MAX_DIMS:
            raise ValueError(f"an array of {len(order)} dimensions; at most {MAX_DIMS} can be read")
        if len(order) == 1 and order[0][1] == 1:
            return self.flat(address, kind, count, table)
        numbers = [size for size, _ in order] + [stride for _, stride in order]
        dims = (ctypes.c_int64 * len(numbers))(*numbers)
        out = _Out()
        call = self._holding if count * SIZES[kind] <= HOLD_GIL else self._releasing
        call(address, kind, table, len(order), dims, out)
        return _read(out)

    def details(
        self, address: int, kind: int, sizes: Sequence[int], strides: Sequence[int], table: int = 0
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Histogram and sketch of an array of any layout (see `neuronscope.summaries.details`)."""
        numbers = [*(sizes or (1,)), *(strides or (1,))]
        dims = (ctypes.c_int64 * len(numbers))(*numbers)
        histogram, sketch = (ctypes.c_int64 * 64)(), (ctypes.c_double * 64)()
        self._details(address, kind, table, len(numbers) // 2, dims, histogram, sketch)
        return tuple(histogram), tuple(sketch)

    def _computes(self) -> bool:
        """A trial on numbers that a compiler's liberties would get wrong."""
        nan, inf = math.nan, math.inf
        values = [float(number % 7 - 3) for number in range(2048)] + [nan, inf, -inf, 1e30, 0.0]
        floats = (ctypes.c_float * len(values))(*values)
        count, finite, _, _, _, low, high, zeros, nans, infs = self.flat(
            ctypes.addressof(floats), 0, len(values)
        )
        return (count, finite, low, nans, infs, zeros) == (2053, 2050, -3, 1, 2, 294) and high > 9e29


def _function(library: Any) -> Any:
    function = library.ns_moments
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
    )  # fmt: skip
    function.restype = None
    return function


def dense_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Dimensions as (size, stride), outermost first in memory, joined where they are contiguous; the count.

    Statistics do not depend on order, so a transposed array is read as it lies, in one run.
    """
    count = math.prod(sizes)
    dims = sorted(
        ((size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1),
        key=lambda dim: (-abs(dim[1]), -dim[0]),
    )
    joined: list[tuple[int, int]] = []
    for size, stride in dims:
        if joined and joined[-1][1] == size * stride and stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    if not joined and count:
        joined.append((1, 1))
    return joined, count


def moments(raw: tuple[float, ...]) -> Moments:
    """Raw moments as a value that merges."""
    count, finite, mean, squares, energy, low, high, zeros, nans, infs = raw
    return Moments(
        int(count), int(finite), mean, squares, energy, low, high, int(zeros), int(nans), int(infs)
    )


def summary(raw: tuple[float, ...]) -> TensorSummary:
    """Raw moments as a summary."""
    count, finite, mean, squares, energy, low, high, zeros, nans, infs = raw
    if not finite:
        nan = math.nan
        return TensorSummary(int(count), nan, nan, nan, nan, nan, nan, int(zeros), int(nans), int(infs))
    return TensorSummary(
        int(count),
        mean,
        math.sqrt(squares / finite) if squares > 0.0 else 0.0,
        math.sqrt(energy),
        low,
        high,
        max(-low, high),
        int(zeros),
        int(nans),
        int(infs),
    )


@cache
def load() -> tuple[Kernel | None, str]:
    """The kernel, or None and why there is none."""
    why_not = ""
    if sys.byteorder != "little":
        why_not = "not for big-endian machines"
    elif not LIBRARY.exists():
        why_not = "this package was built without a C compiler"
    else:
        try:
            return Kernel(), ""
        except (OSError, ValueError, AttributeError) as error:
            why_not = f"{LIBRARY.name} cannot be used: {error}"
    _log.info("tensor summaries are computed by the frameworks, several times slower: %s", why_not)
    return None, why_not


def describe() -> str:
    """What computes summaries on the CPU here, for people and records: ``compiled (avx512)``, for example."""
    kernel, why_not = load()
    return f"compiled ({kernel.variant})" if kernel is not None else f"framework ({why_not})"
