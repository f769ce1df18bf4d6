"""On request: how magnitudes are distributed, and a sketch to compare tensors by that were not kept.

**Histogram**: 64 counts of finite, non-zero elements by their binary exponent: bucket *b* holds
2^(b−40) ≤ abs(x) < 2^(b−39); the first and the last take in what is beyond.  Histograms add up.

**Sketch** (count sketch: Charikar, Chen and Farach-Colton, 2002): element *i* in C order is added, with a
sign, to one of 64 sums; place and sign come from a fixed hash of *i*.  Sketches of tensors of one shape
keep angles and distances, each to about 1/√64 of the norms involved; equal tensors have equal sketches.
So the first layer at which two runs part is found from 64 numbers a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZE: Final = 64
LOWEST: Final = 40

Details = tuple[tuple[int, ...], tuple[float, ...]]


def bounds() -> tuple[float, ...]:
    """Upper bounds of the histogram's buckets."""
    return (*(2.0 ** (bucket - LOWEST + 1) for bucket in range(SIZE - 1)), math.inf)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Roughly the cosine of two tensors' angle, from their sketches; NaN where one of them is zero."""
    norms = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / norms if norms else math.nan


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Roughly the Euclidean distance of two tensors, from their sketches."""
    return math.dist(one, other)


def by_numpy(array: NDArray[Any]) -> Details:
    """Histogram and sketch of a numpy array (complex: of the moduli)."""
    import numpy as np

    values = np.abs(array.astype(np.complex128)) if np.iscomplexobj(array) else array.astype(np.float64)
    flat = np.ascontiguousarray(values).ravel()
    flat = np.where(np.isfinite(flat), flat, 0.0)
    some = flat[flat != 0]
    exponents = np.clip(np.frexp(some)[1] - 1 + LOWEST, 0, SIZE - 1)
    histogram = np.bincount(exponents, minlength=SIZE)
    hashes = _mixed(np.arange(flat.size, dtype=np.uint64))
    signed = np.where(hashes >> np.uint64(63), -flat, flat)
    sketch = np.bincount((hashes & np.uint64(SIZE - 1)).astype(np.int64), signed, SIZE)
    return tuple(histogram.tolist()), tuple(sketch.tolist())


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Vigna's splitmix64, as in `details.c`."""
    import numpy as np

    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
