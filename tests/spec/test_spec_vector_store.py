"""The specification's vector store example, on Pinecone as printed, and on Qdrant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pinecone
import pytest
from numpy.typing import NDArray
from qdrant_client import QdrantClient, models

import neuronscope as ns
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.testing import FakePinecone


class Embedder:
    """Stands for the example's `embed_model`: one direction per word."""

    def encode(self, text: str) -> NDArray[np.float32]:
        """The text as a vector."""
        words = ("heat", "pumps", "cold")
        return np.array([float(word in text) for word in words], dtype=np.float32)


@pytest.fixture
def index() -> Iterator[QdrantClient]:
    """An index of documents."""
    client = QdrantClient(":memory:")
    client.create_collection("docs", models.VectorParams(size=3, distance=models.Distance.COSINE))
    texts = ["heat pumps", "cold heat", "cold pumps", "heat", "pumps", "cold"]
    client.upsert(
        "docs",
        [
            models.PointStruct(id=i, vector=Embedder().encode(text).tolist(), payload={"text": text})
            for i, text in enumerate(texts)
        ],
    )
    yield client
    client.close()


def test_the_vector_store_example(index: QdrantClient) -> None:
    """Fingerprint, ids, scores, latency and metadata of a retrieval, as the specification lists them."""
    embed_model, query = Embedder(), "how do heat pumps work"
    ns_index = ns.Dataset.wrap_vector_store(index)

    with ns.Scope("rag_retrieval") as scope:
        query_embedding = embed_model.encode(query)
        results = ns_index.query_points("docs", query=query_embedding, limit=5)

    retrieval_span = scope.artifact.retrieval_spans[0]
    assert f"Top score: {retrieval_span.top_score:.2f}" == "Top score: 1.00"
    assert retrieval_span.latency_ms > 0
    assert retrieval_span.ids == [str(point.id) for point in results.points]
    assert retrieval_span.scores == [point.score for point in results.points]
    assert retrieval_span.k == 5
    assert retrieval_span.collection == "docs"
    assert retrieval_span.metadata_keys == ["text"]
    facts = query_facts(query_embedding)
    assert facts is not None
    assert retrieval_span.query_fingerprint == facts.fingerprint


@pytest.mark.integration
def test_the_vector_store_example_on_pinecone() -> None:
    """As printed, but for what the client itself wants: an address and a key, and a vector that is a list."""
    query = "how do heat pumps work"
    with FakePinecone() as server:
        server.upsert(
            "",
            [{"id": f"d{i}", "values": [1.0, 0.1 * i, 0.0], "metadata": {"text": "heat"}} for i in range(7)],
        )
        index: Any = pinecone.Index(host=server.base_url, api_key="test", ssl_verify=False)
        ns_index = ns.Dataset.wrap_vector_store(index)

        with ns.Scope("rag_retrieval") as scope:
            query_embedding = Embedder().encode(query).tolist()
            results = ns_index.query(vector=query_embedding, top_k=5)
        index.close()

    retrieval_span = scope.artifact.retrieval_spans[0]
    assert f"{retrieval_span.top_score:.4f}" == f"{results.matches[0].score:.4f}"
    assert retrieval_span.latency_ms > 0
    assert retrieval_span.ids == [match.id for match in results.matches]
    assert len(retrieval_span.scores) == 5
    assert retrieval_span.query_fingerprint


def test_retrieved_metadata_is_captured_where_content_is(index: QdrantClient, tmp_path: Path) -> None:
    """Keys always; values are the documents' words, so they are content; live and read from a file."""
    for capture, known in (("no_content", False), ("span_only", True)):
        with ns.Platform(capture_content=capture):
            ns.Dataset.wrap_vector_store(index)
            with ns.Scope("rag_retrieval") as scope:
                found = index.query_points("docs", query=[1.0, 1.0, 0.0], limit=3)
        for artifact in (scope.save(tmp_path / "run.nsz"), ns.load(tmp_path / "run.nsz")):
            (search,) = artifact.retrieval_spans
            assert search.metadata_keys == ["text"]
            told = [document["metadata"] for document in search.documents]
            assert told == ([point.payload for point in found.points] if known else [])


def test_only_the_wrapped_index_is_observed(index: QdrantClient) -> None:
    """Another client of the same library stays as it was."""
    other = QdrantClient(":memory:")
    ns.Dataset.wrap_vector_store(index)
    with ns.Scope("rag_retrieval") as scope:
        other.get_collections()
        other.create_collection("docs", models.VectorParams(size=3, distance=models.Distance.COSINE))
        other.query_points("docs", query=[1.0, 0.0, 0.0])
    assert scope.artifact.retrieval_spans == []
