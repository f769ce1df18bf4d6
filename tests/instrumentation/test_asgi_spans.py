"""What a served request looks like as a span: real uvicorn, real frameworks, real sockets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.trace import SpanKind, StatusCode
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue, SpanRecord
from served import Kept, Server, served, wait_until

pytestmark = pytest.mark.integration

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PARENT_ID = 0xB7AD6B7169203331
WORK_S = 0.05
TRACEPARENT = f"traceparent: 00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"


async def hello(request: Request) -> Response:
    with trace.get_tracer("service").start_as_current_span("work"):
        return PlainTextResponse(f"hello {request.path_params.get('name', '')}")


async def context(request: Request) -> Response:
    """Which trace the handler runs in, after a turn of the loop."""
    body = await request.body()
    await asyncio.sleep(0.01)
    current = trace.get_current_span().get_span_context()
    return JSONResponse(
        {"trace": f"{current.trace_id:032x}", "tenant": baggage.get_baggage("tenant"), "body": body.decode()}
    )


async def boom(request: Request) -> Response:
    raise ValueError("a secret of the service")


async def unavailable(request: Request) -> Response:
    return PlainTextResponse("later", status_code=503)


async def stream(request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(20):
            yield b"chunk %d\n" % number
            await asyncio.sleep(0)

    return StreamingResponse(chunks())


async def broken_stream(request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        raise ConnectionError("cut")

    return StreamingResponse(chunks())


async def endless(request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0.005)

    return StreamingResponse(chunks())


async def background(request: Request) -> Response:
    def work() -> None:
        with trace.get_tracer("service").start_as_current_span("afterwards"):
            time.sleep(WORK_S)

    return PlainTextResponse("done", background=BackgroundTask(work))


async def cancelled(request: Request) -> Response:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(10)
    return PlainTextResponse("never")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


def application(**options: Any) -> Starlette:
    inner = Starlette(routes=[Route("/items/{item}", hello)])
    return Starlette(
        routes=[
            Route("/hello/{name}", hello),
            Route("/context", context, methods=["GET", "POST"]),
            Route("/boom", boom),
            Route("/unavailable", unavailable),
            Route("/stream", stream),
            Route("/broken", broken_stream),
            Route("/endless", endless),
            Route("/background", background),
            Route("/cancelled", cancelled),
            WebSocketRoute("/socket", socket),
            Mount("/tenants/{tenant}", routes=[Mount("/inner", app=inner)]),
        ],
        **options,
    )


@pytest.fixture
def kept() -> Kept:
    kept = Kept()
    ns.Platform(exporters=[kept])
    ns.instrument("uvicorn")
    return kept


@pytest.fixture
def server(kept: Kept) -> Iterator[Server]:
    with served(application()) as server:
        yield server


def only_server_span(kept: Kept) -> SpanRecord:
    wait_until(lambda: ns.flush() and kept.servers)
    (span,) = kept.servers
    return span


def test_request_becomes_a_server_span_named_after_its_route(server: Server, kept: Kept) -> None:
    """Method, template, status, scheme and version are there; path values and the query are not."""
    assert b"hello ada" in server.get("/hello/ada?token=hunter2")
    span = only_server_span(kept)
    assert (span.name, span.kind, span.status) == ("GET /hello/{name}", SpanKind.SERVER, StatusCode.UNSET)
    # A busy machine may take a while from the end of the answer to that of the call.
    assert {key: told for key, told in span.attributes.items() if key != names.BACKGROUND_DURATION} == {
        "http.request.method": "GET",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "http.route": "/hello/{name}",
        "http.response.status_code": 200,
    }
    assert span.parent_span_id is None
    assert "hunter2" not in repr(kept.spans)
    assert "ada" not in repr(kept.spans)


def test_span_of_the_service_is_a_child_of_the_request(server: Server, kept: Kept) -> None:
    """The request's span is current while the application runs."""
    server.get("/hello/ada")
    request = only_server_span(kept)
    (work,) = [span for span in kept.spans if span.name == "work"]
    assert (work.trace_id, work.parent_span_id) == (request.trace_id, request.span_id)


def test_traceparent_and_baggage_of_the_caller_are_taken_up(server: Server, kept: Kept) -> None:
    """The caller's span is the parent, and its baggage reaches the handler."""
    answer = server.get("/context", TRACEPARENT, "tracestate: vendor=1", "baggage: tenant=blue")
    assert f'"trace":"{TRACE_ID:032x}","tenant":"blue"'.encode() in answer
    span = only_server_span(kept)
    assert (span.trace_id, span.parent_span_id, span.parent_is_remote) == (TRACE_ID, PARENT_ID, True)
    assert span.trace_state == "vendor=1"


def test_two_traceparents_are_none(server: Server, kept: Kept) -> None:
    """A request with contradicting parents starts a trace of its own."""
    server.get("/context", TRACEPARENT, TRACEPARENT.replace("b7", "b8"))
    assert only_server_span(kept).trace_id != TRACE_ID


def test_unsampled_caller_is_followed_without_a_span(server: Server, kept: Kept) -> None:
    """Head sampling is the caller's: its trace id goes on, nothing is exported as sampled."""
    answer = server.get("/context", TRACEPARENT[:-2] + "00")
    assert f"{TRACE_ID:032x}".encode() in answer
    ns.flush()
    assert all(span.trace_flags == 0 for span in kept.spans)


@pytest.mark.parametrize(
    ("path", "name", "status", "error"),
    [
        ("/nowhere/4711", "GET", 404, None),
        ("/tenants/blue/inner/items/7", "GET /tenants/{tenant}/inner/items/{item}", 200, None),
        ("/tenants/blue/inner/none", "GET /tenants/{tenant}/inner/{path}", 404, None),
        ("/unavailable", "GET /unavailable", 503, "503"),
        ("/boom", "GET /boom", 500, "ValueError"),
        ("/broken", "GET /broken", 200, "ConnectionError"),
    ],
)
def test_outcome_of_a_request(
    server: Server, kept: Kept, path: str, name: str, status: int, error: str | None
) -> None:
    """No route, mounted routes, an error status, an exception before and after the answer began."""
    server.get(path)
    span = only_server_span(kept)
    assert span.name == name
    assert span.attributes["http.response.status_code"] == status
    assert span.attributes.get("error.type") == error
    assert span.status is (StatusCode.ERROR if error else StatusCode.UNSET)
    assert "secret" not in repr(span)


def test_unknown_method_is_not_recorded(server: Server, kept: Kept) -> None:
    """A client cannot mint names."""
    server.exchange(b"BREW /hello/ada HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")
    span = only_server_span(kept)
    assert (span.name, span.attributes["http.request.method"]) == ("HTTP /hello/{name}", "_OTHER")
    assert span.attributes["http.response.status_code"] == 405


def test_streamed_response_is_one_span_until_its_end(server: Server, kept: Kept) -> None:
    """Twenty chunks, one span, nothing else."""
    assert server.get("/stream").count(b"chunk ") == 20
    span = only_server_span(kept)
    assert len(kept.spans) == 1
    assert "neuronscope.stream.end" not in span.attributes


def test_client_that_leaves_is_no_error(server: Server, kept: Kept) -> None:
    """The span ends, says that the client closed, and is not red."""
    with server.connect() as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: t\r\n\r\n")
        assert connection.recv(1024)
    span = only_server_span(kept)
    assert span.attributes["neuronscope.stream.end"] == "client_closed"
    assert span.status is StatusCode.UNSET


def test_cancelled_request_is_no_error(server: Server, kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled handler ends its span as cancelled; the context was restored without complaint."""
    server.get("/cancelled")
    span = only_server_span(kept)
    assert span.attributes["neuronscope.stream.end"] == "cancelled"
    assert "error.type" not in span.attributes
    assert "different Context" not in caplog.text


def test_background_task_belongs_to_the_request(server: Server, kept: Kept) -> None:
    """Work after the answer, in the same call, is a child; the request is over before, and tells how long."""
    server.get("/background")
    request = only_server_span(kept)
    (after,) = [span for span in kept.spans if span.name == "afterwards"]
    assert after.parent_span_id == request.span_id
    assert request.end_unix_ns <= after.start_unix_ns
    assert float(str(request.attributes[names.BACKGROUND_DURATION])) >= WORK_S
    (points,) = [f.points for f in ENGINE.metrics.collect().families if f.metric is names.HTTP_DURATION]
    (duration,) = [point.value for point in points]
    assert isinstance(duration, HistogramValue)
    assert duration.sum == pytest.approx((request.end_unix_ns - request.start_unix_ns) / 1e9)


def test_concurrent_requests_do_not_mix(server: Server, kept: Kept) -> None:
    """Fifty requests at once: each handler sees the trace of its own caller."""
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        header = f"traceparent: 00-{number:032x}-{number:016x}-01"
        answers[number] = server.get("/context", header, f"baggage: tenant=t{number}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 51)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in answers.items():
        assert f'"trace":"{number:032x}","tenant":"t{number}"'.encode() in answer
    wait_until(lambda: ns.flush() and len(kept.servers) == 50)
    assert {(span.trace_id, span.parent_span_id) for span in kept.servers} == {(n, n) for n in range(1, 51)}


@pytest.mark.parametrize("pipelined", [False, True])
def test_requests_of_one_connection_are_traces_of_their_own(
    server: Server, kept: Kept, pipelined: bool
) -> None:
    """asyncio leaks a connection's context from request to request; the trace does not follow it."""
    # More than uvicorn buffers: reading pauses, and is resumed in the task of the request.
    body = b"x" * 300_000
    post = b"POST /context HTTP/1.1\r\nhost: t\r\ncontent-length: 300000\r\n\r\n"
    last = b"GET /hello/ada HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
    with server.connect() as connection:
        if pipelined:
            connection.sendall(post + body + post + body + last)
        else:
            for _ in range(2):
                connection.sendall(post + body)
                answer = b""
                while not answer.endswith(b'x"}'):
                    answer += connection.recv(65536)
            connection.sendall(last)
        while connection.recv(65536):
            pass
    wait_until(lambda: ns.flush() and len(kept.servers) == 3)
    assert all(span.parent_span_id is None for span in kept.servers)
    assert len({span.trace_id for span in kept.servers}) == 3


def test_websocket_and_lifespan_pass_through(kept: Kept) -> None:
    """Only HTTP requests are spans; start-up and shut-down hooks run as ever."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])
        if scope["type"] == "lifespan":
            assert not trace.get_current_span().get_span_context().is_valid
            for _ in range(2):
                message = await receive()
                await send({"type": message["type"] + ".complete"})

    with served(app, lifespan="on") as server:
        asyncio.run(server.app({"type": "websocket"}, None, None))
    assert seen == ["lifespan", "websocket"]
    ns.flush()
    assert kept.spans == []


def test_factory_and_middleware_stacks_are_observed_alike(kept: Kept) -> None:
    """An application factory, and Starlette's task-spawning middleware between us and the route."""

    async def passing(request: Request, proceed: Any) -> Any:
        return await proceed(request)

    def factory() -> Starlette:
        return application(middleware=[Middleware(BaseHTTPMiddleware, dispatch=passing)])

    with served(factory, factory=True) as server:
        server.get("/hello/ada", TRACEPARENT)
        span = only_server_span(kept)
        work = next(span for span in kept.spans if span.name == "work")
    assert span.name == "GET /hello/{name}"
    assert (work.trace_id, work.parent_span_id) == (TRACE_ID, span.span_id)


@pytest.mark.filterwarnings("ignore:Uvicorn's native WSGI")
def test_wsgi_application_gets_its_span(kept: Kept) -> None:
    """uvicorn's WSGI bridge is an ASGI application like any other; there is no route to tell."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [("content-length", "2")])
        return [b"ok"]

    with served(app, interface="wsgi", lifespan="off") as server:
        assert server.get("/x/1", TRACEPARENT).endswith(b"ok")
        span = only_server_span(kept)
    assert (span.name, span.attributes["http.response.status_code"]) == ("GET", 201)
    assert span.parent_span_id == PARENT_ID


def test_scheme_is_the_one_a_trusted_proxy_names(server: Server, kept: Kept) -> None:
    """uvicorn corrects the scope after we have seen it."""
    server.get("/hello/ada", "x-forwarded-proto: https")
    assert only_server_span(kept).attributes["url.scheme"] == "https"


def test_name_that_the_service_gives_stays(kept: Kept) -> None:
    """The service may rename the span, and set attributes on it."""

    async def named(request: Request) -> Response:
        span = trace.get_current_span()
        span.update_name("checkout")
        span.set_attribute("tenant.tier", "gold")
        return PlainTextResponse("ok")

    with served(Starlette(routes=[Route("/cart/{id}", named)])) as server:
        server.get("/cart/1")
        span = only_server_span(kept)
    assert (span.name, span.attributes["tenant.tier"]) == ("checkout", "gold")
    assert span.attributes["http.route"] == "/cart/{id}"


def test_duration_is_a_metric(server: Server, kept: Kept) -> None:
    """One observation in `http.server.request.duration`, labelled by route and status."""
    from neuronscope.engine import ENGINE

    server.get("/hello/ada")
    only_server_span(kept)
    (family,) = [
        f for f in ENGINE.metrics.collect().families if f.metric.name == "http.server.request.duration"
    ]
    (point,) = family.points
    assert dict(point.labels) == {
        "http.request.method": "GET",
        "http.route": "/hello/{name}",
        "http.response.status_code": "200",
        "url.scheme": "http",
    }


def test_nothing_is_logged_as_an_error(server: Server, kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """Good requests and a client that leaves: no ERROR line anywhere."""
    with caplog.at_level(logging.ERROR):
        server.get("/hello/ada")
        server.get("/stream")
        with server.connect() as connection:
            connection.sendall(b"GET /endless HTTP/1.1\r\nhost: t\r\n\r\n")
            connection.recv(10)
        wait_until(lambda: ns.flush() and len(kept.servers) == 3)
    assert caplog.records == []
