"""Weaviate's clients with a server on sockets: what only they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import weaviate
from weaviate.classes.query import HybridFusion, HybridVector, MetadataQuery, Rerank

import neuronscope as ns
import store_weaviate
from client_cases import CANARY, agent
from neuronscope.signals import names
from neuronscope.signals.views import retrieval_spans
from neuronscope_instrumentation.weaviate import collections
from store_cases import QUERY
from store_weaviate import NAME, fill, identity
from weaviate_server import WeaviateServer

pytestmark = pytest.mark.integration
DISTANCE = MetadataQuery(distance=True)


@pytest.fixture
def server() -> Iterator[WeaviateServer]:
    """The documents; what their distance was is forgotten."""
    collections.forget_metrics()
    with store_weaviate.served() as made:
        yield made


@pytest.fixture
def client(server: WeaviateServer) -> Iterator[Any]:
    """A connected client."""
    with weaviate.connect_to_local(**store_weaviate.place(server)) as connected:
        yield connected


def test_a_collections_configuration_tells_its_distance(client: Any) -> None:
    """Until it has passed by, growing scores are read as distances of some kind."""
    documents = client.collections.use(NAME)
    with agent("on", "weaviate") as exporter:
        documents.query.near_vector(near_vector=list(QUERY), limit=3, return_metadata=DISTANCE)
        documents.config.get()
        documents.query.near_vector(near_vector=list(QUERY), limit=3, return_metadata=DISTANCE)
    guessed, known = retrieval_spans(exporter.spans)
    assert (guessed.metric, known.metric) == (None, "cosine_distance")
    assert guessed.top_score == known.top_score == min(known.scores)
    assert known.normalised_scores[0] == pytest.approx(1 - known.scores[0])
    assert exporter.spans[1].name == f"config.get {NAME}"


def test_a_tenant_is_a_namespace(client: Any, server: WeaviateServer) -> None:
    """Searches and writes of a multi-tenant collection."""
    fill(server, tenant="acme")
    with agent("on", "weaviate") as exporter:
        documents = client.collections.use(NAME).with_tenant("acme")
        documents.query.near_vector(near_vector=list(QUERY), limit=3)
        documents.data.insert({"title": "x"}, uuid=identity(50))
    assert [span.attributes[names.DB_NAMESPACE] for span in exporter.spans] == ["acme", "acme"]


@pytest.mark.parametrize("mode", ["on", "content"])
def test_a_hybrid_search_has_its_stages(client: Any, mode: Any) -> None:
    """The halves, how they are fused, and the reranking after; the text is content."""
    documents = client.collections.use(NAME)
    with agent(mode, "weaviate") as exporter:
        documents.query.hybrid(
            query=f"title {CANARY}",
            vector=HybridVector.near_vector(vector=list(QUERY)),
            fusion_type=HybridFusion.RANKED,
            rerank=Rerank(prop="title", query="title"),
            limit=2,
            return_metadata=MetadataQuery(score=True),
        )
    (search,) = retrieval_spans(exporter.spans)
    assert [(stage.kind, stage.name, stage.k) for stage in search.stages] == [
        ("dense", None, None),
        ("bm25", None, None),
        ("fusion", "ranked", 2),
        ("rerank", "title", 2),
    ]
    assert search.query_dimension == 4
    assert search.metric == "hybrid"
    assert (CANARY in repr(exporter.spans)) == (mode == "content")


def test_named_vectors_are_read_if_there_is_one(client: Any) -> None:
    """Which of several ranks the hits is the server's to say."""
    documents = client.collections.use(NAME)
    with agent("on", "weaviate") as exporter:
        documents.query.near_vector(near_vector={"title": list(QUERY)}, target_vector="title", limit=1)
    (search,) = retrieval_spans(exporter.spans)
    assert search.query_dimension == 4


def test_a_batch_is_a_span_a_request(client: Any, server: WeaviateServer) -> None:
    """Sent by the library's threads, with how many objects went to which collection."""
    with agent("on", "weaviate") as exporter:
        with client.batch.fixed_size(batch_size=5, concurrent_requests=1) as batch:
            for number in range(60, 67):
                batch.add_object(collection=NAME, properties={"parity": 0}, uuid=identity(number))
        assert not client.batch.failed_objects
    assert len(server.store.of(NAME, "")) == 15
    # The library looks up once how collections are vectorised.
    told = [span.attributes for span in exporter.spans if span.name != "list_all"]
    assert {each[names.DB_OPERATION] for each in told} == {"batch"}
    assert {each[names.DB_COLLECTION] for each in told} == {NAME}
    assert sum(int(str(each[names.WRITE_COUNT])) for each in told) == 7


def test_collections_are_made_and_dropped_in_one_span_each(client: Any) -> None:
    """Named by the method and the collection."""
    with agent("on", "weaviate") as exporter:
        client.collections.exists("Made")
        client.collections.create("Made")
        client.collections.delete("Made")
        client.collections.list_all()
    assert [span.name for span in exporter.spans] == ["exists Made", "create Made", "delete Made", "list_all"]


def test_a_wrapped_client_brings_its_collections_along(client: Any, server: WeaviateServer) -> None:
    """Those that it hands out from now on, and what acts for them; another client stays alone."""
    with weaviate.connect_to_local(**store_weaviate.place(server)) as alone, ns.Scope("one") as scope:
        ns.Dataset.wrap_vector_store(client)
        documents = client.collections.get(NAME)
        documents.query.near_vector(near_vector=list(QUERY), limit=1)
        documents.aggregate.over_all()
        alone.collections.use(NAME).query.near_vector(near_vector=list(QUERY), limit=1)
    assert [span.name for span in scope.artifact.telemetry.spans[1:]] == [
        f"retrieval {NAME}",
        f"aggregate.over_all {NAME}",
    ]
