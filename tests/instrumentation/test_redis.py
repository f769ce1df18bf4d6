"""Redis and Valkey, observed: what a query string says, what an index tells, what passes untouched.

What all stores have in common is in tests/contract/test_store_contract.py.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import neuronscope as ns
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.signals import names
from neuronscope_instrumentation.redis.commands import Knn, VectorField, knn, numbers, options, vector_fields
from neuronscope_instrumentation.redis.results import hits
from observing import canary_free, observe, observe_async
from redis_server import serve
from store_redis import NEAREST, commands, packed, parameters

redis: Any = importlib.import_module("redis")  # its own types are incomplete
Query: Any = importlib.import_module("redis.commands.search.query").Query
valkey: Any = importlib.import_module("valkey")
valkey_asyncio: Any = importlib.import_module("valkey.asyncio")
valkey_query: Any = importlib.import_module("valkey.commands.search.query")
QUERY = [1.0, 0.125, 0.25, 0.5]


@pytest.fixture
def port() -> Iterator[int]:
    """A server with the documents."""
    with serve() as found:
        with redis.Redis(port=found) as client:
            for command in commands():
                client.execute_command(*command)
        yield found


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("*=>[KNN 3 @vec $v AS d]", Knn("3", "vec", "v", "d", False)),
        ("*=>[KNN $k @vec $v]", Knn("$k", "vec", "v", "__vec_score", False)),
        ("(@a:{x} @b:[1 2])=>[knn 3 @vec $v EF_RUNTIME $ef as d]", Knn("3", "vec", "v", "d", True)),
        (
            "*=>[KNN 3 @vec $v]=>{$YIELD_DISTANCE_AS: dist; $HYBRID_POLICY: ADHOC_BF}",
            Knn("3", "vec", "v", "dist", False),
        ),
        ("@vec:[VECTOR_RANGE 0.5 $v]=>{$YIELD_DISTANCE_AS: dist}", Knn(None, "vec", "v", "dist", True)),
        ("hello world", None),
        ("@price:[10 $max]", None),
    ],
)
def test_a_query_string_tells_its_vector_search(query: str, said: Knn | None) -> None:
    """How many, by which field and parameter, where the distance goes, whether anything is filtered."""
    assert knn(query) == said


def test_options_are_read_past_vectors() -> None:
    """A vector's bytes may say anything: only counted pairs are parameters."""
    words = ["PARAMS", "4", "q", b"LIMIT", b"k", 5, "SORTBY", "d", "limit", 0, 7, "DIALECT", 2]
    assert options(words) == ({"q": b"LIMIT", "k": 5}, 7)


def test_an_index_tells_how_it_holds_vectors() -> None:
    """The words of FT.CREATE; fields of that name are no vectors."""
    made = "FT.CREATE i ON JSON SCHEMA $.v AS v VECTOR HNSW 6 TYPE FLOAT64 DIM 2 DISTANCE_METRIC IP"
    words = [*made.split(), "vector", "TEXT", "x", "TAG"]
    assert vector_fields(words) == {"v": VectorField("IP", "FLOAT64")}


def test_bytes_are_numbers_if_that_is_plausible() -> None:
    """Told types are believed; else the first that gives plausible numbers."""
    vector = np.random.default_rng(3).standard_normal(64)
    vector /= np.linalg.norm(vector)
    for kind in (np.float32, np.float64):
        found = numbers(vector.astype(kind).tobytes(), None)
        assert found is not None
        assert found.dtype == kind
        assert np.allclose(found, vector, atol=1e-6)
    assert numbers(vector.astype(np.float16).tobytes(), "FLOAT16") is not None
    assert numbers(b"odd", None) is None
    assert numbers(b"12345678", "BFLOAT16") is None
    assert numbers("no bytes", None) is None


def test_replies_of_both_protocols_are_read() -> None:
    """A flat list with and without fields, and a map; an error is no result."""
    flat = [2, b"a", [b"d", b"0.5", b"t", b"x"], b"b", [b"d", b"0.75"]]
    mapped = {
        b"total_results": 1,
        b"results": [{b"id": b"a", b"extra_attributes": {b"d": b"0.5", b"t": b"x"}}],
    }
    first = hits(flat, "d", True)
    assert first is not None
    assert [(hit.id, hit.score, hit.metadata) for hit in first] == [("a", 0.5, {"t": "x"}), ("b", 0.75, {})]
    assert hits(mapped, "d", True) == first[:1]
    without = hits([2, b"a", b"b"], "d", False)
    assert without is not None
    assert [hit.id for hit in without] == ["a", "b"]
    assert hits(redis.ResponseError("no"), "d", False) is None


def test_ordinary_commands_are_not_observed(port: int) -> None:
    """Neither reads nor writes nor a pipeline of them."""

    def use() -> Any:
        with redis.Redis(port=port) as client:
            client.hset("9", mapping={"vector": packed(QUERY)})
            pipe = client.pipeline(transaction=False)
            pipe.get("x")
            return client.get("x"), pipe.execute()

    expected = use()
    observed, spans = observe("redis", use)
    assert observed == expected
    assert spans == []


def test_a_search_tells_host_database_and_vector(port: int) -> None:
    """As it travels: bytes with no type."""
    with redis.Redis(port=port, db=0) as client:
        _, (span,) = observe(
            "redis", lambda: client.ft("documents").search(Query("*" + NEAREST).dialect(2), parameters())
        )
    facts = query_facts(np.array(QUERY, np.float32))
    assert facts is not None
    assert span.name == "retrieval documents"
    assert span.attributes[names.SERVER_PORT] == port
    assert span.attributes[names.DB_NAMESPACE] == "0"
    assert span.attributes[names.QUERY_FINGERPRINT] == facts.fingerprint
    assert span.attributes[names.RETRIEVAL_METADATA_KEYS] == ["parity", "text", "title"]
    assert canary_free([span], "0.125", "zebra-canary")


def test_an_index_that_was_made_here_is_known() -> None:
    """Its metric and its vectors' type: nobody asks the server."""

    def use() -> None:
        with serve() as port, redis.Redis(port=port) as client:
            for command in commands():
                client.execute_command(*command)
            client.ft("documents").search(Query("*" + NEAREST).dialect(2), parameters())

    _, (created, span) = observe("redis", use)
    assert created.name == "FT.CREATE documents"
    assert span.attributes[names.RETRIEVAL_METRIC] == "cosine_distance"


def test_an_index_object_of_before_is_observed(port: int) -> None:
    """`client.ft()` binds its client's method when it is made; the search is seen all the same."""
    with redis.Redis(port=port) as client:
        index = client.ft("documents")
        _, spans = observe("redis", lambda: index.search(Query("*" + NEAREST).dialect(2), parameters()))
    assert len(spans) == 1


def test_a_failing_search_in_a_pipeline_fails_alone(port: int) -> None:
    """With `raise_on_error=False` its place in the results is an exception: no hit, no other's fault."""

    def use() -> Any:
        with redis.Redis(port=port) as client:
            pipe = client.pipeline(transaction=False)
            for index in ("documents", "nowhere"):
                pipe.execute_command("FT.SEARCH", index, "*" + NEAREST, "PARAMS", 2, "query", packed(QUERY))
            return [type(each).__name__ for each in pipe.execute(raise_on_error=False)]

    expected = use()
    observed, (span,) = observe("redis", use)
    assert observed == expected
    assert [event.attributes[names.RETRIEVAL_RETURNED] for event in span.events] == [3, 0]


def test_valkey_is_observed(port: int) -> None:
    """Its client is redis-py's twin; the system's name is its own."""

    def use() -> Any:
        client = valkey.Valkey(port=port, decode_responses=False)
        found = client.ft("documents").search(valkey_query.Query("*" + NEAREST).dialect(2), parameters())
        reply = client.execute_command(
            "FT.SEARCH", "documents", "*" + NEAREST, "PARAMS", 2, "query", packed(QUERY)
        )
        client.close()
        return [document.id for document in found.docs], reply

    expected = use()
    observed, spans = observe("redis", use)
    assert observed == expected
    for span in spans:
        assert span.attributes[names.DB_SYSTEM] == "valkey"
        assert span.attributes[names.RETRIEVAL_IDS] == observed[0]
    assert len(spans) == 2


def test_asynchronous_valkey_is_observed(port: int) -> None:
    """The same in a loop."""

    async def use() -> Any:
        client = valkey_asyncio.Valkey(port=port)
        found = await client.ft("documents").search(
            valkey_query.Query("*" + NEAREST).dialect(2), parameters()
        )
        await client.aclose()
        return [document.id for document in found.docs]

    expected = asyncio.run(use())
    observed, (span,) = observe_async("redis", use)
    assert observed == expected == span.attributes[names.RETRIEVAL_IDS]


def test_only_the_wrapped_clients_indexes_are_observed(port: int) -> None:
    """An index object or a pipeline stands for its client."""
    with redis.Redis(port=port) as ours, redis.Redis(port=port) as other:
        ns.Platform()
        ns.Dataset.wrap_vector_store(ours)
        with ns.Scope("test") as scope:
            for client in (ours, other):
                client.ft("documents").search(Query("*" + NEAREST).dialect(2), parameters())
                pipe = client.pipeline(transaction=False)
                pipe.execute_command(
                    "FT.SEARCH", "documents", "*" + NEAREST, "PARAMS", 2, "query", packed(QUERY)
                )
                pipe.execute()
    assert len(scope.artifact.retrieval_spans) == 2
