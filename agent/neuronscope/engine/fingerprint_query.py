"""A query vector's fingerprint: enough to recognise it, not enough to read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BITS: Final = 64
SEED: Final = 20_260_101  # fixed for ever: fingerprints are compared across processes and files


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """Shape and direction of a query vector.

    Attributes:
        fingerprint: 16 hex digits; the share of equal bits of two fingerprints estimates
            ``1 - angle/π`` (SimHash; Charikar 2002).
    """

    dimension: int
    norm: float
    dtype: str
    fingerprint: str


def query_facts(vector: Any) -> QueryFacts | None:
    """Facts of a dense vector given as list, tuple or array; None for anything else."""
    import numpy as np

    try:
        values = np.asarray(vector)
    except (ValueError, TypeError):
        return None
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "fiu":
        return None
    exact: NDArray[np.float64] = values.astype(np.float64)
    norm = float(np.sqrt(np.dot(exact, exact)))
    # A Python list has no element type of its own; JSON numbers are doubles.
    dtype = values.dtype.name if hasattr(vector, "dtype") else "float64"
    bits = exact @ planes(values.size) > 0
    fingerprint = int.from_bytes(np.packbits(bits).tobytes(), "big")
    return QueryFacts(int(values.size), norm, dtype, f"{fingerprint:016x}")


@lru_cache(maxsize=16)
def planes(dimension: int) -> NDArray[np.float64]:
    """The 64 directions on whose sides SimHash sorts vectors of this length, one a column."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(SEED)).standard_normal((dimension, BITS))
