"""Search and reranking as one retrieval, and what the reranker did to the order."""

from __future__ import annotations

from typing import Any

import cohere
import httpx
import pytest
from opentelemetry.trace import SpanKind
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

import neuronscope as ns
from neuronscope.diagnosis.stages import staged_retrievals
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.testing.fake_cohere import FakeCohere, rerank

DOCS = {"1": "one", "2": "two", "3": "three", "4": "four"}


def span(operation: str, start: int, trace: int = 1, **attributes: Any) -> SpanRecord:
    known = {key.replace("__", "."): value for key, value in attributes.items()}
    return SpanRecord(
        trace, start, operation, SpanKind.CLIENT, start, start + 1, {names.OPERATION_NAME: operation, **known}
    )


def found(start: int, *ids: str, trace: int = 1) -> SpanRecord:
    return span("retrieval", start, trace, neuronscope__retrieval__ids=list(ids))


def reranked(start: int, given: int, *order: int, trace: int = 1) -> SpanRecord:
    told = {"neuronscope__rerank__order": list(order), "neuronscope__input__count": given}
    return span("rerank", start, trace, **told)


@pytest.mark.integration
def test_a_reranker_after_a_search_is_a_stage_of_the_retrieval() -> None:
    """Real store, Cohere's client on a socket: ids by position, ranks gained and lost, what was dropped."""
    client = QdrantClient(":memory:")
    client.create_collection("docs", vectors_config=VectorParams(size=2, distance=Distance.COSINE))
    client.upsert("docs", points=[PointStruct(id=int(n), vector=[1.0, int(n) / 3]) for n in DOCS])
    with FakeCohere() as server, httpx.Client() as http:
        server.reply(rerank([0.9, 0.7], [3, 0]))
        reranker = cohere.ClientV2(api_key="k", base_url=server.base_url, httpx_client=http)
        ns.instrument("qdrant", "cohere")
        with ns.Scope("request") as scope:
            hits = client.query_points("docs", query=[1.0, 0.0], limit=4).points
            texts = [DOCS[str(hit.id)] for hit in hits]
            reranker.rerank(model="rerank-v3", query="q", documents=texts, top_n=2)
    (retrieval,) = staged_retrievals(scope.artifact.telemetry.spans)
    (reranking,) = retrieval.rerankings
    assert reranking.before == ("1", "2", "3", "4")
    assert retrieval.ids == reranking.after == ("4", "1")
    assert reranking.change.moves == (3, -1)
    assert reranking.change.dropped == ("2", "3")
    assert reranking.change.promoted == 3
    assert [(stage.kind, stage.name, stage.k) for stage in retrieval.stages] == [
        ("dense", None, 4),
        ("rerank", "rerank-v3", 2),
    ]


def test_hits_of_two_searches_are_reranked_together() -> None:
    """A hybrid by hand: the reranker was given as many documents as both found."""
    spans = [found(1, "a", "b"), found(2, "c"), reranked(3, 3, 2, 0)]
    (retrieval,) = staged_retrievals(spans)
    assert len(retrieval.searches) == 2
    assert retrieval.ids == ("c", "a")


def test_a_second_reranker_works_on_what_the_first_left() -> None:
    """Two stages, two changes of rank."""
    (retrieval,) = staged_retrievals([found(1, "a", "b", "c"), reranked(2, 3, 2, 1), reranked(3, 2, 1, 0)])
    assert [item.after for item in retrieval.rerankings] == [("c", "b"), ("b", "c")]


def test_what_does_not_fit_is_not_joined() -> None:
    """Another trace, another number of documents: positions are told, and no ids are invented."""
    spans = [found(1, "a", "b", trace=1), reranked(2, 2, 1, 0, trace=2), reranked(3, 5, 4, 0, trace=1)]
    search, other_trace, other_number = staged_retrievals(spans)
    assert (search.ids, search.rerankings) == (("a", "b"), ())
    assert (other_trace.searches, other_trace.ids) == ((), ("1", "0"))
    assert other_number.ids == ("4", "0")
    assert other_number.rerankings[0].change.dropped == ("1", "2", "3")
