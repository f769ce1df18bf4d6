"""Qdrant's own engine in local mode, observed: what a search, a listing and a write tell, and harm none."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from qdrant_client import AsyncQdrantClient, QdrantClient
from qdrant_client import models as m
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import Endpoint, Operation, Snapshot
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.scores import score_band
from neuronscope.signals.views import retrieval_spans
from neuronscope_instrumentation.common.retrieval import store_error
from neuronscope_instrumentation.qdrant import QDRANT
from neuronscope_instrumentation.qdrant.clients import known_client

SECRET = "canary-7f3a"


def points(n: int = 5) -> list[m.PointStruct]:
    """Points on a line through the origin's neighbourhood, with a secret in the payload."""
    return [
        m.PointStruct(id=i, vector=[float(i), 0.0, 1.0], payload={"title": f"{SECRET}-{i}", "n": i % 2})
        for i in range(1, n + 1)
    ]


@pytest.fixture
def client() -> Iterator[QdrantClient]:
    """A local store with one cosine collection, made before anything is observed."""
    with_points = QdrantClient(":memory:")
    with_points.create_collection("docs", m.VectorParams(size=3, distance=m.Distance.COSINE))
    with_points.upsert("docs", points())
    yield with_points
    with_points.close()


def observe(call: Callable[[], Any], **settings: Any) -> tuple[Any, list[SpanRecord]]:
    """The call's result, and the spans of Qdrant it made."""
    ns.Platform(**settings)
    ns.instrument("qdrant")
    with ns.Scope("test") as scope:
        result = call()
    spans = [span for span in scope.artifact.telemetry.spans if span.library == "neuronscope.qdrant"]
    return result, spans


# --- searches ---------------------------------------------------------------------------------------------
def test_a_search_is_a_retrieval(client: QdrantClient) -> None:
    """Ids, scores, k, collection, metric, keys and the query's fingerprint; never vector or payload."""
    query = [2.0, 0.0, 1.0]
    result, (span,) = observe(lambda: client.query_points("docs", query=query, limit=2))
    attributes = dict(span.attributes)
    facts = query_facts(query)
    assert facts is not None
    assert span.name == "retrieval docs"
    assert span.kind is SpanKind.CLIENT
    assert attributes == {
        names.OPERATION_NAME: "retrieval",
        names.DATA_SOURCE_ID: "docs",
        names.DB_SYSTEM: "qdrant",
        names.DB_OPERATION: "query_points",
        names.DB_COLLECTION: "docs",
        names.RETRIEVAL_TOP_K: 2,
        names.RETRIEVAL_FILTERED: False,
        names.QUERY_COUNT: 1,
        names.QUERY_DIMENSION: 3,
        names.QUERY_NORM: pytest.approx(5**0.5),
        names.QUERY_DTYPE: "float64",
        names.QUERY_FINGERPRINT: facts.fingerprint,
        names.DB_RETURNED_ROWS: 2,
        names.RETRIEVAL_RETURNED: 2,
        names.RETRIEVAL_EMPTY: False,
        names.RETRIEVAL_METRIC: "cosine",
        names.RETRIEVAL_IDS: [str(point.id) for point in result.points],
        names.RETRIEVAL_SCORES: [point.score for point in result.points],
        names.RETRIEVAL_METADATA_KEYS: ["n", "title"],
        names.RETRIEVAL_TOP_SCORE: result.points[0].score,
        names.RETRIEVAL_KTH_SCORE: result.points[1].score,
        names.RETRIEVAL_MARGIN: pytest.approx(1 - result.points[1].score / result.points[0].score),
    }
    assert SECRET not in json.dumps(attributes)


def test_an_array_may_change_after_the_call(client: QdrantClient) -> None:
    """The fingerprint is of the vector that was searched with; arrays and lists are copied."""
    array = np.array([2.0, 0.0, 1.0], dtype=np.float32)
    listed = array.tolist()
    expected = query_facts(array)
    assert expected is not None

    def search_and_overwrite() -> None:
        client.query_points("docs", query=array)
        array[:] = -9
        client.query_points("docs", query=listed)
        listed[:] = [0.0, 9.0, 0.0]

    _, (of_array, of_list) = observe(search_and_overwrite)
    assert of_array.attributes[names.QUERY_FINGERPRINT] == expected.fingerprint
    assert of_array.attributes[names.QUERY_DTYPE] == "float32"
    assert of_list.attributes[names.QUERY_FINGERPRINT] == expected.fingerprint


def test_a_result_may_be_emptied_after_the_call(client: QdrantClient) -> None:
    """A service that sorts or clears its hits does not change what is recorded."""

    def search_and_clear() -> None:
        client.query_points("docs", query=[2.0, 0.0, 1.0], limit=3).points.clear()

    _, (span,) = observe(search_and_clear)
    assert span.attributes[names.RETRIEVAL_RETURNED] == 3


@pytest.mark.parametrize("distance", [m.Distance.EUCLID, m.Distance.MANHATTAN])
def test_a_distance_is_better_when_smaller(client: QdrantClient, distance: m.Distance) -> None:
    """The best hit of a Euclidean search is the one nearest to 0."""
    client.create_collection("far", m.VectorParams(size=3, distance=distance))
    client.upsert("far", points())
    _, (span,) = observe(lambda: client.query_points("far", query=[1.0, 0.0, 1.0], limit=3))
    assert span.attributes[names.RETRIEVAL_METRIC] == distance.value.lower()
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == 0.0
    assert span.attributes[names.RETRIEVAL_KTH_SCORE] == 2.0


def test_a_query_less_query_is_no_search(client: QdrantClient) -> None:
    """Its scores are all 1.0 and measure nothing: they reach neither attributes nor score metrics."""
    result, (span,) = observe(lambda: client.query_points("docs", limit=3))
    assert {point.score for point in result.points} == {1.0}
    assert span.name == "query_points docs"
    assert span.attributes[names.DB_RETURNED_ROWS] == 3
    assert not {names.OPERATION_NAME, names.RETRIEVAL_SCORES, names.RETRIEVAL_TOP_SCORE} & set(
        span.attributes
    )
    assert ENGINE.metrics.total(names.TOP_SCORE) == 0
    assert ENGINE.metrics.total(names.RETRIEVALS) == 0
    assert ENGINE.metrics.total(names.DB_DURATION) == 1


def test_random_samples_are_no_search(client: QdrantClient) -> None:
    """`SampleQuery` too gives every point a score of 1.0."""
    query = m.SampleQuery(sample=m.Sample.RANDOM)
    _, (span,) = observe(lambda: client.query_points("docs", query=query))
    assert names.OPERATION_NAME not in span.attributes


def test_an_empty_result_is_told(client: QdrantClient) -> None:
    """No hit: empty, no scores, and counted."""
    nothing = m.Filter(must=[m.FieldCondition(key="n", match=m.MatchValue(value=99))])
    _, (span,) = observe(lambda: client.query_points("docs", query=[1.0, 0.0, 1.0], query_filter=nothing))
    assert span.attributes[names.RETRIEVAL_EMPTY] is True
    assert span.attributes[names.RETRIEVAL_FILTERED] is True
    assert span.attributes[names.RETRIEVAL_IDS] == []
    assert names.RETRIEVAL_TOP_SCORE not in span.attributes
    assert ENGINE.metrics.total(names.RETRIEVALS_EMPTY) == 1


def test_a_search_by_point_has_no_vector(client: QdrantClient) -> None:
    """The vector of a stored point is the store's; the scores are the collection's."""
    _, (span,) = observe(lambda: client.query_points("docs", query=1, limit=2))
    assert span.attributes[names.OPERATION_NAME] == "retrieval"
    assert span.attributes[names.RETRIEVAL_METRIC] == "cosine"
    assert names.QUERY_FINGERPRINT not in span.attributes


def test_a_batch_is_one_span_and_a_record_a_query(client: QdrantClient) -> None:
    """The span has what the queries share; each query its own k, filter, fingerprint, ids and scores."""
    requests = [
        m.QueryRequest(query=[float(i), 0.0, 1.0], limit=i, filter=m.Filter() if i == 2 else None)
        for i in range(1, 4)
    ]
    result, (span,) = observe(lambda: client.query_batch_points("docs", requests=requests))
    assert span.attributes[names.DB_BATCH_SIZE] == 3
    assert span.attributes[names.QUERY_COUNT] == 3
    assert span.attributes[names.RETRIEVAL_RETURNED] == 6
    assert span.attributes[names.RETRIEVAL_METRIC] == "cosine"
    assert not {names.RETRIEVAL_TOP_K, names.RETRIEVAL_IDS, names.RETRIEVAL_SCORES} & set(span.attributes)
    views = retrieval_spans([span])
    assert [view.k for view in views] == [1, 2, 3]
    assert [view.filtered for view in views] == [False, True, False]
    assert [view.ids for view in views] == [[str(p.id) for p in response.points] for response in result]
    assert [view.scores for view in views] == [[p.score for p in response.points] for response in result]
    facts = [query_facts(request.query) for request in requests]
    assert [view.query_fingerprint for view in views] == [fact.fingerprint for fact in facts if fact]
    assert ENGINE.metrics.total(names.RETRIEVALS) == 3
    assert ENGINE.metrics.total(names.TOP_SCORE) == 3
    assert ENGINE.metrics.total(names.DB_DURATION) == 1


def test_a_huge_batch_keeps_as_many_records_as_opentelemetry_events(client: QdrantClient) -> None:
    """The rest is counted as dropped, and measured nevertheless."""
    requests = [m.QueryRequest(query=[float(i), 0.0, 1.0], limit=1) for i in range(200)]
    _, (span,) = observe(lambda: client.query_batch_points("docs", requests=requests))
    assert len(span.events) == 128
    assert span.dropped_events == 72
    assert span.attributes[names.QUERY_COUNT] == 200
    assert ENGINE.metrics.total(names.TOP_SCORE) == 200


def test_a_batch_in_the_services_own_pipeline_has_its_records_there() -> None:
    """Events on the service's own span, before it ends."""
    provider, theirs = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    trace.set_tracer_provider(provider)
    client = fresh()
    client.upsert("docs", points())
    requests = [m.QueryRequest(query=[float(i), 0.0, 1.0], limit=2) for i in range(1, 3)]
    _, (ours,) = observe(lambda: client.query_batch_points("docs", requests=requests))
    (span,) = [span for span in theirs.get_finished_spans() if span.name == "retrieval docs"]
    assert [event.name for event in span.events] == [names.RETRIEVAL_QUERY] * 2
    assert [dict(event.attributes or {})[names.QUERY_INDEX] for event in span.events] == [0, 1]
    assert [view.ids for view in retrieval_spans([ours])] == [["1", "2"], ["2", "3"]]


def test_an_unknown_distance_is_told_by_the_order_of_its_scores() -> None:
    """A client that never saw its collection's parameters does not know which way scores go."""
    margin = 4.0 / 4.5
    assert score_band([0.5, 2.0, 4.5], None) == (0.5, 4.5, margin)
    assert score_band([4.5, 2.0, 0.5], None) == (4.5, 0.5, margin)
    assert score_band([0.5, 2.0, 4.5], "cosine") == (4.5, 0.5, margin)


def test_groups_are_flattened(client: QdrantClient) -> None:
    """Hits of all groups, and as many asked for as the groups could hold."""
    _, (span,) = observe(
        lambda: client.query_points_groups("docs", group_by="n", query=[1.0, 0.0, 1.0], limit=2, group_size=2)
    )
    assert span.attributes[names.OPERATION_NAME] == "retrieval"
    assert span.attributes[names.RETRIEVAL_TOP_K] == 4
    assert span.attributes[names.RETRIEVAL_RETURNED] == 4
    assert len(span.attributes[names.RETRIEVAL_SCORES]) == 4  # type: ignore[arg-type]


def test_a_fusion_scores_on_its_own_scale(client: QdrantClient) -> None:
    """Named vectors; a hybrid's scores are ranks, and its dense vector is the one fingerprinted."""
    client.create_collection(
        "hybrid",
        {"dense": m.VectorParams(size=3, distance=m.Distance.EUCLID)},
        sparse_vectors_config={"words": m.SparseVectorParams()},
    )
    sparse = m.SparseVector(indices=[1, 4], values=[1.0, 2.0])
    client.upsert("hybrid", [m.PointStruct(id=1, vector={"dense": [1.0, 0.0, 1.0], "words": sparse})])
    prefetch = [
        m.Prefetch(query=[1.0, 0.0, 1.0], using="dense", filter=m.Filter()),
        m.Prefetch(query=sparse, using="words"),
    ]
    rrf = m.FusionQuery(fusion=m.Fusion.RRF)

    def search() -> None:
        client.query_points("hybrid", query=rrf, prefetch=prefetch)
        client.query_points("hybrid", query=[1.0, 0.0, 1.0], using="dense")
        client.query_points("hybrid", query=sparse, using="words")
        client.query_points("hybrid", query=m.NearestQuery(nearest=[1.0, 0.0, 1.0]), using="dense")

    _, spans = observe(search)
    assert [span.attributes[names.RETRIEVAL_METRIC] for span in spans] == ["rrf", "euclid", "dot", "euclid"]
    assert [span.attributes.get(names.QUERY_DIMENSION) for span in spans] == [3, 3, None, 3]
    assert [span.attributes[names.RETRIEVAL_FILTERED] for span in spans] == [True, False, False, False]
    fused, *plain = retrieval_spans(spans)
    assert [(stage.kind, stage.name, stage.k) for stage in fused.stages] == [
        ("dense", "dense", 10),
        ("sparse", "words", 10),
        ("rrf", None, 10),
    ]
    assert all(view.stages == [] for view in plain)


def test_recommendations_by_score_have_no_distance(client: QdrantClient) -> None:
    """`best_score` is not a similarity of the collection's kind: more is better."""
    best = m.RecommendQuery(recommend=m.RecommendInput(positive=[1], strategy=m.RecommendStrategy.BEST_SCORE))
    average = m.RecommendQuery(recommend=m.RecommendInput(positive=[1]))

    def search() -> None:
        client.query_points("docs", query=best)
        client.query_points("docs", query=average)

    _, (by_score, by_average) = observe(search)
    assert names.RETRIEVAL_METRIC not in by_score.attributes
    assert by_score.attributes[names.OPERATION_NAME] == "retrieval"
    assert by_average.attributes[names.RETRIEVAL_METRIC] == "cosine"


# --- listings and writes ----------------------------------------------------------------------------------
def test_a_generator_is_stored_in_full(client: QdrantClient) -> None:
    """Ten points from a generator arrive: nobody but the client reads it."""

    def produce() -> Iterator[m.PointStruct]:
        yield from points(10)

    def upload() -> None:
        client.upload_points("docs", produce())
        client.upload_collection(
            "docs", vectors=(point.vector for point in points(10)), ids=iter(range(20, 30))
        )

    _, spans = observe(upload)
    assert client.count("docs").count == 20
    assert [span.name for span in spans] == ["upload_points docs", "upload_collection docs"]
    assert all(names.WRITE_COUNT not in span.attributes for span in spans)


def test_listings_and_writes_are_store_calls(client: QdrantClient) -> None:
    """One span each, named by the method, with rows returned or points written where the call tells."""

    def work() -> None:
        client.scroll("docs", limit=3, scroll_filter=m.Filter())
        client.retrieve("docs", ids=[1, 2])
        client.count("docs")
        client.upsert("docs", points(2))
        client.upsert("docs", m.Batch(ids=[8, 9], vectors=[[1.0, 0.0, 1.0]] * 2))
        client.upload_collection("docs", vectors=np.ones((4, 3)))
        client.set_payload("docs", {"a": SECRET}, points=[1])
        client.delete("docs", points_selector=[8])
        client.delete("docs", points_selector=m.PointIdsList(points=[9]))
        client.delete("docs", points_selector=m.Filter())

    _, spans = observe(work)
    rows = [
        (
            str(s.attributes[names.DB_OPERATION]),
            s.attributes.get(names.DB_RETURNED_ROWS),
            s.attributes.get(names.WRITE_COUNT),
        )
        for s in spans
    ]
    assert rows == [
        ("scroll", 3, None),
        ("retrieve", 2, None),
        ("count", None, None),
        ("upsert", None, 2),
        ("upsert", None, 2),
        ("upload_collection", None, 4),
        ("set_payload", None, 1),
        ("delete", None, 1),
        ("delete", None, 1),
        ("delete", None, None),
    ]
    assert spans[0].attributes[names.RETRIEVAL_FILTERED] is True
    assert all(names.OPERATION_NAME not in span.attributes for span in spans)
    assert SECRET not in json.dumps([dict(span.attributes) for span in spans])


def test_what_a_client_creates_or_looks_up_tells_the_distance(client: QdrantClient) -> None:
    """For a remote store the distance is learned from calls that pass by, once they have succeeded."""
    known = known_client(client)

    def work() -> None:
        client.create_collection("named", {"a": m.VectorParams(size=3, distance=m.Distance.DOT)})
        client.get_collection("docs")
        with pytest.raises(ValueError, match="already exists"):
            client.create_collection("docs", m.VectorParams(size=3, distance=m.Distance.EUCLID))

    observe(work)
    assert known.learned == {"named": {"a": "dot"}, "docs": {"": "cosine"}}
    observe(lambda: client.delete_collection("named"))
    assert known.learned["named"] == {}


# --- errors, async, peers ---------------------------------------------------------------------------------
def test_an_error_is_told_and_raised(client: QdrantClient) -> None:
    """The service gets its own exception; the span has its type and an error status."""

    def work() -> None:
        with pytest.raises(ValueError, match="not found"):
            client.query_points("nowhere", query=[1.0])

    _, (span,) = observe(work)
    assert span.attributes[names.ERROR_TYPE] == "ValueError"
    assert span.status is StatusCode.ERROR
    assert span.status_message is None


async def test_async_calls_are_timed_and_their_errors_told() -> None:
    """The asynchronous client is observed by coroutines of its own: result, duration, errors."""
    ns.Platform()
    ns.instrument("qdrant")
    client = AsyncQdrantClient(":memory:")
    async with ns.Scope("async") as scope:
        await client.create_collection("docs", m.VectorParams(size=3, distance=m.Distance.COSINE))
        await client.upsert("docs", points())
        client.upload_points("docs", iter(points(10)))
        result = await client.query_points("docs", query=np.array([2.0, 0.0, 1.0]), limit=2)
        await client.query_batch_points("docs", requests=[m.QueryRequest(query=[1.0, 0.0, 1.0], limit=1)])
        await client.query_points_groups("docs", group_by="n", query=[1.0, 0.0, 1.0])
        both = await asyncio.gather(*(client.query_points("docs", query=[1.0, 0.0, 1.0]) for _ in range(2)))
        with pytest.raises(ValueError, match="not found"):
            await client.query_points("nowhere", query=[1.0])
    await client.close()
    assert len(both) == 2
    assert len(result.points) == 2
    spans = scope.artifact.retrieval_spans
    metrics = [view.span.attributes.get(names.RETRIEVAL_METRIC) for view in spans]
    assert metrics == ["cosine"] * 5 + [None]
    assert spans[0].scores == [point.score for point in result.points]
    assert spans[-1].error_type == "ValueError"
    assert {span.span.parent_span_id for span in spans} == {scope.artifact.telemetry.spans[0].span_id}
    assert sum(s.library == "neuronscope.qdrant" for s in scope.artifact.telemetry.spans) == 9


@pytest.mark.parametrize(("prefer_grpc", "port"), [(False, 7001), (True, 7002)])
def test_a_remote_store_has_an_address(prefer_grpc: bool, port: int) -> None:
    """Host and port of the service that is spoken to; nobody listens there, which is an error."""
    client = QdrantClient(
        host="127.0.0.1",
        port=7001,
        grpc_port=7002,
        prefer_grpc=prefer_grpc,
        check_compatibility=False,
        timeout=1,
    )

    def work() -> None:
        with pytest.raises((ResponseHandlingException, grpc.RpcError)):
            client.query_points("docs", query=[1.0])

    _, (span,) = observe(work)
    assert span.attributes[names.SERVER_ADDRESS] == "127.0.0.1"
    assert span.attributes[names.SERVER_PORT] == port
    kind = "UNAVAILABLE" if prefer_grpc else "qdrant_client.http.exceptions.ResponseHandlingException"
    assert span.attributes[names.ERROR_TYPE] == kind


def test_an_http_error_has_its_status() -> None:
    """A rejected request tells the HTTP status."""
    from httpx import Headers

    facts = store_error(UnexpectedResponse(404, "Not Found", b"", Headers()))
    assert (facts.type, facts.status_code) == ("qdrant_client.http.exceptions.UnexpectedResponse", 404)


def test_calls_of_the_client_itself_make_no_second_span(client: QdrantClient) -> None:
    """`migrate` reads and writes by public methods, on two clients: one span stands for all."""
    target = QdrantClient(":memory:")
    _, spans = observe(lambda: client.migrate(target))
    assert target.count("docs").count == 5
    assert [span.name for span in spans] == ["migrate"]


# --- harmless -----------------------------------------------------------------------------------------------
def session(client: QdrantClient) -> list[Any]:
    """Everything a service may do, with its results as plain values."""
    client.upload_points("docs", (point for point in points(8)))
    requests = [m.QueryRequest(query=[1.0, 0.0, 1.0], limit=2), m.QueryRequest(limit=1)]
    results: list[Any] = [
        client.query_points("docs", query=np.array([2.0, 0.0, 1.0]), limit=4, with_vectors=True),
        client.query_points("docs", query=[2.0, 0.0, 1.0], score_threshold=2.0),
        client.query_points("docs"),
        client.query_batch_points("docs", requests=requests),
        client.query_points_groups("docs", group_by="n", query=3),
        client.scroll("docs", limit=3),
        client.retrieve("docs", ids=[2]),
        client.count("docs"),
        client.delete("docs", points_selector=[1]),
        client.get_collection("docs").config.params,
    ]
    try:
        client.query_points("nowhere", query=[1.0])
    except ValueError as error:
        results.append(str(error))
    return [repr(result) for result in results]


def fresh() -> QdrantClient:
    client = QdrantClient(":memory:")
    client.create_collection("docs", m.VectorParams(size=3, distance=m.Distance.COSINE))
    return client


def raising(*_: Any, **__: Any) -> Any:
    """A fault of ours."""
    raise RuntimeError("ours")


@pytest.mark.parametrize("where", ["off", "on", "content", "snapshot", "unwrap", "readers"])
def test_the_service_sees_no_difference(where: str) -> None:
    """Results are the same without us, with us, with content, and with every adapter function raising."""
    expected = session(fresh())
    GUARD.reraise = False
    integration = QDRANT
    broken = Endpoint(
        operation=Operation.RETRIEVAL, read_request=raising, read_response=raising, read_error=raising
    )

    def break_readers(snapshot: Any) -> Any:
        def snap(*args: Any) -> Snapshot | None:
            kept = snapshot(*args)
            return None if kept is None else dataclasses.replace(kept, endpoint=broken)

        return snap

    changes: dict[str, Callable[[Any], dict[str, Any]]] = {
        "snapshot": lambda _: {"snapshot": raising},
        "unwrap": lambda _: {"unwrap": raising},
        "readers": lambda method: {"snapshot": break_readers(method.snapshot)},
    }
    if where in changes:
        change = changes[where]
        methods = tuple(dataclasses.replace(method, **change(method)) for method in QDRANT.methods)
        integration = dataclasses.replace(QDRANT, methods=methods)
    ns.registry.register_adapter(integration)
    try:
        ns.Platform(capture_content="span_only" if where == "content" else None)
        if where != "off":
            ns.instrument("qdrant")
        assert session(fresh()) == expected
        ENGINE.drain()
        assert bool(GUARD.faults) == (where in changes)
    finally:
        ns.registry.unregister_adapter("qdrant")


def test_every_method_of_the_installed_version_is_found_and_given_back() -> None:
    """No target is missing, and uninstrumenting restores the very functions."""
    before = {cls: dict(vars(cls)) for cls in (QdrantClient, AsyncQdrantClient)}
    ns.Platform()
    ns.instrument("qdrant")
    installed = platform.installation("qdrant")
    assert installed.missing == set()
    assert len(installed.installed) >= 2 * 24
    platform.uninstrument("qdrant")
    assert {cls: dict(vars(cls)) for cls in before} == before


def test_only_the_wrapped_client_is_observed(client: QdrantClient) -> None:
    """`wrap_vector_store` observes one object and returns it."""
    other = fresh()
    assert ns.Dataset.wrap_vector_store(client) is client
    with ns.Scope("one") as scope:
        client.count("docs")
        other.count("docs")
    spans = [span for span in scope.artifact.telemetry.spans if span.library == "neuronscope.qdrant"]
    assert [span.name for span in spans] == ["count docs"]
