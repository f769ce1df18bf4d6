"""What a LanceDB query asks for.  Queries are built step by step and run when their result is asked for.

Synchronous builders keep what they were told in attributes of Python; asynchronous ones keep it in Rust and
give a copy of it.  Of that copy `full_text_search` must not be read: in LanceDB 0.40 it aborts with a panic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Query, Request, Stage
from neuronscope_instrumentation.common.retrieval import kept_vectors

DEFAULT_LIMIT: Final = 10
# Distances as LanceDB tells them; without a word it takes the index's, which only the server knows.
METRICS: Final = {
    "l2": "euclid_squared",
    "cosine": "cosine_distance",
    "dot": "dot_distance",
    "hamming": "hamming",
}


class Asked(NamedTuple):
    """A query as it was asked.

    Attributes:
        vectors: copies of the vectors searched with; None for a search by words.
        words: is it a search by words, alone or beside one by vectors?
        text: the words, or an object that holds them.
        reranker: what ranks the hits at the end.
    """

    vectors: Sequence[Any] | None
    words: bool
    text: Any
    limit: int | None
    filtered: bool
    distance: str | None
    column: str | None
    reranker: Any

    @property
    def searches(self) -> bool:
        """Is anything searched for?  Else rows are listed."""
        return self.words or self.vectors is not None


def of_builder(builder: Any) -> Asked:
    """What a synchronous builder was told."""
    kind = type(builder).__name__
    told: dict[str, Any] = cast("dict[str, Any]", vars(builder))
    by_words, hybrid = "Fts" in kind, "Hybrid" in kind
    vector = told.get("_vector") if hybrid else None if by_words else told.get("_query")
    text = told.get("_text") if hybrid else None
    if by_words or (hybrid and text is None):
        text = told.get("_query")
    return Asked(
        vectors=(kept_vectors(vector) or (None,)) if hybrid or vector is not None else None,
        words=by_words or hybrid,
        text=text,
        limit=told.get("_limit"),
        filtered=told.get("_where") is not None,
        distance=told.get("_distance_type"),
        column=told.get("_vector_column"),
        reranker=told.get("_reranker"),
    )


def of_async(query: Any) -> Asked:
    """What an asynchronous query was told."""
    kind = type(query).__name__
    request = query._inner.to_query_request()
    vectors = getattr(request, "query_vector", None)
    words = "FTS" in kind or "Hybrid" in kind
    return Asked(
        vectors=tuple(vectors) if vectors else (None,) if "Hybrid" in kind else None,
        words=words,
        text=query if "FTS" in kind else None,
        limit=request.limit,
        filtered=request.filter is not None,
        distance=getattr(request, "distance_type", None),
        column=request.column,
        reranker=getattr(query, "_reranker", None),
    )


def read_search(kept: Mapping[str, Any], content: bool) -> Request:
    """Facts of a search by what its snapshot kept."""
    asked: Asked = kept["asked"]
    limit = asked.limit or DEFAULT_LIMIT
    text = words_of(asked.text) if content else None
    vectors = asked.vectors if asked.vectors is not None else (None,)
    return Request(
        k=limit,
        filtered=asked.filtered,
        metric=metric(asked),
        stages=stages(asked, limit),
        queries=[Query(vector=_numbers(vector), text=text) for vector in vectors],
    )


def _numbers(vector: Any) -> Any:
    """Asynchronous queries hold their vectors as arrays of Arrow."""
    return vector.to_numpy(zero_copy_only=False) if hasattr(vector, "to_numpy") else vector


def metric(asked: Asked) -> str:
    """How the scores read: those of the last step."""
    if asked.reranker is not None or (asked.words and asked.vectors is not None):
        return _ranking(asked.reranker)
    return "bm25" if asked.words else METRICS.get((asked.distance or "").lower(), "distance")


def stages(asked: Asked, limit: int) -> list[Stage] | None:
    """The steps of a search that has several."""
    halves = [Stage("dense", asked.column, limit)] if asked.vectors is not None else []
    if asked.words:
        halves.append(Stage("bm25", None, limit))
    if len(halves) == 1 and asked.reranker is None:
        return None
    return [*halves, Stage(_ranking(asked.reranker), None, limit)]


def _ranking(reranker: Any) -> str:
    """A hybrid search without a reranker takes LanceDB's own, reciprocal rank fusion."""
    return "rrf" if reranker is None or type(reranker).__name__ == "RRFReranker" else "rerank"


def words_of(text: Any) -> str | None:
    """The words of a search, out of LanceDB's query objects."""
    if isinstance(text, str) or text is None:
        return text
    found = text.get_query() if hasattr(text, "get_query") else getattr(text, "query", None)
    return found if isinstance(found, str) else None
