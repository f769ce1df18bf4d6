"""Pinecone's clients with a fake index on a socket: what only they do."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pinecone import AsyncPinecone, Pinecone
from pinecone.grpc import GrpcIndex
from pinecone.index import Index

import neuronscope as ns
import pinecone_grpc
from client_cases import CANARY, agent
from neuronscope.signals import names
from neuronscope.signals.views import retrieval_spans
from neuronscope.testing import FakePinecone
from neuronscope_instrumentation.pinecone import indexes
from store_cases import QUERY
from store_pinecone import NAMESPACE, RECORDS, fill

pytestmark = pytest.mark.integration
QUERY_LIST = list(QUERY)


@pytest.fixture
def server() -> Iterator[FakePinecone]:
    """An index with the documents; what its metric was is forgotten."""
    indexes.forget_metrics()
    with FakePinecone() as fake:
        fill(fake)
        yield fake


@contextmanager
def client_of(server: FakePinecone) -> Generator[Any]:
    client = Pinecone(api_key="key", host=server.base_url, ssl_verify=False)
    yield client
    client.close()


@contextmanager
def index_of(server: FakePinecone) -> Generator[Any]:
    with client_of(server) as client:
        index: Any = client.Index(host=server.base_url)
        yield index
        index.close()


# --- made before or after -------------------------------------------------------------------------------
def test_an_index_made_while_observed_is_one_span_a_call(server: FakePinecone) -> None:
    """The wrapper is in the instance's own methods; the request below stays silent."""
    with agent("on", "pinecone") as exporter, index_of(server) as index:
        index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
        index.upsert(vectors=RECORDS, namespace="new")
        index.list_paginated(namespace=NAMESPACE)
        index.describe_index_stats()
        assert [span.attributes[names.DB_OPERATION] for span in exporter.spans] == [
            "query",
            "upsert",
            "list_paginated",
            "describe_index_stats",
        ]
        ns.uninstrument("pinecone")
        index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
        assert len(exporter.spans) == 4


def test_an_index_made_before_tells_the_same(server: FakePinecone) -> None:
    """It calls past the wrappers of its methods; its requests are seen."""
    with index_of(server) as index, agent("on", "pinecone") as exporter:
        result = index.query(
            vector=QUERY_LIST, top_k=3, namespace=NAMESPACE, filter={"parity": 1}, include_metadata=True
        )
    (search,) = retrieval_spans(exporter.spans)
    assert search.span.name == "retrieval"
    assert search.ids == [match.id for match in result.matches]
    assert search.metadata_keys == ["parity", "text", "title"]
    assert (search.k, search.filtered, search.namespace) == (3, True, NAMESPACE)


def test_requests_in_a_pool_of_the_library_belong_to_their_call(server: FakePinecone) -> None:
    """`async_req=True`, and the futures of gRPC: the search is a child of what asked for it."""
    with agent("on", "pinecone"), pinecone_grpc.serve(server) as address, index_of(server) as index:
        channel = GrpcIndex(host=address, api_key="key", secure=False, grpc_scheme="http")
        with ns.Scope("request") as scope:
            index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE, async_req=True).get()
            channel.query_async(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE).result()
        channel.close()
    root, *searches = scope.artifact.telemetry.spans
    assert [span.parent_span_id for span in searches] == [root.span_id] * 2


# --- one span a call ------------------------------------------------------------------------------------
def test_writes_in_parts_are_one_span(server: FakePinecone) -> None:
    """Batches, and a data frame that the library takes apart."""
    frame: Any = importlib.import_module("pandas").DataFrame(RECORDS)
    with agent("on", "pinecone") as exporter, index_of(server) as index:
        index.upsert(vectors=RECORDS, namespace="a", batch_size=3, show_progress=False)
        index.upsert_from_dataframe(frame, namespace="b", batch_size=3, show_progress=False)
    assert {name: len(records) for name, records in server.namespaces.items()}["b"] == 8
    told = [
        (span.attributes[names.DB_OPERATION], span.attributes[names.WRITE_COUNT]) for span in exporter.spans
    ]
    assert told == [("upsert", 8), ("upsert_from_dataframe", 8)]


def test_a_listing_is_read_page_by_page(server: FakePinecone) -> None:
    """Nothing is asked before the service asks, and nothing more than it reads."""
    with agent("on", "pinecone") as exporter, index_of(server) as index:
        pages = index.list(namespace=NAMESPACE, limit=3)
        assert server.requests == []
        assert [item.id for item in next(pages).vectors] == ["1", "2", "3"]
        assert len(server.requests) == len(exporter.spans) == 1
        assert sum(len(page.vectors) for page in pages) == 5
    assert [span.attributes[names.DB_RETURNED_ROWS] for span in exporter.spans] == [3, 3, 2]


def test_statistics_tell_how_scores_read() -> None:
    """Euclidean scores are squared distances: smaller is better, once the metric is known or seen."""
    indexes.forget_metrics()
    with FakePinecone("euclidean") as server, agent("on", "pinecone") as exporter, index_of(server) as index:
        fill(server)
        index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
        index.describe_index_stats()
        index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
    guessed, known = retrieval_spans(exporter.spans)
    assert (guessed.metric, known.metric) == (None, "euclid_squared")
    for search in (guessed, known):
        assert search.top_score == min(search.scores)
        assert list(search.normalised_scores) == sorted(search.normalised_scores, reverse=True)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("https://movies-en-a1b2c3d.svc.aped-4627-b74a.pinecone.io", "movies-en"),
        ("movies-a1b2c3d.svc.us-east-1.pinecone.io", "movies"),
        ("http://localhost:5081", None),
    ],
)
def test_the_host_tells_the_name_of_the_index(host: str, name: str | None) -> None:
    """Pinecone's hosts are made of it; an emulator's is not."""
    known = indexes.known_index(Index(host=host, api_key="key"))
    assert known.name == name
    assert known.peer.provider == "pinecone"
    assert known.peer.port == (5081 if name is None else 443)


# --- hosted inference -----------------------------------------------------------------------------------
@pytest.fixture
def inference(server: FakePinecone) -> Generator[Any]:
    """Hosted inference of a client."""
    with client_of(server) as client:
        yield client.inference


def test_embeddings_are_a_models_call(inference: Any) -> None:
    """Model, number of texts, tokens and length; no text and no number of a vector."""
    with agent("on", "pinecone") as exporter:
        result = inference.embed(model="embedder", inputs=[CANARY, "two words"])
    (span,) = exporter.spans
    assert span.name == "embeddings embedder"
    assert len(result.data) == 2
    facts = {
        names.OPERATION_NAME: "embeddings",
        names.PROVIDER_NAME: "pinecone",
        names.REQUEST_MODEL: "embedder",
        names.RESPONSE_MODEL: "embedder",
        names.INPUT_COUNT: 2,
        names.INPUT_TOKENS: 3,
        names.EMBEDDING_DIMENSIONS: 4,
    }
    assert {key: span.attributes[key] for key in facts} == facts
    assert CANARY not in repr(span)
    assert "0.25" not in repr(span)


@pytest.mark.parametrize("mode", ["on", "content"])
def test_a_reranking_tells_how_far_documents_moved(inference: Any, mode: Any) -> None:
    """The best document was the last before: three places up, the others each one down."""
    documents = ["nothing", "the end", "a fox", f"the quick fox {CANARY}"]
    with agent(mode, "pinecone") as exporter:
        result = inference.rerank(model="ranker", query=f"quick fox {CANARY}", documents=documents, top_n=3)
    (span,) = exporter.spans
    assert [one.index for one in result.data] == [3, 2, 0]
    assert span.name == "rerank ranker"
    assert span.attributes[names.INPUT_COUNT] == 4
    assert span.attributes[names.RETRIEVAL_TOP_K] == 3
    assert span.attributes[names.RERANK_TOP_WAS] == 3
    assert span.attributes[names.RERANK_SHIFT] == pytest.approx((3 + 1 + 2) / 3)
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == result.data[0].score
    assert (CANARY in repr(span)) == (mode == "content")


async def test_asynchronous_inference_is_the_same(server: FakePinecone) -> None:
    """Both calls of the asynchronous client."""
    with agent("on", "pinecone") as exporter:
        async with AsyncPinecone(api_key="key", host=server.base_url, ssl_verify=False) as client:
            await client.inference.embed(model="embedder", inputs=["one"])
            await client.inference.rerank(model="ranker", query="one", documents=["two", "one"])
    assert [span.name for span in exporter.spans] == ["embeddings embedder", "rerank ranker"]


# --- single objects -------------------------------------------------------------------------------------
def test_a_wrapped_client_brings_its_indexes_along(server: FakePinecone) -> None:
    """Indexes that it makes, their documents, hosted inference; another client stays alone."""
    with client_of(server) as ours, index_of(server) as alone, ns.Scope("one") as scope:
        ns.Dataset.wrap_vector_store(ours)
        index = ours.Index(host=server.base_url)
        index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
        index.documents.search(
            namespace=NAMESPACE, top_k=1, score_by=[{"type": "text", "query": "title", "fields": ["title"]}]
        )
        alone.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
        index.close()
    assert [span.name for span in scope.artifact.telemetry.spans[1:]] == ["retrieval", "retrieval"]


# --- renamed or unknown releases ------------------------------------------------------------------------
def test_the_distributions_name_decides_nothing(
    server: FakePinecone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinecone's has changed before: what is importable and has the methods is observed."""

    def unknown(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", unknown)
    monkeypatch.setattr(importlib.metadata, "version", unknown)
    with agent("on", "pinecone") as exporter, index_of(server) as index:
        index.query(vector=QUERY_LIST, top_k=3, namespace=NAMESPACE)
        index.query_namespaces(vector=QUERY_LIST, top_k=3, namespaces=[NAMESPACE, "other"], metric="cosine")
    assert [span.attributes[names.DB_OPERATION] for span in exporter.spans] == ["query", "query_namespaces"]
