"""Milvus, observed at `milvus-lite`: metrics that are learned, iterators, the ORM, and what stays untouched.

What all stores have in common is in tests/contract/test_store_contract.py.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import neuronscope as ns
from collectors import free_port, listens, until
from milvus import CONNECTED_S, store
from neuronscope.engine import ENGINE
from neuronscope.instrumentation import Peer
from neuronscope.signals import names
from neuronscope_instrumentation.milvus.clients import index_metrics, known_client
from neuronscope_instrumentation.milvus.results import found, read_hits, written
from observing import canary_free, observe, outcome

pytestmark = pytest.mark.integration

pymilvus: Any = importlib.import_module("pymilvus")  # it brings no types
SECRET = "canary-5e1b"
QUERY = [1.0, 0.0625]
DOCUMENTS = [
    {"key": f"k{i}", "a": [1.0, i / 4], "b": [i / 4, 1.0], "title": f"{SECRET} {i}"} for i in range(6)
]


@pytest.fixture
def client() -> Iterator[Any]:
    """A store with one collection of two vectors, made before anything is observed."""
    with store() as path:
        found = pymilvus.MilvusClient(path, timeout=CONNECTED_S)
        make(found)
        yield found
        found.drop_collection("two")
        found.close()


def make(client: Any) -> None:
    """The collection: `a` has squared Euclidean distances, `b` inner products."""
    client.drop_collection("two")
    schema = client.create_schema(enable_dynamic_field=True)
    schema.add_field("key", pymilvus.DataType.VARCHAR, is_primary=True, max_length=10)
    schema.add_field("a", pymilvus.DataType.FLOAT_VECTOR, dim=2)
    schema.add_field("b", pymilvus.DataType.FLOAT_VECTOR, dim=2)
    client.create_collection("two", schema=schema, index_params=indexes(client))
    client.insert("two", DOCUMENTS)


def indexes(client: Any) -> Any:
    """Parameters of both indexes."""
    params = client.prepare_index_params()
    params.add_index("a", metric_type="L2", index_type="FLAT")
    params.add_index("b", metric_type="IP", index_type="FLAT")
    return params


def search(client: Any, field: str, **more: Any) -> Any:
    """The three nearest by one of the vectors."""
    return client.search("two", data=[QUERY], anns_field=field, limit=3, **more)


def test_metrics_are_learned_from_what_the_service_does(client: Any) -> None:
    """Nobody asks the server: who creates an index, or looks at it, has told its metric."""

    def use() -> None:
        search(client, "b")
        client.describe_index("two", "b")
        search(client, "b")
        client.drop_collection("two")
        make(client)
        search(client, "a")
        search(client, "a", search_params={"metric_type": "L2"})

    _, spans = observe("milvus", use)
    metrics = [s.attributes.get(names.RETRIEVAL_METRIC) for s in spans if s.name == "retrieval two"]
    assert metrics == [None, "dot", "euclid_squared", "euclid_squared"]


def test_growing_scores_are_distances(client: Any) -> None:
    """A metric that nobody told: of floats there is one whose scores grow, and its best is the smallest."""
    result, (span,) = observe("milvus", lambda: search(client, "a"))
    distances = [hit["distance"] for hit in result[0]]
    assert distances == sorted(distances)
    assert span.attributes[names.RETRIEVAL_METRIC] == "euclid_squared"
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == distances[0]


def test_results_are_unpacked_by_the_service_alone(client: Any) -> None:
    """Fields that Milvus unpacks when looked at: read past that, with and without content."""
    for content in (False, True):
        result = search(client, "a", output_fields=["title"])
        response = read_hits(found(result) or (), content)
        assert list.__getitem__(result, 0).has_materialized is False
        assert response.hits is not None
        hit = response.hits[0][0]
        assert hit.id == "k0"
        assert hit.metadata == {"title": f"{SECRET} 0" if content else None}


def test_a_result_is_left_packed(client: Any) -> None:
    """After observation the service's object is as packed as it came."""
    result, (span,) = observe("milvus", lambda: search(client, "a", output_fields=["title"]))
    assert list.__getitem__(result, 0).has_materialized is False
    assert span.attributes[names.RETRIEVAL_METADATA_KEYS] == ["title"]
    assert canary_free([span], SECRET, "0.0625")
    assert result[0][0]["entity"] == {"title": f"{SECRET} 0"}


def test_an_iterator_is_a_search_for_each_page(client: Any) -> None:
    """Made when the service asks; its end is no empty search."""

    def use() -> list[Any]:
        pages = client.search_iterator("two", data=[QUERY], anns_field="a", batch_size=4, limit=6)
        found: list[Any] = []
        while page := pages.next():
            found.append(page.ids())
        pages.close()
        return found

    expected = use()
    observed, spans = observe("milvus", use)
    assert observed == expected
    searches = [span for span in spans if names.RETRIEVAL_RETURNED in span.attributes]
    assert [span.attributes[names.RETRIEVAL_IDS] for span in searches] == observed
    assert {span.attributes[names.DB_OPERATION] for span in spans} == {"search_iterator"}
    assert all(span.attributes[names.RETRIEVAL_METRIC] == "euclid_squared" for span in searches)
    assert ENGINE.metrics.total(names.RETRIEVALS_EMPTY) == 0


def test_an_iterator_of_rows_is_a_listing(client: Any) -> None:
    """Page by page."""

    def use() -> int:
        pages = client.query_iterator("two", filter="key != ''", batch_size=4, output_fields=["key"])
        count = 0
        while page := pages.next():
            count += len(page)
        return count

    count, spans = observe("milvus", use)
    assert count == 6
    assert sum(int(str(span.attributes.get(names.DB_RETURNED_ROWS, 0))) for span in spans) == 6
    assert {span.name for span in spans} == {"query_iterator two"}


def test_a_hybrid_search_has_stages(client: Any) -> None:
    """Each half, and the fusion that ranks."""
    halves = [
        pymilvus.AnnSearchRequest([QUERY], "a", {"metric_type": "L2"}, 4, expr="key != 'k0'"),
        pymilvus.AnnSearchRequest([QUERY], "b", {"metric_type": "IP"}, 5),
    ]
    _, (span,) = observe(
        "milvus", lambda: client.hybrid_search("two", halves, pymilvus.WeightedRanker(0.5, 0.5), limit=2)
    )
    assert span.attributes[names.RETRIEVAL_STAGES] == ["dense:a", "dense:b", "weighted"]
    assert span.attributes[names.RETRIEVAL_STAGES_K] == [4, 5, 2]
    assert span.attributes[names.RETRIEVAL_METRIC] == "hybrid"
    assert span.attributes[names.RETRIEVAL_FILTERED] is True
    assert span.attributes[names.QUERY_COUNT] == 1


def test_the_orm_is_observed(client: Any) -> None:
    """`Collection` and `Partition`; a future is the service's to wait for."""
    with warnings.catch_warnings():  # the ORM is to go with PyMilvus 3.1
        warnings.simplefilter("ignore")
        address = known_client(client).peer
        pymilvus.connections.connect("orm", host=address.address, port=address.port)
        collection = pymilvus.Collection("two", using="orm")
        params = {"metric_type": "L2"}

        def use() -> Any:
            found = collection.search([QUERY], "a", params, 3, expr="key != 'k1'", output_fields=["title"])
            future = collection.search([QUERY], "a", params, 3, _async=True)
            later = future.result()  # before rows are written, which it might find
            row = {"key": "new", "a": QUERY, "b": QUERY, "title": SECRET}
            inserted = collection.insert([row]).insert_count
            rows = collection.query("key == 'new'")
            deleted = collection.delete("key == 'new'").delete_count
            return [hit.id for hit in found[0]], later[0].ids, inserted, len(rows), deleted

        expected = use()
        observed, spans = observe("milvus", use)
        pymilvus.connections.disconnect("orm")
    assert observed == expected
    first, later, inserted, listed, deleted = spans
    assert first.attributes[names.RETRIEVAL_IDS] == ["k0", "k2", "k3"]
    assert first.attributes[names.DB_COLLECTION] == "two"
    assert first.attributes[names.RETRIEVAL_FILTERED] is True
    assert names.RETRIEVAL_RETURNED not in later.attributes
    assert inserted.attributes[names.WRITE_COUNT] == 1
    assert listed.attributes[names.DB_RETURNED_ROWS] == 1
    assert deleted.attributes[names.WRITE_COUNT] == 1
    assert canary_free(spans, SECRET)


def test_texts_are_content(client: Any) -> None:
    """A store that embeds texts is asked with them; told only with content."""

    def search_by_text() -> Any:
        return client.search("two", data=[SECRET], anns_field="a", limit=1)

    for content in (False, True):
        _, (span,) = observe(
            "milvus",
            partial(outcome, search_by_text),
            capture_content="span_only" if content else "no_content",
        )
        assert (SECRET in repr(span)) == content


def test_a_server_is_observed(tmp_path: Path) -> None:
    """Over a network: its host and port are told."""
    port = free_port()
    program = Path(sys.executable).with_name("milvus-lite")
    with subprocess.Popen(
        [program, "server", "--data-dir", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            until(lambda: listens(port))
            client = pymilvus.MilvusClient(f"http://127.0.0.1:{port}", timeout=CONNECTED_S)
            make(client)
            _, (span,) = observe("milvus", lambda: search(client, "a"))
            assert span.attributes[names.SERVER_PORT] == port
            assert span.attributes[names.RETRIEVAL_IDS] == ["k0", "k1", "k2"]
            client.close()
        finally:
            server.terminate()


def test_only_the_wrapped_clients_iterators_are_observed(client: Any) -> None:
    """An iterator stands for its client."""
    other = pymilvus.MilvusClient(known_address(client), timeout=CONNECTED_S)
    ns.Platform()
    ns.Dataset.wrap_vector_store(client)
    with ns.Scope("test") as scope:
        for each in (client, other):
            pages = each.search_iterator("two", data=[QUERY], anns_field="a", batch_size=2, limit=2)
            pages.next()
    assert len(scope.artifact.retrieval_spans) == 1
    other.close()


def known_address(client: Any) -> str:
    """Where a local file is served."""
    peer = known_client(client).peer
    assert isinstance(peer, Peer)
    return f"http://{peer.address}:{peer.port}"


@pytest.mark.parametrize(
    ("result", "count"),
    [
        ({"insert_count": 3, "ids": [1, 2, 3]}, 3),
        ([1, 2], 2),
        ({"delete_count": 4}, 4),
        ({}, None),
        (None, None),
    ],
)
def test_writes_are_counted_by_what_the_server_says(result: Any, count: int | None) -> None:
    """In each of its forms."""
    assert written(result) == count


def test_index_parameters_have_many_forms() -> None:
    """As a list, as a description, as nothing."""
    assert index_metrics({"field_name": "v", "metric_type": "L2", "dim": 3}) == {"v": "L2"}
    assert index_metrics(None) == {}
