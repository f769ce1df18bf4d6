"""Searches of a collection: `query`, by vectors or by what it embeds, and `search`, by expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.instrumentation import Endpoint, Hit, Operation, Query, Request, Response, Snapshot
from neuronscope_instrumentation.chroma.collections import metric_of, namespace_of, peer_of
from neuronscope_instrumentation.common.fields import items, text
from neuronscope_instrumentation.common.retrieval import hits, kept_vector, kept_vectors, store_error

Arguments = dict[str, Any]
DEFAULT_RESULTS: Final = 10
_COLUMNS: Final = ("ids", "distances", "metadatas", "documents", "scores")


# --- in the caller's thread ---------------------------------------------------------------------------------
def snapshot_query(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """`query`: of texts, images and their addresses only the texts are kept."""
    model = instance._model
    vectors = kept_vectors(arguments.get("query_embeddings"))
    get = arguments.get
    kept: dict[str, Any] = {
        "vectors": vectors,
        "k": get("n_results", DEFAULT_RESULTS),
        "filtered": not (get("where") is get("where_document") is get("ids") is None),
        "model": model,
    }
    if vectors is None:
        texts, others = get("query_texts"), get("query_images") or get("query_uris")
        kept["texts"] = [texts] if isinstance(texts, str) else list(items(texts))
        kept["others"] = len(items(others))
    return Snapshot(QUERY, model.name, kept, peer_of(instance))


def snapshot_search(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """`search`: its expressions are not changed once made, but for the vectors in them."""
    model = instance._model
    told = arguments.get("searches")
    searches = [_asked(search) for search in (items(told) if isinstance(told, list) else (told,))]
    return Snapshot(SEARCH, model.name, {"searches": searches, "model": model}, peer_of(instance))


def _asked(search: Any) -> tuple[Any, Any, int | None, bool]:
    rank = getattr(search, "_rank", None)
    limit = getattr(getattr(search, "_limit", None), "limit", None)
    return rank, kept_vector(getattr(rank, "query", None)), limit, getattr(search, "_where", None) is not None


def columns_of(result: Any) -> dict[str, Any]:
    """The columns that are read, apart from the lists that their owner may change."""
    get = cast("Mapping[str, Any]", result).get
    return {name: [*map(tuple, column)] for name in _COLUMNS if (column := get(name))}


def found_columns(result: Any) -> dict[str, Any]:
    """The same of `search`, which leaves out a column for some of its queries."""
    get = cast("Mapping[str, Any]", result).get
    return {
        name: [None if row is None else tuple(row) for row in column]
        for name in _COLUMNS
        if (column := get(name))
    }


# --- in the worker ------------------------------------------------------------------------------------------
def read_query(kept: Mapping[str, Any], content: bool) -> Request:
    """A search by vectors, or by texts and images that the collection embeds."""
    vectors: Sequence[Any] | None = kept["vectors"]
    if vectors is not None:
        queries = [Query(vector=vector) for vector in vectors]
    else:
        queries = [Query(text=text(one) if content else None) for one in kept["texts"]]
        queries = queries or [Query() for _ in range(kept["others"])]
    return Request(
        k=kept["k"],
        filtered=kept["filtered"],
        namespace=namespace_of(kept["model"]),
        queries=queries,
        metric=metric_of(kept["model"]),
    )


def read_search(kept: Mapping[str, Any], content: bool) -> Request:
    """A search by ranking expressions; only that of a single vector is one of its metric."""
    metric = metric_of(kept["model"])
    return Request(
        namespace=namespace_of(kept["model"]),
        queries=[
            Query(
                vector=query if not isinstance(query, str) else None,
                text=text(query) if content else None,
                k=limit,
                filtered=filtered,
                metric=metric if type(rank).__name__ == "Knn" and not rank.return_rank else None,
            )
            for rank, query, limit, filtered in kept["searches"]
        ],
    )


def read_columns(columns: Any, content: bool) -> Response:
    """The hits of each query, out of columns."""
    ids = cast("Sequence[Any]", columns["ids"])
    scores = columns.get("distances") or columns.get("scores")
    return Response(
        hits=[
            _hits(
                position, row, scores, columns.get("metadatas"), columns.get("documents") if content else None
            )
            for position, row in enumerate(ids)
        ]
    )


def _hits(position: int, ids: Any, scores: Any, metadatas: Any, documents: Any) -> list[Hit]:
    return hits(ids, *(column[position] if column else None for column in (scores, metadatas, documents)))


QUERY: Final = Endpoint(
    operation=Operation.RETRIEVAL,
    read_request=read_query,
    read_response=read_columns,
    read_error=store_error,
)
SEARCH: Final = Endpoint(
    operation=Operation.RETRIEVAL,
    read_request=read_search,
    read_response=read_columns,
    read_error=store_error,
)
