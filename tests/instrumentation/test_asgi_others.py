"""Where another instrumentor makes the SERVER span, we make none: one span a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.util._once import Once
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import neuronscope as ns
from neuronscope_instrumentation.asgi.others import Others
from served import Kept, served, wait_until

pytestmark = pytest.mark.integration


async def hello(request: Request) -> Response:
    with trace.get_tracer("service").start_as_current_span("work"):
        return PlainTextResponse("hello")


def starlette(**options: Any) -> Starlette:
    return Starlette(routes=[Route("/hello/{name}", hello)], **options)


def fastapi(**options: Any) -> FastAPI:
    app = FastAPI(**options)
    app.add_api_route("/hello/{name}", _hello)
    return app


def _hello(name: str) -> str:
    with trace.get_tracer("service").start_as_current_span("work"):
        return "hello"


def otel_fastapi() -> FastAPI:
    app = fastapi()
    FastAPIInstrumentor.instrument_app(app)
    return app


@pytest.fixture(autouse=True)
def starlette_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's FastAPI instrumentor patches a class of Starlette's for the whole process."""
    monkeypatch.setattr(BackgroundTask, "_otel_original_call", BackgroundTask.__call__, raising=False)


@pytest.fixture
def kept() -> Kept:
    kept = Kept()
    ns.Platform(exporters=[kept])
    ns.instrument("uvicorn")
    return kept


@pytest.fixture
def theirs() -> InMemorySpanExporter:
    """The service's own pipeline."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def servers(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]


def trace_id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


@pytest.mark.parametrize("lifespan", ["on", "off"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: OpenTelemetryMiddleware(starlette()),
        lambda: starlette(middleware=[Middleware(OpenTelemetryMiddleware)]),
        otel_fastapi,
        fastapi,
    ],
    ids=["around", "middleware", "fastapi instrumentor", "fastapi itself"],
)
def test_service_that_traces_itself_gets_one_server_span(
    make: Callable[[], Any], lifespan: str, theirs: InMemorySpanExporter, kept: Kept
) -> None:
    """Theirs, from the first request on, whether or not the middleware stack was built before it."""
    with served(make(), lifespan=lifespan) as server:
        for _ in range(2):
            assert b"hello" in server.get("/hello/ada")
        wait_until(lambda: len(servers(theirs)) == 2)
    ns.flush()
    assert kept.servers == []
    for span in servers(theirs):
        assert span.instrumentation_scope is not None
        assert not span.instrumentation_scope.name.startswith("neuronscope")
        (work,) = [
            child
            for child in theirs.get_finished_spans()
            if child.name == "work" and trace_id_of(child) == trace_id_of(span)
        ]
        assert work.parent is not None


def test_service_with_a_pipeline_but_no_server_spans_gets_ours_in_it(
    theirs: InMemorySpanExporter, kept: Kept
) -> None:
    """In the service's own pipeline: named by route, ended before its exporter is asked."""
    with served(starlette()) as server:
        server.get("/hello/ada")
        wait_until(lambda: servers(theirs))
    (span,) = servers(theirs)
    assert span.name == "GET /hello/{name}"
    assert span.attributes is not None
    assert span.attributes["http.route"] == "/hello/{name}"
    (work,) = [child for child in theirs.get_finished_spans() if child.name == "work"]
    assert work.parent is not None
    assert span.context is not None
    assert work.parent.span_id == span.context.span_id


def test_fastapi_does_not_trace_just_because_we_are_there(kept: Kept) -> None:
    """Our provider would switch FastAPI's telemetry on, paths and query strings included: it stays off."""
    app = fastapi()
    with served(app) as server:
        for _ in range(3):
            server.get("/hello/ada?token=hunter2")
        wait_until(lambda: ns.flush() and len(kept.servers) == 3)
    assert {span.name for span in kept.spans} == {"GET /hello/{name}", "work"}
    assert {span.library for span in kept.servers} == {"neuronscope.asgi"}
    assert "hunter2" not in repr(kept.spans)


def test_fastapi_mounted_in_another_application_does_not_trace_either(kept: Kept) -> None:
    """One SERVER span, with the whole template."""
    app = Starlette()
    app.mount("/api/{version}", fastapi())
    with served(app) as server:
        server.get("/api/v1/hello/ada")
        wait_until(lambda: ns.flush() and kept.servers)
    (span,) = kept.servers
    assert span.name == "GET /api/{version}/hello/{name}"


def test_fastapi_metrics_of_the_service_stay_on(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has FastAPI's metrics and no tracer provider: it keeps the metrics, the span is ours."""
    # OpenTelemetry's global provider can be set once per process; this way it is taken back.
    monkeypatch.setattr(metrics_internal, "_METER_PROVIDER", None)
    monkeypatch.setattr(metrics_internal, "_METER_PROVIDER_SET_ONCE", Once())
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
    with served(fastapi()) as server:
        for _ in range(2):
            server.get("/hello/ada?token=hunter2")
        wait_until(lambda: ns.flush() and len(kept.servers) == 2)
    data = reader.get_metrics_data()
    assert data is not None
    found = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    (point,) = found["http.server.request.duration"].data.data_points
    assert isinstance(point, HistogramDataPoint)
    assert point.count == 2
    assert {span.library for span in kept.servers} == {"neuronscope.asgi"}
    assert "hunter2" not in repr(kept.spans)


def test_uninstrument_gives_fastapi_its_telemetry_back(kept: Kept) -> None:
    """The class is as it was."""
    from fastapi.telemetry._asgi import NativeTelemetry

    wrapped = NativeTelemetry.enabled
    ns.uninstrument("uvicorn")
    assert NativeTelemetry.enabled is not wrapped
    assert not hasattr(NativeTelemetry.enabled, "__wrapped__")
    assert not hasattr(NativeTelemetry.__call__, "__wrapped__")


def test_fastapi_that_was_told_not_to_trace_gets_our_span(theirs: InMemorySpanExporter, kept: Kept) -> None:
    """`FastAPI(telemetry={"tracing": False})`: nobody else makes one."""
    with served(fastapi(telemetry={"tracing": False})) as server:
        server.get("/hello/ada")
        wait_until(lambda: servers(theirs))
    (span,) = servers(theirs)
    assert span.name == "GET /hello/{name}"


def test_open_server_span_around_the_call_is_respected(kept: Kept) -> None:
    """A server that traces by itself calls the application inside its span."""
    import asyncio

    from neuronscope.engine import ENGINE
    from neuronscope_instrumentation.asgi.server import Seam, TracedApp

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        pass

    async def call() -> None:
        with trace.get_tracer("server").start_as_current_span("theirs", kind=SpanKind.SERVER):
            await TracedApp(app, Seam(ENGINE))({"type": "http", "method": "GET"}, None, send)  # type: ignore[arg-type]

    trace.set_tracer_provider(TracerProvider())
    asyncio.run(call())
    ns.flush()
    assert kept.servers == []


def test_application_whose_attributes_never_end_is_looked_at_briefly() -> None:
    """Objects that answer every attribute neither loop nor pass for instrumented ones."""
    from unittest.mock import MagicMock

    assert not Others(MagicMock()).trace(lambda: True)
