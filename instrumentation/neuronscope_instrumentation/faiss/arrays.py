"""Query and result arrays of FAISS: what is kept of them on the way, and what the worker reads.

The arrays are the caller's, and may be overwritten as soon as a search has returned (`D=`, `I=`); so those
that are read later are copied, as far as anyone will read them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Hit, Query

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_READ: Final = 1_024  # queries of one call whose vectors and scores are read, as the engine reads no more


class Neighbours(NamedTuple):
    """What a k-nearest search found: distances and labels by query; labels of −1 are padding."""

    distances: Any
    labels: Any


class InRange(NamedTuple):
    """What a range search found: those of query i lie between ``limits[i]`` and ``limits[i + 1]``."""

    limits: Any
    distances: Any
    labels: Any


def kept(array: Any, rows: int | None = MAX_READ) -> Any:
    """A copy of the first rows of an array or of a CPU tensor; None for anything else."""
    if hasattr(array, "detach"):  # a tensor, with `faiss.contrib.torch_utils`
        if array.device.type != "cpu":
            return None  # reading it would wait for the device
        array = array.detach().numpy()
    return array[:rows].copy() if hasattr(array, "__array__") else None


def rows(array: Any) -> int | None:
    """How many vectors an array or tensor holds."""
    shape = getattr(array, "shape", None)
    return int(shape[0]) if shape else None


def neighbours(result: Any) -> Neighbours:
    """Of the results of `search` and `search_and_reconstruct`."""
    return Neighbours(kept(result[0]), kept(result[1], None))


def assigned(result: Any) -> Neighbours:
    """Of the result of `assign`, which tells no distances."""
    return Neighbours(None, kept(result, None))


def in_range(result: Any) -> InRange:
    """Of the result of `range_search`, in which rows are hits, not queries."""
    return InRange(*(kept(array, None) for array in result))


def queries(count: int, vectors: Any, binary: bool) -> list[Query]:
    """One for each query of a call.

    Args:
        vectors: the first ones, or None if they could not be read.
        binary: vectors of bits, eight in a byte.
    """
    found: Sequence[Query] = ()
    if vectors is not None and vectors.ndim == 2:
        found = [Query(vector=row) for row in (_bits(vectors) if binary else vectors)]
    return [*found, *[Query()] * (count - len(found))]


def _bits(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import numpy as np

    return np.unpackbits(codes, axis=1)


def hits(found: Neighbours | InRange) -> list[Sequence[Hit]]:
    """The hits of each query, best first.  Of queries beyond `MAX_READ`, something as long as their hits."""
    if isinstance(found, InRange):
        limits = found.limits.tolist()
        parts = itertools.pairwise(limits)
        return [
            _hits(found.labels[a:b], found.distances[a:b])
            if i < MAX_READ
            else cast(Sequence[Hit], range(b - a))
            for i, (a, b) in enumerate(parts)
        ]
    labels = found.labels.reshape(len(found.labels), -1)  # `assign` to one neighbour has one dimension
    distances = [None] * len(labels) if found.distances is None else found.distances
    read = [_hits(row, scores) for row, scores in zip(labels[:MAX_READ], distances, strict=False)]
    counts = (labels[MAX_READ:] >= 0).sum(axis=1).tolist()
    return [*read, *(cast(Sequence[Hit], range(count)) for count in counts)]


def _hits(labels: Any, distances: Any) -> list[Hit]:
    scores: Sequence[float | None] = (
        [None] * len(labels) if distances is None else [float(distance) for distance in distances]
    )
    return [
        Hit(str(label), score) for label, score in zip(labels.tolist(), scores, strict=True) if label >= 0
    ]


def nbytes(found: Neighbours | InRange) -> int:
    """What kept results hold in memory."""
    return sum(array.nbytes for array in found if array is not None)
