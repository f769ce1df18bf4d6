"""OTLP against receivers: real ones (oteltap; rotel over gRPC and HTTP), and ones that misbehave."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as TheirLogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import SpanKind, StatusCode
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

import neuronscope as ns
from collectors import OK, Collector, Protocol, free_port, logs_in, rotel, serving, spans_in, until
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import (
    Batch,
    Exemplar,
    HistogramValue,
    LogRecord,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
    SpanEvent,
    SpanLink,
    SpanRecord,
)
from neuronscope.testing.fake_openai import FakeOpenAI
from neuronscope_exporters.otlp import OtlpExporter, create
from neuronscope_exporters.otlp.encode_logs import LogEncoder
from neuronscope_exporters.otlp.encode_spans import SpanEncoder
from openai_cases import sync_client

pytestmark = pytest.mark.integration

ALONE = "NEURONSCOPE_TEST_ALONE"  # set where a test has its process for itself
PROTOCOLS: tuple[Protocol, ...] = ("http/protobuf", "grpc")
RESOURCE: dict[str, Any] = {"service.name": "svc", "process.pid": 7}
# google.rpc.Status with a RetryInfo of one second among its details.
RETRY_INFO = b"\x1a\x30\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x01"


class Bench:
    """An exporter made from settings, and what it counted."""

    def __init__(self) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.exported: Counter[str] = Counter()
        self.exporters: list[OtlpExporter] = []

    def exporter(self, endpoint: str, protocol: Protocol = "http/protobuf", **more: Any) -> OtlpExporter:
        def lose(item: str, reason: str, count: int) -> None:
            self.lost[item, reason] += count

        def count(item: str, number: int) -> None:
            self.exported[item] += number

        more.setdefault("metrics_exporter", "none")
        exporter = create(
            ExporterContext(
                settings=Settings(otlp_endpoint=endpoint, otlp_protocol=protocol, **more),
                resource=RESOURCE,
                collect=snapshot,
                count_lost=lose,
                count_exported=count,
            )
        )
        assert exporter is not None
        self.exporters.append(exporter)
        return exporter


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for exporter in bench.exporters:
        exporter.shutdown(0.2)


def snapshot() -> MetricsSnapshot:
    counts = [0] * (len(names.SECONDS) + 1)
    counts[2] = 1
    exemplars: list[Exemplar | None] = [None] * len(counts)
    exemplars[2] = Exemplar(0.03, time.time_ns(), 0xABC, 0xDEF)
    point = MetricPoint((("server.port", "443"),), HistogramValue(counts, 0.03, 1, exemplars))
    now = time.time_ns()
    return MetricsSnapshot([MetricFamily(names.OPERATION_DURATION, [point])], now - 10**9, now)


def trace() -> list[SpanRecord]:
    """A small trace with everything that a span can have."""
    now = time.time_ns()
    server = SpanRecord(
        0xA1B2 << 96, 0x11, "POST /ask", SpanKind.SERVER, now, now + 10**9,
        {"http.request.method": "POST", "http.response.status_code": 200},
        parent_span_id=0x99, parent_is_remote=True, trace_state="vendor=1", library="neuronscope.server",
    )  # fmt: skip
    chat = SpanRecord(
        server.trace_id, 0x22, "chat gpt-4o-mini", SpanKind.CLIENT, now + 5, now + 10**8,
        {
            "gen_ai.request.model": "gpt-4o-mini", "server.port": 443, "gen_ai.request.temperature": 0.2,
            "gen_ai.request.stream": True, "gen_ai.response.finish_reasons": ("stop",),
            "neuronscope.retrieval.scores": (0.9, -0.5), "text": "naïve \U0001f600", "big": 1 << 62,
        },
        parent_span_id=0x11,
        events=[SpanEvent("gen_ai.choice", now + 50, {"index": 0}, 2)],
        links=[SpanLink(0xFF, 0x33, {"why": "batched"}, "a=b")],
        status=StatusCode.ERROR, status_message="openai.RateLimitError",
        dropped_attributes=1, dropped_events=2, dropped_links=3, library="neuronscope.openai",
    )  # fmt: skip
    return [server, chat]


def logs() -> list[LogRecord]:
    """An event with structure, and a line of the service's log."""
    now = time.time_ns()
    event = LogRecord(
        now, now + 1, 5, "DEBUG",
        attributes={
            "gen_ai.input.messages": [
                {"role": "user", "parts": [{"type": "text", "content": "naïve \U0001f600"}]}
            ],
            "gen_ai.usage.input_tokens": 7, "gen_ai.request.stream": True, "score": 0.5, "ids": ["a", "b"],
        },
        trace_id=0xA1B2 << 96, span_id=0x22, trace_flags=1,
        event_name="gen_ai.client.inference.operation.details", library="neuronscope.openai",
    )  # fmt: skip
    line = LogRecord(
        now, now + 1, 17, "ERROR", "order 17 failed", {"tenant": "t1"}, library="app.db", dropped_attributes=1
    )
    return [event, line]


def expected_logs(records: list[LogRecord]) -> list[TheirLogRecord]:
    (payload,) = LogEncoder(lambda _reason, _count: None).encode(RESOURCE, records)
    return logs_in(payload.body)


def span(name: str = "chat", attributes: Mapping[str, Any] | None = None) -> SpanRecord:
    return SpanRecord(0xA, 0xB, name, SpanKind.CLIENT, 1, 2, attributes or {})


def batch(*spans: SpanRecord) -> Batch:
    return Batch(RESOURCE, spans or (span(),))


def expected(spans: list[SpanRecord]) -> dict[bytes, Span]:
    (payload,) = SpanEncoder(lambda _reason, _count: None).encode(RESOURCE, spans)
    return {span.span_id: span for span in spans_in(payload.body)}


# --- real receivers ----------------------------------------------------------------------------------


@asynccontextmanager
async def oteltap() -> AsyncGenerator[tuple[OtelTapHttpProtobufReceiver, int]]:
    port = free_port()
    async with OtelTapHttpProtobufReceiver(OtelTapHttpProtobufReceiverSettings(http_port=port)) as receiver:
        yield receiver, port


async def test_oteltap_receives_every_field(bench: Bench) -> None:
    """A receiver that is not ours decodes what we wrote: spans, metrics and logs."""
    sent = trace()
    wanted = expected(sent)

    def has(span_id: bytes) -> Callable[[Span], bool]:
        return lambda one: one.span_id == span_id

    async with oteltap() as (receiver, port):
        # The receiver keeps nothing: whoever wants a message asks before it comes.
        spans = [asyncio.create_task(receiver.await_trace(has(span_id), timeout=60)) for span_id in wanted]
        metric = asyncio.create_task(receiver.await_metric(lambda _metric: True, timeout=60))
        line = asyncio.create_task(
            receiver.await_log(lambda log: log.body.string_value == "order 17 failed", timeout=60)
        )
        await asyncio.sleep(0)
        exporter = bench.exporter(f"http://127.0.0.1:{port}", metrics_exporter="otlp")
        records = logs()
        exporter.export(Batch(RESOURCE, sent, logs=records))
        assert await asyncio.to_thread(exporter.flush, 60)
        assert await asyncio.gather(*spans) == list(wanted.values())
        _check_metric(await metric)
        assert await line == expected_logs(records)[1]
        await asyncio.to_thread(exporter.shutdown, 5)
    assert not bench.lost


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_rotel_passes_every_field_on(
    bench: Bench, collector: Collector, tmp_path: Path, protocol: Protocol, compression: str
) -> None:
    """A real collector takes traces and metrics over either protocol; what it forwards is what we sent."""
    sent = trace()
    wanted = expected(sent)
    with rotel(collector.port, tmp_path) as endpoints:
        exporter = bench.exporter(
            endpoints[protocol], protocol, otlp_compression=compression, metrics_exporter="otlp"
        )
        records = logs()
        exporter.export(Batch(RESOURCE, sent, logs=records))
        assert exporter.flush(60)
        until(lambda: len(collector.spans) >= len(wanted) and len(collector.metrics) > 0)
        until(lambda: len(collector.logs) >= len(records))
        exporter.shutdown(5)
    got = [one for path, _, body in collector.requests if path.endswith("traces") for one in spans_in(body)]
    assert {one.span_id: one for one in got} == wanted
    assert len(got) == len(wanted)
    _check_metric(collector.metrics[0])
    bodies = [body for path, _, body in collector.requests if path.endswith("traces")]
    request = ExportTraceServiceRequest.FromString(b"".join(bodies))
    attributes = {pair.key: pair.value.string_value for pair in request.resource_spans[0].resource.attributes}
    assert attributes["service.name"] == "svc"
    assert {group.scope.name for r in request.resource_spans for group in r.scope_spans} == {
        "neuronscope.server",
        "neuronscope.openai",
    }
    assert collector.logs == expected_logs(records)
    assert bench.exported["span"] == bench.exported["log"] == 2
    assert not bench.lost


def _check_metric(metric: Metric) -> None:
    assert metric.name == "gen_ai.client.operation.duration"
    (point,) = metric.histogram.data_points
    assert point.count == 1
    assert list(point.explicit_bounds) == list(names.SECONDS)
    assert point.bucket_counts[2] == 1
    assert point.attributes[0].value.int_value == 443
    assert point.exemplars[0].span_id == (0xDEF).to_bytes(8, "big")


# --- an HTTP collector that does what the test says --------------------------------------------------


@pytest.fixture
def collector() -> Iterator[Collector]:
    with serving() as collector:
        yield collector


def test_http_requests_are_what_the_settings_say(bench: Bench, collector: Collector) -> None:
    """Path, headers, credentials; one connection for all; both signals where they belong."""
    url = collector.url.replace("http://", "http://user:p%40ss@") + "/base/"
    exporter = bench.exporter(
        url, otlp_headers=(("Api-Key", "k=1"),), otlp_compression="gzip", metrics_exporter="otlp"
    )
    for _ in range(3):
        exporter.export(batch())
        assert exporter.flush(60)
    paths = Counter(path for path, _, _ in collector.requests)
    assert paths == {"/base/v1/traces": 3, "/base/v1/metrics": 3}
    _, headers, _ = collector.requests[0]
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["content-encoding"] == "gzip"
    assert headers["api-key"] == "k=1"
    assert headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert headers["user-agent"].startswith("neuronscope-otlp/")
    assert collector.connections == 2
    metrics = next(body for path, _, body in collector.requests if path.endswith("metrics"))
    request = ExportMetricsServiceRequest.FromString(metrics)
    assert request.resource_metrics[0].resource.attributes[0].value.string_value == "svc"


def test_a_service_sends_its_events_and_log_by_the_standard_variables(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: settings from the environment, the engine, the worker, and three paths of one server."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "api-key=logs")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "event_only")
    monkeypatch.setenv("NEURONSCOPE_LOGS", "export")
    canary = "zebra-canary-7731"
    with FakeOpenAI() as server, ns.Platform(service_name="svc") as platform, sync_client(server) as client:
        platform.instrument("openai")
        with ns.Scope("request"):
            logging.getLogger("app").error("going to ask")
            create: Any = client.chat.completions.create
            create(model="m", messages=[{"role": "user", "content": canary}])
        assert platform.flush(60)
    bodies: dict[str, bytes] = dict.fromkeys(("/v1/traces", "/v1/logs", "/v1/metrics"), b"")
    for path, headers, body in collector.requests:
        bodies[path] += body
        assert (headers.get("api-key") == "logs") is (path == "/v1/logs")
    assert canary.encode() in bodies["/v1/logs"]
    assert canary.encode() not in bodies["/v1/traces"] + bodies["/v1/metrics"]
    spans = {one.name: one for one in spans_in(bodies["/v1/traces"])}
    line, event = sorted(collector.logs, key=lambda log: log.event_name)
    assert (line.body.string_value, line.span_id) == ("going to ask", spans["request"].span_id)
    assert (event.event_name, event.span_id) == (names.INFERENCE_DETAILS.name, spans["chat m"].span_id)
    counted = [
        point.as_double
        for metric in collector.metrics
        if metric.name == "neuronscope.exported"
        for point in metric.sum.data_points
        if any(pair.value.string_value == "log" for pair in point.attributes)
    ]
    assert counted[-1] == 2


def test_503_then_ok_loses_nothing(bench: Bench, collector: Collector) -> None:
    """Retried with the delay that the collector asked for, counted once."""
    collector.answers = [(503, {"retry-after": "1"}, b"busy"), (429, {}, b""), OK]
    exporter = bench.exporter(collector.url)
    began = time.monotonic()
    exporter.export(batch(span("a")))
    until(lambda: bench.exported["span"] == 1)
    assert time.monotonic() - began >= 1
    assert collector.spans == ["a", "a", "a"]
    assert not bench.lost


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 301])
def test_a_refusal_is_counted_with_its_status(bench: Bench, collector: Collector, status: int) -> None:
    """Not tried again; the connection serves the next request."""
    collector.answers = [(status, {"location": "/elsewhere"}, b"no"), OK]
    exporter = bench.exporter(collector.url)
    exporter.export(batch(span(), span()))
    assert not exporter.flush(60)
    exporter.export(batch())
    assert exporter.flush(60)
    assert bench.lost == {("span", f"http_{status}"): 2}
    assert bench.exported == {"span": 1}
    assert len(collector.requests) == 2
    assert collector.connections == 1


def test_partial_success_over_http(bench: Bench, collector: Collector) -> None:
    """What the collector says it rejected is counted as lost, the rest as exported."""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 2
    response.partial_success.error_message = "too old"
    collector.answers = [(200, {}, response.SerializeToString())]
    exporter = bench.exporter(collector.url)
    exporter.export(batch(span(), span(), span()))
    assert not exporter.flush(60)
    assert bench.lost == {("span", "rejected"): 2}
    assert bench.exported == {"span": 1}


@pytest.mark.parametrize("content", [b"OK", b"{}", b"\xff" * 200_000], ids=["text", "json", "large"])
def test_odd_answers_with_success_are_success(bench: Bench, collector: Collector, content: bytes) -> None:
    """Some backends answer 200 with what they like."""
    collector.answers = [(200, {}, content)]
    exporter = bench.exporter(collector.url)
    for _ in range(2):
        exporter.export(batch())
        assert exporter.flush(60)
    assert bench.exported == {"span": 2}


def test_an_idle_connection_that_was_closed_is_replaced(bench: Bench) -> None:
    """A collector restarts between two exports: nothing is lost and nothing waits for a retry."""
    with serving() as first:
        exporter = bench.exporter(first.url)
        exporter.export(batch(span("a")))
        assert exporter.flush(60)
    with serving(first.port) as second:
        exporter.export(batch(span("b")))
        assert exporter.flush(60)
        assert second.spans == ["b"]
    assert bench.exported == {"span": 2}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_port_costs_neither_calls_nor_the_exit(bench: Bench, protocol: Protocol) -> None:
    """`export` returns at once, the exit does too, and every span is accounted for."""
    exporter = bench.exporter(f"http://127.0.0.1:{free_port()}", protocol)
    for _ in range(50):
        exporter.export(batch(span(), span()))
    began = time.monotonic()
    exporter.shutdown(60)
    assert time.monotonic() - began < 30  # nobody waits for one who does not listen
    assert sum(bench.lost.values()) == 100
    assert bench.lost["span", "collector_unreachable"] + bench.lost["span", "shutdown"] == 100


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_silent_socket_cannot_hold_the_exit(bench: Bench, protocol: Protocol) -> None:
    """It accepts and never answers; the request is given up and its thread let go."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = set(threading.enumerate())
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        exporter = bench.exporter(address, protocol, otlp_timeout_s=100)
        exporter.export(batch())
        time.sleep(0.1)
        exporter.export(batch())
        assert not exporter.flush(0.1)
        ours = {t for t in threading.enumerate() if t.name == "neuronscope-otlp"} - before
        assert len(ours) == 1
        began = time.monotonic()
        exporter.shutdown(0.5)
        assert time.monotonic() - began < 50  # the request may take longer
        assert sum(bench.lost.values()) == 2
        until(lambda: not any(t.is_alive() for t in ours))
    assert not bench.exported


def test_a_slow_collector_is_timed_out_and_tried_again(bench: Bench) -> None:
    """The request's time limit holds, and the next attempt uses a new connection."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        exporter = bench.exporter(f"http://127.0.0.1:{port}", otlp_timeout_s=0.2)
        exporter.export(batch(span("a")))
        silent.accept()[0].close()
    with serving(port) as collector:
        until(lambda: bench.exported["span"] == 1)
        assert set(collector.spans) == {"a"}
    assert not bench.lost


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_comes_back_gets_everything(bench: Bench, protocol: Protocol) -> None:
    """What gathered while it was away arrives, in order and once."""
    port = free_port()
    exporter = bench.exporter(f"http://127.0.0.1:{port}", protocol)
    for number in range(20):
        exporter.export(batch(span(str(number))))
    time.sleep(0.3)
    serve = serving if protocol == "http/protobuf" else serving_grpc
    with serve(port) as collector:
        until(lambda: bench.exported["span"] == 20)
        assert collector.spans == [str(number) for number in range(20)]
    assert not bench.lost


# --- a gRPC collector that does what the test says ---------------------------------------------------


class GrpcCollector:
    """OTLP's two services on grpcio's server, whose limit is the usual 4 MiB a message."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.metadata: list[dict[str, Any]] = []
        self.answers: list[bytes | tuple[grpc.StatusCode, tuple[tuple[str, Any], ...]]] = [b""]
        self.url = ""

    def take(self, body: bytes, context: Any) -> bytes:
        self.bodies.append(body)
        self.metadata.append(dict(context.invocation_metadata()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, bytes):
            return answer
        status, trailers = answer
        context.set_trailing_metadata(trailers)
        context.abort(status, "as the test says")
        raise AssertionError("abort raises")

    @property
    def spans(self) -> list[str]:
        return [one.name for body in self.bodies for one in spans_in(body)]


@contextmanager
def serving_grpc(port: int = 0, credentials: Any = None) -> Generator[GrpcCollector]:
    collector = GrpcCollector()
    server: Any = grpc.server(ThreadPoolExecutor(4))
    export = cast(Any, grpc).unary_unary_rpc_method_handler(collector.take)
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": export}),))
    address = f"127.0.0.1:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    collector.url = f"http{'s' if credentials else ''}://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


@pytest.fixture
def grpc_collector() -> Iterator[GrpcCollector]:
    with serving_grpc() as collector:
        yield collector


def test_no_grpc_message_reaches_four_mebibytes(bench: Bench, grpc_collector: GrpcCollector) -> None:
    """Ten spans of 1.5 MiB are split; the one that no message can hold is lost alone."""
    exporter = bench.exporter(grpc_collector.url, "grpc")
    text = "x" * (3 << 19)
    spans = [span(str(number), {"text": text}) for number in range(10)]
    spans.insert(3, span("giant", {"text": "x" * (5 << 20)}))
    exporter.export(batch(*spans))
    assert exporter.flush(30)
    assert grpc_collector.spans == [str(number) for number in range(10)]
    assert bench.lost == {("span", "too_large"): 1}
    assert bench.exported == {"span": 10}


def test_grpc_requests_carry_headers(bench: Bench, grpc_collector: GrpcCollector) -> None:
    """As metadata, in lower case; compressed when asked."""
    exporter = bench.exporter(
        grpc_collector.url, "grpc", otlp_headers=(("Api-Key", "k=1"),), otlp_compression="gzip"
    )
    exporter.export(batch())
    assert exporter.flush(60)
    assert grpc_collector.metadata[0]["api-key"] == "k=1"
    assert str(grpc_collector.metadata[0]["user-agent"]).startswith("neuronscope-otlp/")


@pytest.mark.parametrize(
    ("status", "trailers"),
    [
        (grpc.StatusCode.UNAVAILABLE, ()),
        (grpc.StatusCode.ABORTED, ()),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, (("grpc-status-details-bin", RETRY_INFO),)),
    ],
)
def test_grpc_failures_that_pass_are_tried_again(
    bench: Bench, grpc_collector: GrpcCollector, status: grpc.StatusCode, trailers: Any
) -> None:
    """By OTLP's table; an exhausted collector only when it says when to come back."""
    grpc_collector.answers = [(status, trailers), b""]
    exporter = bench.exporter(grpc_collector.url, "grpc")
    began = time.monotonic()
    exporter.export(batch(span("a")))
    until(lambda: bench.exported["span"] == 1)
    assert not trailers or time.monotonic() - began >= 1
    assert grpc_collector.spans == ["a", "a"]
    assert not bench.lost


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "grpc_invalid_argument"),
        (grpc.StatusCode.UNAUTHENTICATED, "grpc_unauthenticated"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "grpc_resource_exhausted"),
    ],
)
def test_grpc_refusals_are_counted(
    bench: Bench, grpc_collector: GrpcCollector, status: grpc.StatusCode, reason: str
) -> None:
    """No second attempt."""
    grpc_collector.answers = [(status, ())]
    exporter = bench.exporter(grpc_collector.url, "grpc")
    exporter.export(batch(span(), span()))
    assert not exporter.flush(60)
    assert bench.lost == {("span", reason): 2}
    assert len(grpc_collector.bodies) == 1


def test_partial_success_over_grpc(bench: Bench, grpc_collector: GrpcCollector) -> None:
    """The same counts as over HTTP."""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 1
    grpc_collector.answers = [response.SerializeToString()]
    exporter = bench.exporter(grpc_collector.url, "grpc")
    exporter.export(batch(span(), span()))
    assert not exporter.flush(60)
    assert bench.lost == {("span", "rejected"): 1}
    assert bench.exported == {"span": 1}


# --- TLS and fork ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", chain],
        check=True, capture_output=True,
    )  # fmt: skip
    return chain, key


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("trusted", [True, False])
def test_tls_trusts_the_configured_ca_only(
    bench: Bench, certificate: tuple[Path, Path], protocol: Protocol, trusted: bool
) -> None:
    """With its certificate the collector is heard; without, nothing is sent to it."""
    chain, key = certificate
    more = {"otlp_certificate": str(chain)} if trusted else {}
    if protocol == "grpc":
        credentials: Any = grpc.ssl_server_credentials([(key.read_bytes(), chain.read_bytes())])
        server: Any = serving_grpc(credentials=credentials)
    else:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(chain, key)
        server = serving(tls=tls)
    with server as collector:
        exporter = bench.exporter(collector.url, protocol, **more)
        exporter.export(batch(span("a")))
        assert exporter.flush(60 if trusted else 1) is trusted
        assert collector.spans == (["a"] if trusted else [])


def _child(url: str, protocol: Protocol) -> None:
    bench = Bench()
    exporter = bench.exporter(url, protocol)
    exporter.export(batch(span("child")))
    exporter.shutdown(10)
    os._exit(0 if bench.exported == {"span": 1} else 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_forked_child_makes_its_own_exporter(tmp_path: Path, protocol: Protocol) -> None:
    """While the parent's is busy: neither inherits the other's lock, connection or queue.

    In a process of its own: gRPC servers of other tests in the one that forks are no fault of ours.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    test = f"{__file__}::test_fork_of_this_process[{protocol}]"
    done = subprocess.run(
        [*command, "--basetemp", str(tmp_path / "alone"), test],
        env={**os.environ, ALONE: "1"}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


if ALONE in os.environ:  # the test above has made this process for it

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_fork_of_this_process(tmp_path: Path, protocol: Protocol) -> None:
        with _separate_collector(tmp_path) as url:
            bench = Bench()
            exporter = bench.exporter(url[protocol], protocol)
            exporter.export(batch(span("parent")))
            assert exporter.flush(60)
            process = multiprocessing.get_context("fork").Process(
                target=_child, args=(url[protocol], protocol)
            )
            process.start()
            exporter.export(batch(span("parent again")))
            process.join(60)
            if process.exitcode is None:
                process.kill()
            assert process.exitcode == 0
            exporter.shutdown(10)
            assert bench.exported == {"span": 2}


@contextmanager
def _separate_collector(folder: Path) -> Generator[dict[Protocol, str]]:
    """In a process of its own: a gRPC server in the one that forks is a fault of the test, not ours."""
    with serving() as sink, rotel(sink.port, folder) as endpoints:
        yield endpoints
