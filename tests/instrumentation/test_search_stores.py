"""Elasticsearch and OpenSearch, observed: which requests are about vectors, and one span for each.

What all stores have in common is in tests/contract/test_store_contract.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.signals import names
from neuronscope_instrumentation.common.search_api import asked_of, searches_of, vector_fields
from neuronscope_instrumentation.common.search_calls import operation_of
from observing import canary_free, observe
from search_server import SearchServer
from store_search import ELASTIC, OPEN, documents, forget_provider, knn, operations

elasticsearch: Any = importlib.import_module("elasticsearch")
elastic_helpers: Any = importlib.import_module("elasticsearch.helpers")
opensearch: Any = importlib.import_module("opensearchpy")  # its own types are incomplete
open_helpers: Any = importlib.import_module("opensearchpy.helpers")
QUERY = [1.0, 0.125, 0.25, 0.5]


@pytest.fixture
def elastic() -> Iterator[Any]:
    """A client of an Elasticsearch with the documents."""
    forget_provider()
    with SearchServer(ELASTIC) as server:
        client = elasticsearch.Elasticsearch(server.base_url)
        client.bulk(index="docs", operations=operations())
        yield client
        client.close()


@pytest.fixture
def open_client() -> Iterator[Any]:
    """A client of an OpenSearch with the documents."""
    with SearchServer(OPEN) as server:
        client = opensearch.OpenSearch(server.base_url)
        client.bulk(index="docs", body=operations())
        yield client
        client.close()


# --- bodies -------------------------------------------------------------------------------------------------
INNER = {"field": "v", "query_vector": QUERY, "k": 5}
BODIES: dict[str, tuple[dict[str, Any], int, str | None, bool]] = {
    "top": ({"knn": INNER}, 1, None, False),
    "several": ({"knn": [INNER, {**INNER, "field": "w"}]}, 2, None, False),
    "filtered": ({"knn": {**INNER, "filter": {"term": {"a": 1}}}}, 1, None, True),
    "query": ({"query": {"knn": INNER}}, 1, None, False),
    "bool": (
        {"query": {"bool": {"must": [{"knn": {"v": {"vector": QUERY, "k": 5}}}], "filter": []}}},
        1,
        None,
        True,
    ),
    "nested": ({"query": {"nested": {"path": "p", "query": {"knn": INNER}}}}, 1, None, False),
    "mixed": ({"knn": INNER, "query": {"match": {"t": "x"}}}, 1, "hybrid", False),
    "retriever": (
        {"retriever": {"rrf": {"retrievers": [{"standard": {"query": {}}}, {"knn": INNER}]}}},
        1,
        "rrf",
        False,
    ),
    "rank": ({"knn": INNER, "query": {"match": {}}, "rank": {"rrf": {}}}, 1, "rrf", False),
    "hybrid": (
        {"query": {"hybrid": {"queries": [{"match": {}}, {"knn": {"v": {"vector": QUERY, "k": 5}}}]}}},
        1,
        "hybrid",
        False,
    ),
    "script": (
        {
            "query": {
                "script_score": {
                    "query": {"match_all": {}},
                    "script": {"source": "x", "params": {"q": QUERY}},
                }
            }
        },
        1,
        None,
        False,
    ),
}


@pytest.mark.parametrize(("body", "count", "fusion", "filtered"), BODIES.values(), ids=BODIES.keys())
def test_vectors_are_found_wherever_they_are(
    body: dict[str, Any], count: int, fusion: str | None, filtered: bool
) -> None:
    """In either's language, at any depth."""
    asked = asked_of(body)
    assert asked is not None
    assert len(asked.clauses) == count
    assert asked.clauses[0].vector == QUERY
    assert (asked.fusion, asked.filtered) == (fusion, filtered)


@pytest.mark.parametrize(
    "body",
    [
        None,
        "text",
        {},
        {"query": {"match": {"title": "knn"}}},
        {"query": {"bool": {"must": [{"range": {"a": {"gte": 1.0}}}]}}},
        {"aggs": {"x": {"avg": {"field": "v"}}}},
    ],
    ids=str,
)
def test_other_bodies_have_none(body: Any) -> None:
    """A search by words or numbers is not ours."""
    assert asked_of(body) is None


def test_what_is_kept_of_a_body_cannot_change() -> None:
    """A body may be used again with another vector."""
    body: dict[str, Any] = {"knn": {**INNER, "query_vector": list(QUERY)}}
    asked = asked_of(body)
    body["knn"]["query_vector"][:] = [0.0]
    assert asked is not None
    assert asked.clauses[0].vector == QUERY


def test_a_body_that_holds_itself_is_left() -> None:
    """Nothing is looked through for ever."""
    body: dict[str, Any] = {}
    body["query"] = {"bool": {"must": [body]}}
    assert asked_of(body) is None


def test_several_searches_are_found_in_each_form() -> None:
    """As a list, and as lines of text."""
    lines = searches_of([{}, {"knn": INNER}, {}, {"query": {}}])
    assert lines is not None
    assert [each is not None for each in lines] == [True, False]
    text = searches_of('{}\n{"knn": {"field": "v", "query_vector": [1.0, 2.0], "k": 1}}\n')
    assert text is not None
    assert text[0] is not None
    assert searches_of('{}\n{"query": {}}\n') is None
    assert searches_of([{}, {"query": {}}]) is None


def test_a_mapping_tells_similarities() -> None:
    """Elasticsearch's default is cosine; OpenSearch's scores are known for one space only."""
    mapping = {
        "mappings": {
            "properties": {
                "a": {"type": "dense_vector"},
                "b": {"type": "dense_vector", "similarity": "l2_norm"},
                "c": {"type": "knn_vector", "method": {"space_type": "cosinesimil"}},
                "d": {"type": "knn_vector"},
                "e": {"type": "text"},
            }
        }
    }
    assert vector_fields(mapping) == {
        "a": "cosine_certainty",
        "b": "euclid_share",
        "c": None,
        "d": "euclid_share",
    }
    assert vector_fields(None) == {}


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("POST", "/docs/_search", ("search", "docs")),
        ("POST", "/_search?size=3", ("search", None)),
        ("POST", "/a,b/_msearch", ("msearch", "a,b")),
        ("PUT", "/docs/_bulk", ("bulk", "docs")),
        ("PUT", "/docs/_doc/1", ("index", "docs")),
        ("DELETE", "/docs/_doc/1", ("delete", "docs")),
        ("POST", "/docs/_delete_by_query", ("delete_by_query", "docs")),
        ("PUT", "/docs", ("indices.create", "docs")),
        ("GET", "/docs", ("", "docs")),
        ("GET", "/", ("", None)),
    ],
)
def test_an_address_tells_the_operation(method: str, path: str, operation: tuple[str, str | None]) -> None:
    """By Elasticsearch's words."""
    assert operation_of(method, path) == operation


# --- clients ------------------------------------------------------------------------------------------------
def test_the_client_s_own_span_is_left_out(elastic: Any) -> None:
    """It traces itself where there is a provider: one call, one span; and none for what is not ours."""

    def use() -> Any:
        elastic.search(index="docs", **knn(ELASTIC, QUERY))
        elastic.search(index="docs", query={"match_all": {}})
        elastic.info()

    ns.Platform()
    ns.instrument("elasticsearch")
    with ns.Scope("test") as scope:
        use()
    assert [span.name for span in scope.artifact.telemetry.spans] == ["test", "retrieval docs"]
    (search,) = scope.artifact.retrieval_spans
    facts = query_facts(QUERY)
    assert facts is not None
    assert search.query_fingerprint == facts.fingerprint
    assert search.span.attributes[names.SERVER_ADDRESS] == "127.0.0.1"
    assert canary_free([search.span], "0.125", "zebra-canary")
    assert ENGINE.metrics.total(names.DB_DURATION) == 1


@pytest.mark.parametrize("product", [ELASTIC, OPEN])
def test_an_index_that_was_made_here_tells_its_scores(product: str, elastic: Any, open_client: Any) -> None:
    """Its mapping names the similarity: nobody asks the server."""

    def use() -> None:
        if product == ELASTIC:
            mappings = {"properties": {"vector": {"type": "dense_vector", "similarity": "cosine"}}}
            elastic.indices.create(index="made", mappings=mappings)
            elastic.index(index="made", id="1", document=documents()[0])
            elastic.search(index="made", **knn(ELASTIC, QUERY))
        else:
            body = {"mappings": {"properties": {"vector": {"type": "knn_vector", "dimension": 4}}}}
            open_client.indices.create(index="made", body=body)
            open_client.index(index="made", id="1", body=documents()[0])
            open_client.search(index="made", body=knn(OPEN, QUERY))

    _, (created, written, search) = observe(product, use)
    assert created.name == "indices.create made"
    assert written.attributes[names.WRITE_COUNT] == 1
    assert search.attributes[names.RETRIEVAL_METRIC] == (
        "cosine_certainty" if product == ELASTIC else "euclid_share"
    )


def test_helpers_write_through_the_same_door(elastic: Any, open_client: Any) -> None:
    """A generator of documents is the helper's to read; each of its requests is one span."""
    for product, client, helpers in ((ELASTIC, elastic, elastic_helpers), (OPEN, open_client, open_helpers)):
        read: list[int] = []

        def actions(read: list[int] = read) -> Iterator[dict[str, Any]]:
            for number, document in enumerate(documents()):
                read.append(number)
                yield {"_index": "docs", "_id": str(number), "_source": document}

        def use(client: Any = client, helpers: Any = helpers) -> Any:
            return helpers.bulk(client, actions(), chunk_size=5)

        done, spans = observe(product, use)
        assert done == (8, [])
        assert read == list(range(8))
        assert [span.attributes[names.WRITE_COUNT] for span in spans] == [5, 3]


def test_a_failed_search_of_several_fails_alone(elastic: Any) -> None:
    """Its place in the answer has no hits; the others have theirs."""
    searches = [{"index": "docs"}, knn(ELASTIC, QUERY), {"index": "nowhere"}, knn(ELASTIC, QUERY)]
    _, (span,) = observe("elasticsearch", lambda: elastic.msearch(index="docs", searches=searches))
    assert [event.attributes[names.RETRIEVAL_RETURNED] for event in span.events] == [3, 0]


def test_a_client_with_options_stands_for_its_client(elastic: Any) -> None:
    """`options` makes another client on the same connections."""
    ns.Platform()
    ns.Dataset.wrap_vector_store(elastic)
    with ns.Scope("test") as scope:
        elastic.options(request_timeout=5).search(index="docs", **knn(ELASTIC, QUERY))
    assert len(scope.artifact.retrieval_spans) == 1
