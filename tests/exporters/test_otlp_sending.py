"""The sender, on a transport that does what the test says: queue, retries, losses, exit."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind

from neuronscope.engine.guard import GUARD
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import (
    Batch,
    LayerRecord,
    LogRecord,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
    SpanRecord,
)
from neuronscope_exporters.otlp import OtlpExporter
from neuronscope_exporters.otlp.backlog import Limits
from neuronscope_exporters.otlp.transport import Reply

DELIVERED = Reply(delivered=True, reason="rejected")
UNREACHABLE = Reply(retryable=True, unreachable=True, reason="collector_unreachable")
BUSY = Reply(retryable=True, reason="http_503")
REFUSED = Reply(reason="http_400", detail="400 Bad Request")
SWIFT = Limits(first_backoff_s=0.01, longest_backoff_s=0.02, metric_interval_s=3600)


class Scripted:
    """A transport that answers from a list, then with its last answer; None hangs until aborted."""

    max_request_bytes = 4 << 20
    target = "http://test"

    def __init__(self, *replies: Reply | None) -> None:
        self.replies: Sequence[Reply | None] = replies or (DELIVERED,)
        self.bodies: list[bytes] = []
        self.times: list[float] = []
        self.timeouts: list[float] = []
        self.contexts: list[otel_context.Context] = []
        self.sending = threading.Event()
        self.aborted = threading.Event()
        self.closed = threading.Event()

    def send(self, body: bytes, timeout_s: float) -> Reply:
        self.bodies.append(body)
        self.times.append(time.monotonic())
        self.timeouts.append(timeout_s)
        self.contexts.append(otel_context.get_current())
        self.sending.set()
        reply, *rest = self.replies
        self.replies = rest or (reply,)
        if reply is None:
            self.aborted.wait(100)
            return UNREACHABLE
        return reply

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.closed.set()

    @property
    def spans(self) -> list[str]:
        return [
            span.name
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Bench:
    """Exporters under test, and what they counted."""

    def __init__(self) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.exported: Counter[str] = Counter()
        self.exporters: list[OtlpExporter] = []
        self.collect: Callable[[], MetricsSnapshot] = lambda: MetricsSnapshot(
            [MetricFamily(names.EXPORTED, [MetricPoint((), 1.0), MetricPoint((("item", "x"),), 1.0)])], 1, 2
        )

    def _collect(self) -> MetricsSnapshot:
        return self.collect()

    def exporter(
        self,
        spans: Scripted | None = None,
        metrics: Scripted | None = None,
        logs: Scripted | None = None,
        limits: Limits = SWIFT,
        **settings: Any,
    ) -> OtlpExporter:
        def lose(item: str, reason: str, count: int) -> None:
            self.lost[item, reason] += count

        def count(item: str, number: int) -> None:
            self.exported[item] += number

        context = ExporterContext(
            settings=Settings(**settings),
            resource={"service.name": "svc"},
            collect=self._collect,
            count_lost=lose,
            count_exported=count,
        )
        self.exporters.append(OtlpExporter(context, spans=spans, metrics=metrics, logs=logs, limits=limits))
        return self.exporters[-1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for exporter in bench.exporters:
        exporter.shutdown(0.1)


def span(name: str = "chat", **changes: Any) -> SpanRecord:
    return SpanRecord(1, 2, name, SpanKind.CLIENT, 1, 2, changes.pop("attributes", {}), **changes)


def batch(*spans: SpanRecord) -> Batch:
    return Batch({"service.name": "svc"}, spans or (span(),))


def log_batch(count: int = 1) -> Batch:
    return Batch({"service.name": "svc"}, logs=[LogRecord(1, 2, body="hello")] * count)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def test_what_is_exported(bench: Bench) -> None:
    """Sampled spans of our own; layers, unsampled spans and those the user's pipeline exports stay out."""
    transport = Scripted()
    exporter = bench.exporter(transport)
    spans = (span("a"), span("b", trace_flags=0), span("c", foreign=True), span("d"))
    layer = LayerRecord("m", "l", 0, 1, (1,), "float32")
    exporter.export(Batch({}, spans, (layer,)))
    assert exporter.flush(60)
    assert transport.spans == ["a", "d"]
    assert bench.exported == {"span": 2}
    assert not bench.lost


def test_foreign_spans_go_when_asked_for(bench: Bench) -> None:
    """The user has given our exporter a collector of its own."""
    transport = Scripted()
    exporter = bench.exporter(transport, otlp_foreign_spans=True)
    exporter.export(batch(span("c", foreign=True)))
    assert exporter.flush(60)
    assert transport.spans == ["c"]


def test_a_busy_collector_is_tried_again(bench: Bench) -> None:
    """The same bytes, until it takes them; counted once."""
    transport = Scripted(BUSY, UNREACHABLE, BUSY, DELIVERED)
    exporter = bench.exporter(transport)
    exporter.export(batch())
    until(lambda: bench.exported["span"] == 1)
    assert len(transport.bodies) == 4
    assert len(set(transport.bodies)) == 1
    assert not bench.lost


def test_a_refused_request_is_lost_once_and_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """No retry can help; the next request is tried all the same; one log line for all of them."""
    transport = Scripted(REFUSED, REFUSED, DELIVERED)
    exporter = bench.exporter(transport)
    with caplog.at_level(logging.WARNING, logger="neuronscope.exporters.otlp"):
        for _ in range(2):
            exporter.export(batch(span(), span()))
            assert not exporter.flush(60)
        exporter.export(batch())
        assert exporter.flush(60)
    assert bench.lost == {("span", "http_400"): 4}
    assert bench.exported == {"span": 1}
    assert len([line for line in caplog.messages if "http_400" in line]) == 1


def test_partial_success_counts_what_was_rejected(bench: Bench) -> None:
    """The rest was taken, so nothing is sent again."""
    exporter = bench.exporter(Scripted(Reply(delivered=True, rejected=2, reason="rejected")))
    exporter.export(batch(span(), span(), span()))
    assert not exporter.flush(60)
    assert bench.lost == {("span", "rejected"): 2}
    assert bench.exported == {"span": 1}


def test_waiting_requests_are_joined(bench: Bench) -> None:
    """While one is under way the others gather; a slow collector gets few requests, all in order."""
    transport = Scripted(None, DELIVERED)
    exporter = bench.exporter(transport)
    exporter.export(batch(span("0")))
    assert transport.sending.wait(60)
    for number in range(1, 20):
        exporter.export(batch(span(str(number))))
    transport.abort()
    assert exporter.flush(60)
    assert transport.spans == [*"0", *map(str, range(20))]  # the first was tried twice
    assert len(transport.bodies) == 3


def test_a_full_queue_refuses_and_counts(bench: Bench) -> None:
    """Bounded by bytes; `export` comes back at once; what fitted arrives in the end."""
    transport = Scripted(None, DELIVERED)
    exporter = bench.exporter(transport, limits=Limits(queue_bytes=50_000, first_backoff_s=0.01))
    exporter.export(batch())
    assert transport.sending.wait(60)
    for _ in range(100):
        exporter.export(batch(span(attributes={"text": "x" * 1000})))
    assert len(transport.bodies) == 1  # which is still under way
    lost = bench.lost["span", "queue_full"]
    assert 40 < lost < 60
    transport.abort()
    until(lambda: bench.exported["span"] == 101 - lost)
    assert sum(bench.lost.values()) == lost


@pytest.mark.parametrize("timeout_s", [0.0, 0.3])
def test_shutdown_returns_in_time_from_a_silent_collector(bench: Bench, timeout_s: float) -> None:
    """The request under way and those behind it are lost, each counted once; the thread ends."""
    transport = Scripted(None)
    exporter = bench.exporter(transport)
    exporter.export(batch(span(), span()))
    assert transport.sending.wait(60)
    exporter.export(batch())
    began = time.monotonic()
    exporter.shutdown(timeout_s)
    assert time.monotonic() - began < timeout_s + 20  # the collector is silent for longer
    assert bench.lost == {("span", "shutdown"): 3}
    assert transport.closed.wait(60)
    assert bench.lost == {("span", "shutdown"): 3}
    assert not bench.exported


def test_shutdown_sends_what_is_left(bench: Bench) -> None:
    """And the metrics of the last moment, after the spans that they count."""
    spans, metrics = Scripted(), Scripted()
    exporter = bench.exporter(spans, metrics)
    exporter.export(batch())
    exporter.shutdown(5)
    assert bench.exported == {"span": 1, "metric_point": 2}
    assert spans.closed.is_set()
    exporter.shutdown(5)  # again: nothing
    exporter.export(batch())
    assert bench.lost == {("span", "shutdown"): 1}
    assert len(spans.bodies) == len(metrics.bodies) == 1


def test_a_dead_collector_does_not_delay_the_exit(bench: Bench) -> None:
    """One attempt tells that nobody listens; everything is counted and the process may go."""
    exporter = bench.exporter(Scripted(UNREACHABLE), limits=Limits(first_backoff_s=60, longest_backoff_s=60))
    for _ in range(2000):
        exporter.export(batch(span(attributes={"text": "x" * 5000})))
    began = time.monotonic()
    exporter.shutdown(100)
    assert time.monotonic() - began < 50  # neither the time it may take nor until the next attempt
    assert bench.lost == {("span", "collector_unreachable"): 2000}


def test_a_request_may_not_block_the_others_for_ever(bench: Bench) -> None:
    """One that crashes the collector each time is given up."""
    transport = Scripted(*[BUSY] * 6, DELIVERED)
    limits = Limits(first_backoff_s=0.02, longest_backoff_s=0.02, retry_for_s=0.05)
    exporter = bench.exporter(transport, limits=limits)
    exporter.export(batch(span("poison")))
    until(lambda: bench.lost["span", "http_503"] == 1)
    transport.replies = [DELIVERED]
    exporter.export(batch(span("next")))
    until(lambda: bench.exported["span"] == 1)


def test_the_collectors_wish_to_wait_is_respected(bench: Bench) -> None:
    """A flush hurries our own backoff, never a Retry-After."""
    transport = Scripted(Reply(retryable=True, reason="http_429", retry_after_s=0.5), DELIVERED)
    exporter = bench.exporter(transport)
    exporter.export(batch())
    assert transport.sending.wait(60)
    exporter.flush(0.1)
    assert exporter.flush(60)
    first, second = transport.times
    assert second - first >= 0.5


def test_flush_hurries_our_own_backoff(bench: Bench) -> None:
    """The collector is back and somebody asks: no reason to wait out a minute."""
    transport = Scripted(UNREACHABLE, DELIVERED)
    exporter = bench.exporter(transport, limits=Limits(first_backoff_s=60, longest_backoff_s=60))
    exporter.export(batch())
    assert transport.sending.wait(60)
    until(lambda: len(transport.bodies) == 1)
    assert exporter.flush(60)


def test_metrics_do_not_wait_for_spans(bench: Bench) -> None:
    """They have a collector of their own, which is well."""
    metrics = Scripted()
    limits = Limits(first_backoff_s=60, longest_backoff_s=60, metric_interval_s=0.05)
    exporter = bench.exporter(Scripted(UNREACHABLE), metrics, limits=limits)
    exporter.export(batch())
    until(lambda: len(metrics.bodies) >= 3)


def test_lost_metrics_are_counted_and_not_tried_again(bench: Bench) -> None:
    """The next push says the same and more."""
    metrics = Scripted(BUSY, DELIVERED)
    exporter = bench.exporter(None, metrics)
    assert not exporter.flush(60)
    assert bench.lost == {("metric_point", "http_503"): 2}
    assert exporter.flush(60)
    assert len(metrics.bodies) == 2
    assert bench.exported == {"metric_point": 2}


def test_our_own_requests_are_not_instrumented(bench: Bench) -> None:
    """OpenTelemetry's instrumentations look for these keys; a span for each request would feed on itself."""
    transport = Scripted()
    exporter = bench.exporter(transport)
    exporter.export(batch())
    assert exporter.flush(60)
    (context,) = transport.contexts
    assert context["suppress_instrumentation"] is True
    assert context["suppress_http_instrumentation"] is True
    assert otel_context.get_value("suppress_instrumentation") is None  # nothing leaks into ours


def test_a_fault_of_ours_costs_one_push(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard counts it, and spans still go."""
    monkeypatch.setattr(GUARD, "reraise", False)
    transport = Scripted()
    good = bench.collect

    def broken() -> MetricsSnapshot:
        bench.collect = good
        raise RuntimeError("a fault of ours")

    bench.collect = broken
    exporter = bench.exporter(transport, Scripted())
    assert not exporter.flush(0.2)
    exporter.export(batch())
    assert exporter.flush(60)
    assert transport.spans == ["chat"]
    assert ("exporters.otlp", "RuntimeError") in GUARD.faults
    GUARD.reset()


def test_a_dripping_collector_is_cut_off(bench: Bench) -> None:
    """Timeouts bound single reads; a request that outlives them all is ended by the next export."""
    transport = Scripted(None, DELIVERED)
    limits = Limits(timeout_s=0.01, first_backoff_s=0.01)
    exporter = bench.exporter(transport, limits=limits)
    exporter.export(batch())
    assert transport.sending.wait(60)
    time.sleep(1.1)
    exporter.export(batch())
    until(lambda: bench.exported["span"] == 2)


def test_logs_and_spans_keep_apart(bench: Bench) -> None:
    """Each to its own place and counted as what it is; without a place they are nobody's loss."""
    spans, logs = Scripted(), Scripted(REFUSED, DELIVERED)
    exporter = bench.exporter(spans, logs=logs)
    exporter.export(Batch({}, [span()], logs=log_batch(3).logs))
    assert not exporter.flush(60)
    exporter.export(log_batch(2))
    assert exporter.flush(60)
    assert bench.exported == {"span": 1, "log": 2}
    assert bench.lost == {("log", "http_400"): 3}
    assert (
        len(ExportLogsServiceRequest.FromString(logs.bodies[1]).resource_logs[0].scope_logs[0].log_records)
        == 2
    )
    without = bench.exporter(Scripted())
    without.export(log_batch())
    assert without.flush(60)
    assert sum(bench.lost.values()) == 3


def test_a_busy_lane_does_not_hold_the_other(bench: Bench) -> None:
    """Logs that nobody takes are tried again and again; spans pass them by, and the other way round."""
    spans, logs = Scripted(), Scripted(BUSY)
    exporter = bench.exporter(spans, logs=logs, limits=Limits(first_backoff_s=0.001, longest_backoff_s=0.001))
    exporter.export(log_batch())
    until(lambda: len(logs.bodies) > 5)
    exporter.export(batch())
    until(lambda: bench.exported["span"] == 1)
    logs.replies = [DELIVERED]
    assert exporter.flush(60)
    assert bench.exported == {"span": 1, "log": 1}
    assert not bench.lost


def test_lanes_that_are_both_full_take_turns(bench: Bench) -> None:
    """Neither starves: what waits longer goes first."""
    order: list[str] = []

    class Ordered(Scripted):
        def __init__(self, name: str) -> None:
            super().__init__(None, DELIVERED)
            self.name = name

        def send(self, body: bytes, timeout_s: float) -> Reply:
            order.append(self.name)
            return super().send(body, timeout_s)

    spans, logs = Ordered("spans"), Ordered("logs")
    exporter = bench.exporter(spans, logs=logs)
    exporter.export(batch())
    assert spans.sending.wait(60)
    for _ in range(4):
        exporter.export(
            Batch(
                {}, [span(attributes={"text": "x" * (2 << 20)})], logs=[LogRecord(1, 1, body="y" * (2 << 20))]
            )
        )
    logs.replies = [DELIVERED]
    spans.abort()
    assert exporter.flush(60)
    assert order.index("logs") <= 2
    assert "spanslogsspanslogs" in "".join(order)


def test_each_signal_has_its_own_time_limit(bench: Bench) -> None:
    """A slow log store may take longer than the traces may."""
    spans, logs = Scripted(), Scripted()
    exporter = bench.exporter(spans, logs=logs, limits=Limits(timeout_s=7, timeouts={"log": 3}))
    exporter.export(Batch({}, [span()], logs=log_batch().logs))
    assert exporter.flush(60)
    assert (spans.timeouts, logs.timeouts) == ([7], [3])


def test_shutdown_counts_what_is_left_of_every_signal(bench: Bench) -> None:
    """Nobody answers: spans and logs are lost under their own names."""
    exporter = bench.exporter(Scripted(None), logs=Scripted(None))
    exporter.export(Batch({}, [span()] * 2, logs=log_batch(3).logs))
    exporter.shutdown(0.3)
    assert bench.lost == {("span", "shutdown"): 2, ("log", "shutdown"): 3}
