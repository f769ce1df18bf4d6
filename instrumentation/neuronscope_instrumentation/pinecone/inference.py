"""Hosted inference: embeddings and reranking by Pinecone's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Operation, Request, Response, Snapshot
from neuronscope_instrumentation.common.fields import count, field, items, text
from neuronscope_instrumentation.common.retrieval import rerank_facts, store_error
from neuronscope_instrumentation.pinecone.indexes import known_index

Arguments = dict[str, Any]


def snapshot_embed(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """Of what is embedded only the number of texts is kept."""
    inputs, model = arguments.get("inputs"), _model(arguments)
    kept = {"model": model, "input_count": 1 if isinstance(inputs, str) else _length(inputs)}
    return Snapshot(EMBED, model, kept, known_index(instance).peer)


def snapshot_rerank(instance: Any, arguments: Arguments, content: bool) -> Snapshot:
    """The query is content; of the documents only their number is kept."""
    model = _model(arguments)
    kept = {
        "model": model,
        "input_count": _length(arguments.get("documents")),
        "k": arguments.get("top_n"),
        "query": arguments.get("query") if content else None,
    }
    return Snapshot(RERANK, model, kept, known_index(instance).peer)


def _model(arguments: Arguments) -> str | None:
    told = arguments.get("model")
    return text(getattr(told, "value", told))


def _length(inputs: Any) -> int | None:
    return len(items(inputs)) if isinstance(inputs, list | tuple) else None


def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """An embedding or a reranking in our words."""
    return Request(
        model=kept["model"],
        input_count=kept["input_count"],
        k=count(kept.get("k")),
        query_text=text(kept.get("query")),
    )


def read_embeddings(result: Any, _content: bool) -> Response:
    """Length and tokens; the vectors stay unread."""
    first = next(iter(items(field(result, "data"))), None)
    return Response(
        model=text(field(result, "model")),
        dimensions=len(items(field(first, "values"))) or None,
        input_tokens=count(field(field(result, "usage"), "total_tokens")),
    )


def read_ranking(result: Any, _content: bool) -> Response:
    """How many, how well the best and the worst fit, and how far documents moved."""
    ranked = items(field(result, "data"))
    return Response(
        model=text(field(result, "model")),
        extra=rerank_facts([field(one, "index") for one in ranked], [field(one, "score") for one in ranked]),
    )


EMBED: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_request,
    read_response=read_embeddings,
    read_error=store_error,
)
RERANK: Final = Endpoint(
    operation=Operation.RERANK, read_request=read_request, read_response=read_ranking, read_error=store_error
)
