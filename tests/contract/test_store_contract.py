"""What holds for every vector store: the service sees no difference, each query is one record with its facts.

A new adapter adds a `StoreCase` to `CASES`.  Whatever it cannot do like the others is said in its own test
file, beside what only it can do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry.trace import StatusCode

import neuronscope as ns
import store_chroma
import store_faiss
import store_lancedb
import store_milvus
import store_pgvector
import store_pinecone
import store_qdrant
import store_redis
import store_search
import store_weaviate
from client_cases import CANARY, agent, facts_like, function_at
from neuronscope import platform
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import ClientIntegration, Endpoint, Snapshot, registry
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, SpanRecord
from neuronscope.signals.scores import scale_of
from neuronscope.testing import InMemoryExporter
from store_cases import (
    QUERIES,
    QUERY,
    FailingCall,
    Outcome,
    StoreCall,
    StoreCase,
    facts_of,
    observe,
    observe_async,
    plain,
    three_ways,
)

CASES: tuple[StoreCase, ...] = (
    store_qdrant.CASE,
    store_qdrant.REST,
    store_qdrant.GRPC,
    store_pinecone.CASE,
    store_pinecone.GRPC,
    store_chroma.EMBEDDED,
    store_chroma.SERVED,
    store_weaviate.CASE,
    store_faiss.CASE,
    store_pgvector.PSYCOPG,
    store_milvus.CASE,
    store_lancedb.CASE,
    store_redis.CASE,
    store_search.ELASTICSEARCH,
    store_search.OPENSEARCH,
)


def _param(case: StoreCase, *more: Any, id: str = "") -> Any:
    marks = (pytest.mark.integration,) if case.servers else ()
    return pytest.param(case, *more, marks=marks, id="-".join(filter(None, (case.name, id))))


each_store = pytest.mark.parametrize("case", [_param(case) for case in CASES])
each_call = pytest.mark.parametrize(
    ("case", "call"), [_param(case, call, id=call.name) for case in CASES for call in case.calls]
)
each_failure = pytest.mark.parametrize(
    ("case", "call"), [_param(case, call, id=call.name) for case in CASES for call in case.failing]
)


# --- the same with and without -------------------------------------------------------------------------
@each_call
def test_a_call_is_one_span_and_no_difference(case: StoreCase, call: StoreCall) -> None:
    """Values, types and log lines; the facts of the span and of each query."""
    for outcome in three_ways(lambda mode: observe(case, mode, call.call)):
        assert_facts(case, call, outcome)


@each_call
def test_an_asynchronous_call_is_one_span_and_no_difference(case: StoreCase, call: StoreCall) -> None:
    """As its twin."""
    acall = call.acall
    if acall is None or case.aopen is None:
        return
    for outcome in three_ways(lambda mode: observe_async(case, mode, acall)):
        assert_facts(case, call, outcome)


def assert_facts(case: StoreCase, call: StoreCall, outcome: Outcome) -> None:
    (span,) = outcome.spans
    expected = facts_of(call, case)
    assert facts_like(span.attributes, expected) == expected
    target = f" {case.collection}" if case.collection is not None else ""
    assert span.name == f"{'retrieval' if call.search else call.method}{target}"
    assert span.status is StatusCode.UNSET
    if not call.search:
        assert outcome.searches == []
        return
    assert len(outcome.searches) == call.queries
    for index, (search, query) in enumerate(zip(outcome.searches, QUERIES, strict=False)):
        assert (search.index, search.query_count) == (index, call.queries)
        assert (search.k, search.returned, search.metric) == (call.k, call.returned, call.metric)
        assert len(set(search.ids)) == len(search.ids) == call.returned
        assert len(search.scores) in (0, call.returned)
        better = sorted(search.normalised_scores, reverse=True)
        assert not call.ordered or better == search.normalised_scores
        if search.scores and call.ordered:
            assert search.top_score == search.scores[0]
        facts = query_facts(query)
        assert facts is not None
        if call.fingerprint:
            assert search.query_fingerprint == facts.fingerprint
            assert search.query_dimension == len(QUERY)
            assert search.query_norm == pytest.approx(facts.norm)
        else:
            assert search.query_fingerprint is None


@each_call
def test_content_is_recorded_only_when_asked_for(case: StoreCase, call: StoreCall) -> None:
    """Documents, metadata values, query texts and vectors; without content only keys and fingerprints."""
    (on,) = observe(case, "on", call.call).spans
    (content,) = observe(case, "content", call.call).spans
    secret = {names.RETRIEVAL_DOCUMENTS, names.RETRIEVAL_QUERY_TEXT, names.QUERY_VECTOR}
    assert CANARY not in repr(on)
    assert not any(secret & set(told) for told in told_by(on))
    assert (CANARY in repr(content)) == call.secret
    if call.fingerprint and call.search and call.queries == 1:
        assert content.attributes[names.QUERY_VECTOR] == list(QUERY)
    if call.secret and call.search:
        told = told_by(content)
        (first, *_) = [
            found[names.RETRIEVAL_DOCUMENTS] for found in told if names.RETRIEVAL_DOCUMENTS in found
        ]
        assert len(json.loads(str(first))) == call.returned


def told_by(span: SpanRecord) -> list[Attributes]:
    """Attributes of a span and of its queries."""
    found = [span.attributes]
    found += [event.attributes for event in span.events]
    return found


# --- errors --------------------------------------------------------------------------------------------
@each_failure
def test_an_error_goes_through_and_is_told_by_type(case: StoreCase, call: FailingCall) -> None:
    """The service gets its own exception; the span its type, never its words."""
    acall = call.acall
    outcomes = list(three_ways(lambda mode: observe(case, mode, call.call)))
    if acall is not None and case.aopen is not None:
        outcomes += three_ways(lambda mode: observe_async(case, mode, acall))
    for outcome in outcomes:
        (span,) = outcome.spans
        assert span.status is StatusCode.ERROR
        assert span.attributes[names.ERROR_TYPE] == call.error_type
        assert span.attributes.get(names.HTTP_RESPONSE_STATUS_CODE) == call.status
        for search in outcome.searches:
            assert (search.error_type, search.ids, search.returned) == (call.error_type, [], None)


@each_store
def test_a_cancelled_call_is_cancelled_and_told(case: StoreCase) -> None:
    """A `BaseException`: it goes through, and the span ends with it."""
    call = next((call for call in case.calls if call.acall is not None), None)
    if call is None or case.aopen is None:
        return
    acall = call.acall
    assert acall is not None

    async def scenario(store: Any) -> str:
        task = asyncio.ensure_future(acall(store))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "done"  # it never waited

    for outcome in three_ways(lambda mode: observe_async(case, mode, scenario)):
        (span,) = outcome.spans
        cancelled = outcome.value[1] == "cancelled"
        assert (span.attributes.get(names.ERROR_TYPE) == "asyncio.exceptions.CancelledError") == cancelled


# --- nothing is consumed, nothing is shared ------------------------------------------------------------
@each_store
def test_an_iterator_is_the_librarys_to_read(case: StoreCase) -> None:
    """Ten documents from a generator arrive, one by one, read by nobody else."""
    for upload in case.uploads:
        readers: list[set[str]] = []

        def scenario(store: Any, upload: Any = upload, readers: list[set[str]] = readers) -> Any:
            read: set[str] = set()
            readers.append(read)

            def documents() -> Iterator[tuple[int, list[float]]]:
                for number in range(101, 111):
                    read.add(str(number))
                    yield number, [float(number), 1.0, 1.0, 1.0]

            return upload(store, documents())

        on, _ = three_ways(lambda mode, run=scenario: observe(case, mode, run))  # type: ignore[misc]
        assert on.value == ("int", 18)
        assert [len(read) for read in readers] == [10, 10, 10]
        assert all(names.WRITE_COUNT not in span.attributes for span in on.spans)


@each_store
def test_threads_have_records_of_their_own(case: StoreCase) -> None:
    """Eight threads at once on one client: each search is in the trace of its thread."""
    call = next(call for call in case.calls if call.search)
    with case.open() as store:
        expected = plain(call.call(store))
        results: list[Any] = []
        traces: list[int] = []
        with agent("on", case.adapter) as exporter:

            def work() -> None:
                with ns.Scope("thread") as scope:
                    results.append(plain(call.call(store)))
                (search,) = scope.artifact.retrieval_spans
                traces.append(search.span.trace_id)

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == [expected] * 8
            assert len(set(traces)) == 8
            assert len([span for span in exporter.spans if names.DB_SYSTEM in span.attributes]) == 8


# --- the agent around it -------------------------------------------------------------------------------
@each_store
def test_uninstrument_restores_every_function(case: StoreCase) -> None:
    """The very objects; nothing that the installed version should have is missing."""
    before = [function_at(target) for target in case.watched]
    ns.instrument(case.adapter)
    for target, function in zip(case.watched, before, strict=True):
        assert function_at(target) is not function, target
    assert platform.installations()[case.adapter].missing == set()
    ns.uninstrument(case.adapter)
    for target, function in zip(case.watched, before, strict=True):
        assert function_at(target) is function, target


@each_store
def test_a_store_made_before_is_observed_and_afterwards_left_alone(case: StoreCase) -> None:
    """Import order does not matter; instrumenting twice is one span."""
    call = case.calls[0]
    with case.open() as store:
        with agent("on", case.adapter) as exporter:
            ns.instrument(case.adapter)
            call.call(store)
            assert len(exporter.spans) == 1
        call.call(store)
        assert len(exporter.spans) == 1


@each_store
def test_only_the_wrapped_object_is_observed(case: StoreCase) -> None:
    """`ns.Dataset.wrap_vector_store` gives the object back, and leaves others alone."""
    call, exporter = case.calls[0], InMemoryExporter()
    with case.open() as ours, case.open() as other, ns.Platform(exporters=[exporter], deferred=False):
        subject = ours if case.subjects is None else case.subjects(ours)
        assert ns.Dataset.wrap_vector_store(subject) is subject
        call.call(other)
        assert exporter.spans == []
        call.call(ours)
        assert len(exporter.spans) == 1


@each_store
def test_suppressed_calls_are_not_observed(case: StoreCase) -> None:
    """OpenTelemetry's key; an outer layer has the span already."""
    with case.open() as store, agent("on", case.adapter) as exporter:
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        try:
            case.calls[0].call(store)
        finally:
            otel_context.detach(token)
        assert exporter.spans == []


@each_store
def test_scores_reach_metrics_where_more_is_better(case: StoreCase) -> None:
    """A distance is turned round, every query counts once, and so does every call."""
    from neuronscope.engine import ENGINE

    call = next(call for call in case.calls if call.search and call.metric is not None)
    with case.open() as store, agent("on", case.adapter) as exporter:
        call.call(store)
        (search,) = Outcome(None, [], exporter.spans).searches
        assert ENGINE.metrics.total(names.RETRIEVALS) == call.queries
        assert ENGINE.metrics.total(names.DB_DURATION) == 1
        (top,) = [
            family.points[0].value
            for family in ENGINE.metrics.collect().families
            if family.metric is names.TOP_SCORE
        ]
        assert search.top_score is not None
        assert top.sum == pytest.approx(scale_of(call.metric).normalised(search.top_score))  # type: ignore[union-attr]


# --- faults of ours ------------------------------------------------------------------------------------
def broken(*_: Any) -> Any:
    raise RuntimeError("a bug of ours")


def sabotaged(adapter: ClientIntegration, part: str) -> ClientIntegration:
    """The adapter with one of its functions, or all its readers, raising."""

    def break_readers(function: Any) -> Any:
        def snapshot(*args: Any) -> Snapshot | None:
            kept = function(*args)
            if kept is None:
                return None
            readers = ("read_request", "read_response", "read_error")
            endpoint: Endpoint = dataclasses.replace(kept.endpoint, **dict.fromkeys(readers, broken))
            return Snapshot(endpoint, kept.target, kept.arguments, kept.peer)

        return snapshot

    methods: list[Any] = []
    for method in adapter.methods:
        changes: dict[str, Any] = {}
        if part == "readers":
            changes["snapshot"] = break_readers(method.snapshot)
        elif getattr(method, part) is not None:
            changes[part] = broken
        methods.append(dataclasses.replace(method, **changes))
    return dataclasses.replace(adapter, methods=tuple(methods))


@each_store
@pytest.mark.parametrize("part", ["snapshot", "unwrap", "readers"])
def test_faults_of_the_adapter_change_nothing(case: StoreCase, part: str) -> None:
    """Each function of the table made to raise in turn: the service notices nothing."""

    def use(store: Any) -> Any:
        results = [plain(call.call(store)) for call in case.calls]
        for failing in case.failing:
            with pytest.raises(case.errors) as caught:
                failing.call(store)
            results.append(plain(caught.value))
        return results

    expected = observe(case, "off", use).value
    GUARD.reraise = False
    ns.registry.register_adapter(sabotaged(registry.client(case.adapter), part))
    try:
        assert observe(case, "on", use).value == expected
        assert GUARD.faults
    finally:
        ns.registry.unregister_adapter(case.adapter)
