"""Chroma's own engine, observed: what only its collections and clients do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import chromadb
import chromadb.telemetry.opentelemetry as chroma_otel
import numpy as np
import pytest
from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, SearchResult
from chromadb.execution.expression import Key, Knn, Rrf, Search
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
import store_chroma
from client_cases import CANARY, agent
from neuronscope.signals import names
from neuronscope.signals.views import retrieval_spans
from neuronscope_instrumentation.chroma.collections import metric_of, namespace_of, peer_of
from store_cases import COLLECTION, QUERY
from store_chroma import quiet


@pytest.fixture
def collection() -> Iterator[Any]:
    """The documents, embedded."""
    with store_chroma.embedded() as made:
        yield made


@pytest.fixture
def client() -> Any:
    """A client of an empty database."""
    database = f"db{uuid.uuid4().hex}"
    chromadb.EphemeralClient(quiet())
    chromadb.AdminClient(quiet()).create_database(database)
    return chromadb.EphemeralClient(quiet(), database=database)


class Words(EmbeddingFunction[Documents]):
    """An embedder: one direction a word."""

    def __init__(self) -> None:
        """Has no settings."""

    def __call__(self, input: Documents) -> Embeddings:
        return [np.array([text.count(word) + 0.5 for word in ("one", "two", "three")]) for text in input]

    @staticmethod
    def name() -> str:
        return "words"

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> EmbeddingFunction[Documents]:
        return Words()

    def get_config(self) -> dict[str, Any]:
        return {}


# --- searches -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["on", "content"])
def test_texts_are_queries_whose_vectors_the_collection_makes(client: Any, mode: Any) -> None:
    """One record a text; the text itself is content, and nothing embeds it a second time."""
    collection = client.create_collection("words", embedding_function=Words())
    collection.add(ids=["a", "b"], documents=["one", "two two"])
    with agent(mode, "chroma") as exporter:
        result = collection.query(query_texts=[f"one {CANARY}", "two"], n_results=2)
    one, two = retrieval_spans(exporter.spans)
    assert (one.ids, two.ids) == (result["ids"][0], result["ids"][1])
    assert one.metric == "euclid_squared"
    assert one.query_fingerprint is None
    assert (CANARY in repr(exporter.spans)) == (mode == "content")


def test_lists_may_change_after_the_call(collection: Any) -> None:
    """The vector that was searched with, and the hits that were found."""
    vector = list(QUERY)
    with agent("on", "chroma") as exporter:
        result = collection.query(query_embeddings=[vector], n_results=3)
        expected = list(result["ids"][0])
        vector[:] = [9.0] * 4
        result["ids"][0].clear()
        result["distances"].clear()
    (search,) = retrieval_spans(exporter.spans)
    assert search.ids == expected
    assert len(search.scores) == 3
    assert search.query_norm == pytest.approx(float(np.linalg.norm(QUERY)))


def test_expressions_are_queries(collection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`search` works on Chroma's cloud only: its answer is put in here, where the collection asks for it."""
    answer = SearchResult(
        ids=[["a", "b"], ["c"]],
        documents=[None, [CANARY]],
        embeddings=[None, None],
        metadatas=[[{"x": 1}, None], None],
        scores=[[0.25, 0.5], [0.75]],
        select=[[], []],
    )

    def answered(*_: Any, **__: Any) -> SearchResult:
        return answer

    monkeypatch.setattr(cast("Any", type(collection._client)), "_search", answered)
    searches = [
        Search().where(Key("x") == 1).rank(Knn(query=list(QUERY))).limit(2),
        Search().rank(Rrf([Knn(query=list(QUERY), return_rank=True)])).limit(1),
    ]
    with agent("on", "chroma") as exporter:
        assert collection.search(searches) is answer
    one, two = retrieval_spans(exporter.spans)
    assert (one.ids, two.ids) == (["a", "b"], ["c"])
    assert (one.metric, two.metric) == ("cosine_distance", None)
    assert (one.k, one.filtered, two.k, two.filtered) == (2, True, 1, False)
    assert (one.query_dimension, two.query_dimension) == (4, None)
    assert one.metadata_keys == ["x"]
    assert CANARY not in repr(exporter.spans)


# --- clients --------------------------------------------------------------------------------------------
def test_collections_are_made_and_dropped_in_one_span_each(client: Any) -> None:
    """Named by the method and the collection."""
    with agent("on", "chroma") as exporter:
        client.create_collection("made", embedding_function=None)
        client.get_or_create_collection("made", embedding_function=None)
        client.get_collection("made", embedding_function=None)
        client.list_collections()
        client.delete_collection("made")
    assert [span.name for span in exporter.spans] == [
        "create_collection made",
        "get_or_create_collection made",
        "get_collection made",
        "list_collections",
        "delete_collection made",
    ]
    assert exporter.spans[3].attributes[names.DB_RETURNED_ROWS] == 1


def test_a_wrapped_client_brings_its_collections_along(client: Any, collection: Any) -> None:
    """Those that it makes or looks up from now on; a collection of another client stays alone."""
    ns.Dataset.wrap_vector_store(client)
    with ns.Scope("one") as scope:
        made = client.create_collection("made", embedding_function=None)
        made.add(ids=["1"], embeddings=[[1.0, 2.0]])
        client.get_collection("made", embedding_function=None).count()
        collection.count()
    assert [span.name for span in scope.artifact.telemetry.spans[1:]] == [
        "create_collection made",
        "add made",
        "get_collection made",
        "count made",
    ]


def test_chromas_own_spans_are_inside_ours(collection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tracing shows its engine: one span of ours a call, and theirs are its children."""
    provider, theirs = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    trace.set_tracer_provider(provider)
    monkeypatch.setattr(chroma_otel, "tracer", trace.get_tracer("chromadb"))
    monkeypatch.setattr(chroma_otel, "granularity", chroma_otel.OpenTelemetryGranularity.ALL)
    with agent("on", "chroma"):
        collection.query(query_embeddings=list(QUERY), n_results=3)
    spans = theirs.get_finished_spans()
    (ours,) = [span for span in spans if span.name == f"retrieval {COLLECTION}"]
    assert {span.parent.span_id for span in spans if span.parent is not None} <= {
        span.context.span_id for span in spans if span.context is not None
    }
    assert ours.parent is None


# --- what a collection knows of itself ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("configuration", "metadata", "metric"),
    [
        ({"hnsw": {"space": "ip"}}, None, "dot_distance"),
        ({"hnsw": None, "spann": {"space": "cosine"}}, None, "cosine_distance"),
        (None, {"hnsw:space": "l2"}, "euclid_squared"),
        (None, None, None),
    ],
)
def test_the_metric_is_where_the_version_keeps_it(
    configuration: Any, metadata: Any, metric: str | None
) -> None:
    """In the configuration of either kind of index, or in metadata."""
    model = SimpleNamespace(configuration_json=configuration, metadata=metadata)
    assert metric_of(model) == metric


def test_tenants_are_told_unless_they_are_the_usual_one() -> None:
    """The database alone, or behind its tenant."""
    assert namespace_of(SimpleNamespace(tenant="default_tenant", database="books")) == "books"
    assert namespace_of(SimpleNamespace(tenant="acme", database="books")) == "acme|books"


def test_a_server_has_an_address(collection: Any) -> None:
    """An embedded store has none."""
    remote = SimpleNamespace(_client=SimpleNamespace(_api_url="https://api.trychroma.com:8000/api/v2"))
    assert peer_of(remote) == ("chroma", "api.trychroma.com", 8000)
    assert peer_of(collection) == ("chroma", None, None)
