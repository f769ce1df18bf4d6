"""Searches of an index: what the hot path keeps of them, and how they and their results are read.

Four ways to ask: `query` by vector or id, `query_namespaces` over several, `search` of an index that embeds
texts itself, and `documents.search` by any of an index's fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.instrumentation import Endpoint, Hit, Operation, Query, Request, Response, Snapshot, Stage
from neuronscope_instrumentation.common.fields import document, field, items, text
from neuronscope_instrumentation.common.retrieval import kept_vector, store_error
from neuronscope_instrumentation.pinecone.indexes import METRICS, KnownIndex, known_index, learned_metric

Arguments = dict[str, Any]
DEFAULT_TOP_K: Final = 10  # of `query_namespaces`
# How the scoring methods of `documents.search` rank, by their types and by the `type` of dictionaries.
_SCORING: Final = {
    "DenseVectorQuery": "dense",
    "SparseVectorQuery": "sparse",
    "EmbedQuery": "dense",
    "SparseEmbedQuery": "sparse",
    "TextQuery": "text",
    "QueryStringQuery": "text",
    "dense_vector": "dense",
    "sparse_vector": "sparse",
    "text": "text",
    "query_string": "text",
}


# --- in the caller's thread ---------------------------------------------------------------------------------
def snapshot_query(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """`query` and `query_namespaces`."""
    index = known_index(instance)
    kept = {
        "vector": kept_vector(arguments.get("vector")),
        "sparse": arguments.get("sparse_vector") is not None,
        "k": arguments.get("top_k"),
        "filtered": arguments.get("filter") is not None,
        "namespace": arguments.get("namespace") or arguments.get("namespaces"),
        "metric": arguments.get("metric"),
        "index": index,
    }
    return Snapshot(QUERY, index.name, kept, index.peer)


def snapshot_search(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """`search` of texts or vectors, with a reranking if asked for."""
    index = known_index(instance)
    asked = arguments.get("query") or arguments
    inputs, vector = field(asked, "inputs"), field(asked, "vector")
    rerank = arguments.get("rerank")
    kept = {
        "text": field(inputs, "text"),
        "vector": kept_vector(field(vector, "values") if isinstance(vector, Mapping) else vector),
        "k": field(asked, "top_k"),
        "filtered": field(asked, "filter") is not None,
        "namespace": arguments.get("namespace"),
        "rerank": rerank if rerank is None else (field(rerank, "model"), field(rerank, "top_n")),
        "index": index,
    }
    return Snapshot(SEARCH, index.name, kept, index.peer)


def snapshot_documents(instance: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    """`documents.search`."""
    index, score_by = known_index(instance), arguments.get("score_by")
    if not isinstance(score_by, list | tuple):
        return None  # an iterator is the client's to read
    kept = {
        "methods": tuple(cast("Sequence[Any]", score_by)),
        "k": arguments.get("top_k"),
        "filtered": arguments.get("filter") is not None,
        "namespace": arguments.get("namespace"),
        "index": index,
    }
    return Snapshot(DOCUMENTS, index.name, kept, index.peer)


def matches_of(result: Any) -> Any:
    """The hits of `query` and `documents.search`, apart from the list that their owner may change."""
    return tuple(result.matches)


def hits_of(result: Any) -> Any:
    """The hits of `search`."""
    return tuple(result.result.hits)


# --- in the worker ------------------------------------------------------------------------------------------
def read_query(kept: Mapping[str, Any], _content: bool) -> Request:
    """A search by vector or id."""
    index: KnownIndex = kept["index"]
    both = kept["sparse"] and kept["vector"] is not None
    return Request(
        k=kept["k"] if kept["k"] is not None else DEFAULT_TOP_K,
        filtered=kept["filtered"],
        namespace=_namespace(kept["namespace"]),
        queries=[Query(vector=kept["vector"])],
        metric=METRICS.get(kept["metric"]) or learned_metric(index.host),
        stages=[Stage("dense"), Stage("sparse")] if both else None,
    )


def read_search(kept: Mapping[str, Any], content: bool) -> Request:
    """A search of texts."""
    index: KnownIndex = kept["index"]
    k, stages, metric = kept["k"], None, learned_metric(index.host)
    if kept["rerank"] is not None:
        model, top_n = kept["rerank"]
        stages = [Stage("dense", k=k), Stage("rerank", model, top_n or k)]
        k, metric = top_n or k, "rerank"
    return Request(
        k=k,
        filtered=kept["filtered"],
        namespace=_namespace(kept["namespace"]),
        queries=[Query(vector=kept["vector"], text=kept["text"] if content else None)],
        metric=metric,
        stages=stages,
    )


def read_documents(kept: Mapping[str, Any], content: bool) -> Request:
    """A search by fields of documents."""
    methods: Sequence[Any] = kept["methods"]
    vectors = [values for method in methods if (values := field(method, "values")) is not None]
    texts = [told for method in methods if (told := text(field(method, "query")))]
    kinds = [_SCORING.get(str(field(method, "type")), _scoring(method)) for method in methods]
    return Request(
        k=kept["k"],
        filtered=kept["filtered"],
        namespace=_namespace(kept["namespace"]),
        queries=[
            Query(
                vector=vectors[0] if len(vectors) == 1 else None,
                text=texts[0] if content and len(texts) == 1 else None,
            )
        ],
        metric=learned_metric(kept["index"].host) if kinds == ["dense"] else None,
        stages=[Stage(kind, _searched(method)) for kind, method in zip(kinds, methods, strict=True)]
        if len(methods) > 1
        else None,
    )


def _searched(method: Any) -> str | None:
    names = items(field(method, "fields"))
    return str(names[0]) if names else text(field(method, "field"))


def _scoring(method: Any) -> str:
    return _SCORING.get(type(method).__name__, "other")


def _namespace(told: Any) -> str | None:
    """Several namespaces are told together, as the database conventions do."""
    if isinstance(told, str):
        return told or None
    return "|".join(str(name) for name in items(told)) or None


def read_matches(matches: Any, _content: bool) -> Response:
    """Hits with their metadata, if that was asked for; of the raw response they are read here."""
    if isinstance(matches, bytes):
        matches = items(field(document(matches), "matches"))
    return Response(
        hits=[[Hit(str(field(one, "id")), field(one, "score"), field(one, "metadata")) for one in matches]]
    )


def read_hits(hits: Any, _content: bool) -> Response:
    """Hits with the fields that were asked for."""
    return Response(hits=[[_hit(one) for one in hits]])


def _hit(one: Any) -> Hit:
    identity, score = field(one, "id_"), field(one, "score_")
    if identity is None:  # before release 8
        identity, score = field(one, "_id"), field(one, "_score")
    return Hit(str(identity), score, field(one, "fields"))


def read_found(documents: Any, _content: bool) -> Response:
    """Documents, whose fields are their metadata."""
    return Response(
        hits=[[Hit(str(one.id), one.score, _fields(one)) for one in documents]],
    )


def _fields(one: Any) -> Mapping[str, Any]:
    data = cast("Mapping[str, Any]", getattr(one, "_data", None) or {})
    return {key: value for key, value in data.items() if key not in ("_id", "_score")}


QUERY: Final = Endpoint(
    operation=Operation.RETRIEVAL,
    read_request=read_query,
    read_response=read_matches,
    read_error=store_error,
)
SEARCH: Final = Endpoint(
    operation=Operation.RETRIEVAL, read_request=read_search, read_response=read_hits, read_error=store_error
)
DOCUMENTS: Final = Endpoint(
    operation=Operation.RETRIEVAL,
    read_request=read_documents,
    read_response=read_found,
    read_error=store_error,
)
