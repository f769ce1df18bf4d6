"""What the adapters of vector stores share.  Pure functions over foreign values; nothing is consumed.

In the caller's thread: `kept_vector`, `kept_vectors` copy what a search was asked with, `size` counts what a
write holds, `nothing` and `whole` are what may be kept of a result.  In the worker: `hits` turns columns of a
result into hits, `read_rows` tells how many there are, `store_error` reads an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Hit, Query, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import count

MAX_RANKS: Final = 256  # of a reranking that are recorded
# Vectors of one call that are kept: as many as have a record of their own.
MAX_KEPT: Final = 128


# --- in the caller's thread ---------------------------------------------------------------------------------
def kept_vector(vector: Any) -> Any:
    """A query vector, copied if its owner may change it before the worker reads it."""
    if vector.__class__ is list or vector.__class__.__module__ == "numpy":
        return vector.copy()
    return vector


def kept_vectors(vectors: Any) -> list[Any] | None:
    """The query vectors of a call that takes one or several: the first `MAX_KEPT`, copied.

    Args:
        vectors: a vector, a list or tuple of vectors, or a matrix.  Of anything else (an iterator, say)
            nothing is read.
    """
    if isinstance(vectors, (list, tuple)):
        rows = cast("Sequence[Any]", vectors)
        if rows and isinstance(rows[0], (int, float)):
            return [kept_vector(rows)]
        return [kept_vector(row) for row in rows[:MAX_KEPT]] if len(rows) > 1 else [*map(kept_vector, rows)]
    dimensions = getattr(vectors, "ndim", None)
    if vectors.__class__.__module__ != "numpy" or dimensions not in (1, 2):
        return None
    return [vectors.copy()] if dimensions == 1 else list(vectors[:MAX_KEPT].copy())


def size(points: Any) -> int | None:
    """How many points a write names, by lengths only; None for filters and for iterators.

    Args:
        points: a list, an array, a table, a data frame, or arrays by name (the first one counts).
    """
    if isinstance(points, Mapping):
        points = next(iter(cast("Mapping[str, Any]", points).values()), None)
    if isinstance(points, list | tuple):
        return len(cast("Sequence[Any]", points))
    rows = getattr(points, "num_rows", None)  # a table of Arrow
    if isinstance(rows, int):
        return rows
    shape = getattr(points, "shape", None)
    return int(cast("tuple[int, ...]", shape)[0]) if isinstance(shape, tuple) and shape else None


def nothing(_result: object) -> None:
    """What is kept of a result of which nothing is read, as of most writes'."""


def whole(result: Any) -> Any:
    """What is kept of a result that stays as it is."""
    return result


# --- in the worker ------------------------------------------------------------------------------------------
def queries(vectors: Iterable[Any] | None, texts: Iterable[str] | None = None) -> list[Query]:
    """Queries of a call by their vectors, or by their texts where the store embeds them."""
    if vectors is not None:
        return [Query(vector=vector) for vector in vectors]
    return [Query(text=text) for text in texts or ()]


def hits(
    ids: Sequence[Any],
    scores: Sequence[Any] | None = None,
    metadata: Sequence[Any] | None = None,
    texts: Sequence[Any] | None = None,
    *,
    is_hit: Callable[[Any], bool] | None = None,
) -> list[Hit]:
    """Hits of one query out of columns.

    Args:
        ids, scores, metadata, texts: columns of the result; one that is missing is unknown.
        is_hit: ``(id) -> bool``: False for padding, as FAISS's −1.
    """
    found: list[Hit] = []
    for position, identity in enumerate(ids):
        if is_hit is not None and not is_hit(identity):
            continue
        score, about, text = (_at(column, position) for column in (scores, metadata, texts))
        found.append(
            Hit(
                str(identity),
                None if score is None else float(score),
                cast("Mapping[str, Any]", about) if isinstance(about, Mapping) else None,
                text if isinstance(text, str) else None,
            )
        )
    return found


# Columns that identify a row, the likeliest first; else the first whose name ends in `_id`.
_IDENTITIES: Final = ("id", "_id", "uuid", "pk")


def identity_column(names: Sequence[str]) -> int | None:
    """Position of the column that identifies a row of a table."""
    for name in _IDENTITIES:
        if name in names:
            return names.index(name)
    return next((i for i, name in enumerate(names) if name.endswith("_id")), None)


def _at(column: Sequence[Any] | None, position: int) -> Any:
    return column[position] if column is not None and position < len(column) else None


def rerank_facts(order: Sequence[Any], scores: Sequence[Any]) -> dict[str, Any]:
    """Attributes of a reranking: how many documents, how the best and the worst score, how far they moved.

    Args:
        order: for each document, best first, the rank that it had before, from 0.
        scores: in the same order.
    """
    told: dict[str, Any] = {names.RETRIEVAL_RETURNED: len(order)} if order else {}
    known = [float(score) for score in scores if isinstance(score, int | float)]
    if known:
        told[names.RETRIEVAL_TOP_SCORE], told[names.RETRIEVAL_KTH_SCORE] = max(known), min(known)
    ranks = [rank for rank in order if type(rank) is int]
    if ranks and len(ranks) == len(order):
        told[names.RERANK_ORDER] = ranks[:MAX_RANKS]
        told[names.RERANK_TOP_WAS] = ranks[0]
        told[names.RERANK_SHIFT] = sum(abs(was - now) for now, was in enumerate(ranks)) / len(ranks)
    return told


def read_rows(rows: Any, _content: bool) -> Response:
    """How many rows a listing returned."""
    return Response(returned=count(rows))


def store_error(error: BaseException) -> ErrorFacts:
    """What went wrong: of gRPC errors, which are all of one class, the status; else the class."""
    code: Any = getattr(error, "code", None)
    status = getattr(code() if callable(code) else code, "name", None)
    http = next(
        (
            value
            for name in ("status_code", "status", "code")
            if type(value := getattr(error, name, None)) is int
        ),
        None,
    )
    return ErrorFacts(status if isinstance(status, str) else type_name(error), http)
