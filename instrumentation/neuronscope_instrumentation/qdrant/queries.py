"""What a Qdrant query is: a similarity search or a listing, by which vector, and on which scale it scores.

Queries are told by their types' names: the library is not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Query, Request, Stage
from neuronscope_instrumentation.qdrant.clients import distance

# Stand for the queries of the older `recommend` and `discover`, whose vectors are the store's.
STORED_POINTS: Final = "stored points"
DISCOVERY: Final = "discovery"
# Queries whose scores measure no similarity.
_UNSCORED: Final = frozenset({"NoneType", "OrderByQuery", "SampleQuery"})
# Queries that score on a scale of their own, on which more is better.
_OWN_SCALE: Final = frozenset(
    {"FormulaQuery", "DiscoverQuery", "ContextQuery", "RelevanceFeedbackQuery", "TextQuery"}
)
# How queries rank, as stages of a search are called.
_KINDS: Final = {
    "NoneType": "filter",
    "RrfQuery": "rrf",
    "SparseVector": "sparse",
    "RecommendQuery": "recommend",
    "DiscoverQuery": "discover",
    "ContextQuery": "context",
    "RelevanceFeedbackQuery": "feedback",
    "FormulaQuery": "formula",
    "OrderByQuery": "order",
    "SampleQuery": "sample",
    "Document": "text",
    "TextQuery": "text",
    "Image": "image",
}
DEFAULT_LIMIT: Final = 10


class AskedQuery(NamedTuple):
    """One query as it was asked.

    Attributes:
        limit: hits asked for.
        filter: restricts what is searched.
        prefetch: the queries whose results this one merges or rescores.
    """

    query: Any
    using: str | None
    limit: int
    filter: Any
    prefetch: Any

    @property
    def scored(self) -> bool:
        """Do its scores measure similarity?"""
        return type(self.query).__name__ not in _UNSCORED


def read_request(kept: Mapping[str, Any], content: bool) -> Request:
    """Facts of a call by what its snapshot kept."""
    queries: Sequence[AskedQuery] | None = kept.get("queries")
    if queries is None:
        return Request(write_count=kept.get("write_count"), filtered=kept.get("filtered"))
    vectors = kept["vectors"] or kept["client"].learned.get(kept["collection"])
    return Request(queries=[read_query(asked, vectors, content) for asked in queries])


def read_query(asked: AskedQuery, vectors: Any, content: bool) -> Query:
    """One query in our words."""
    return Query(
        vector=query_vector(asked),
        text=_text(asked.query) if content else None,
        k=asked.limit,
        filtered=_filtered(asked),
        metric=scale(asked.query, asked.using, vectors),
        stages=stages(asked),
    )


def scale(query: Any, using: str | None, vectors: Any) -> str | None:
    """How to read the scores of a query: a distance, a fusion's name, or None (unknown: more is better)."""
    kind = type(query).__name__
    if kind in _OWN_SCALE or kind in _UNSCORED or query is DISCOVERY:
        return None
    if kind == "RrfQuery":
        return "rrf"
    if kind == "FusionQuery":
        return str(getattr(query.fusion, "value", query.fusion))
    if kind == "SparseVector":
        return "dot"  # the only one Qdrant has for sparse vectors
    if kind == "RecommendQuery":
        strategy = getattr(query.recommend, "strategy", None)
        averaged = getattr(strategy, "value", strategy) in (None, "average_vector")
        return distance(vectors, using) if averaged else None
    if kind == "NearestQuery":
        return scale(query.nearest, using, vectors)
    return distance(vectors, using)


def query_vector(asked: AskedQuery) -> Any:
    """The dense vector that was searched with; None for an id, a text or a sparse vector.

    A fusion or rescoring searches with its prefetches' vectors: taken if just one of them is dense.
    """
    vector = _dense(asked.query)
    if vector is not None:
        return vector
    steps = [_dense(getattr(step, "query", None)) for step in _steps(asked)]
    dense = [step for step in steps if step is not None]
    return dense[0] if len(dense) == 1 else None


def stages(asked: AskedQuery) -> list[Stage] | None:
    """The steps of a query that merges or rescores the results of others, innermost first; else None."""
    if not asked.prefetch:
        return None
    inner = [stage for step in _steps(asked) for stage in _step(step)]
    return [*inner, Stage(kind_of(asked.query), asked.using, asked.limit)]


def _step(prefetch: Any) -> list[Stage]:
    nested = getattr(prefetch, "prefetch", None) or ()
    steps = cast(Sequence[Any], nested if type(nested) is list else (nested,)) if nested else ()
    inner = [stage for step in steps for stage in _step(step)]
    limit = getattr(prefetch, "limit", None) or DEFAULT_LIMIT
    return [*inner, Stage(kind_of(getattr(prefetch, "query", None)), getattr(prefetch, "using", None), limit)]


def kind_of(query: Any) -> str:
    """How a query ranks: ``dense``, ``sparse``, ``multi``, ``rrf``, ``formula`` and so on."""
    kind = type(query).__name__
    if kind == "NearestQuery":
        return kind_of(query.nearest)
    if kind == "FusionQuery":
        return str(getattr(query.fusion, "value", query.fusion))
    if kind == "list" and query and isinstance(query[0], list):
        return "multi"
    return _KINDS.get(kind, "dense" if _dense(query) is not None else "id")


def _dense(query: Any) -> Any:
    query = getattr(query, "nearest", query)
    return query if type(query).__name__ in ("list", "tuple") or hasattr(query, "__array__") else None


def _text(query: Any) -> str | None:
    text = getattr(getattr(query, "nearest", query), "text", None)  # Document
    text = getattr(text, "query", text)  # TextQuery
    return text if isinstance(text, str) else None


def _filtered(asked: AskedQuery) -> bool:
    return asked.filter is not None or any(getattr(step, "filter", None) for step in _steps(asked))


def _steps(asked: AskedQuery) -> Sequence[Any]:
    prefetch: Any = asked.prefetch
    return cast(Sequence[Any], prefetch if type(prefetch) is list else (prefetch,))
