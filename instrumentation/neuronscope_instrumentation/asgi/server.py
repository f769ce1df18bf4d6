"""The ASGI application around the service's own: one SERVER span per HTTP request.

What the span holds: method, route template, status, scheme, protocol version, error type.  Never the
path, a query string, a header, or the text of an exception.  It begins when the server calls the
application and ends when the answer has been sent, or else when that call returns; a response body adds
nothing, however many chunks it has.  Work after the answer (background tasks) still belongs to it: it is the
parent of such spans, tells how long that took, and is exported when it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from neuronscope.engine import clock
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import type_name
from neuronscope.signals import names
from neuronscope_instrumentation.asgi.others import Others
from neuronscope_instrumentation.asgi.routes import route_template

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Callable[[], Awaitable[Message]], Send], Awaitable[None]]

SITE: Final = "asgi"
LIBRARY: Final = "neuronscope.asgi"
# The methods that OpenTelemetry's HTTP conventions know; any other could be anything, and is not recorded.
METHODS: Final = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}
)
OTHER_METHOD: Final = "_OTHER"
TRACE_HEADERS: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})
# What Starlette and servers raise in the application when the client has gone: nobody's error.
CLIENT_GONE: Final = frozenset({"ClientDisconnect", "ClientDisconnected"})
BACKGROUND_NS: Final = 1_000_000  # below, it is no work after the answer but the way out of the application
# Unlike other adapters this one handles OpenTelemetry's contexts itself: a server is where they begin, and
# asyncio hands them on to requests they do not belong to; no other adapter would use what hid that.
_REQUEST: Final = otel_context.create_key("neuronscope-asgi-request")


class Seam:
    """The installation: makes wrappers, and switches all of them off at once.

    Attributes:
        active: False makes every wrapper a pass-through.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.active = True

    def wrap(self, config: Any) -> None:
        """Wrap the application that a uvicorn `Config` has loaded."""
        app = config.loaded_app
        if not isinstance(app, TracedApp):
            config.loaded_app = TracedApp(app, self)

    def open(self, others: Others, scope: Scope, send: Send) -> Request | None:
        """Begin to observe a call; None when it is no HTTP request, or somebody else's to trace."""
        if not self.active or not self.engine.active or scope["type"] != "http":
            return None
        # asyncio hands a connection's context on to later requests of the same connection (CPython issue
        # 140947, and pipelined requests): a request of ours found here is over, and no parent of this one.
        outer = otel_context.get_value(_REQUEST)
        if isinstance(outer, Request):
            if outer.scope is scope:
                return None
            token = otel_context.attach(otel_context.Context())
            try:
                return self._open(others, scope, send)
            finally:
                otel_context.detach(token)
        return None if _is_server(trace.get_current_span()) else self._open(others, scope, send)

    def _open(self, others: Others, scope: Scope, send: Send) -> Request | None:
        if others.trace(self.engine.owns_pipeline):
            return None
        method = scope.get("method")
        known = method if method in METHODS else OTHER_METHOD
        name = known if known != OTHER_METHOD else "HTTP"
        attributes: dict[str, Any] = {
            names.HTTP_REQUEST_METHOD: known,
            names.URL_SCHEME: scope.get("scheme", "http"),
        }
        if version := scope.get("http_version"):
            attributes[names.NETWORK_PROTOCOL_VERSION] = version
        opened = self.engine.open_span(name, SpanKind.SERVER, LIBRARY, attributes, trace_headers(scope))
        return None if opened is None else Request(self.engine, *opened, scope, send)


class TracedApp:
    """The service's application, observed.  Everything but the call itself is the application's own."""

    def __init__(self, app: Application, seam: Seam) -> None:
        self._neuronscope_app = app
        self._neuronscope_seam = seam
        self._neuronscope_others = Others(app)

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Message]], send: Send) -> Any:
        """Serve a request; websockets, lifespan and requests that are not ours to trace pass through."""
        app = self._neuronscope_app
        request = GUARD.call(SITE, self._neuronscope_seam.open, self._neuronscope_others, scope, send)
        if request is None:
            return await app(scope, receive, send)
        GUARD.call(SITE, request.enter)
        try:
            # An application returns None; should one return something, the server says so, not we.
            result = cast(Any, await app(scope, receive, request.send))
        except BaseException as error:
            GUARD.call(SITE, request.end, error)
            raise
        GUARD.call(SITE, request.end, None)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_neuronscope_"):  # while being copied or unpickled: there is no application yet
            raise AttributeError(name)
        return getattr(self._neuronscope_app, name)


class Request:
    """One request while it runs.  Used by the task that serves it.

    Attributes:
        scope: the server's ASGI scope, until the request ends; routers write into it.
    """

    __slots__ = (
        "_answered_ns",
        "_complete",
        "_context",
        "_engine",
        "_name",
        "_send",
        "_span",
        "_status",
        "_token",
        "scope",
    )

    def __init__(
        self, engine: Engine, span: LightSpan, context: otel_context.Context, scope: Scope, send: Send
    ) -> None:
        self.scope: Scope = scope
        self._engine = engine
        self._span = span
        self._name = span.name
        self._context = otel_context.set_value(_REQUEST, self, context)
        self._token: Token[otel_context.Context] | None = None
        self._send = send
        self._status: int | None = None
        self._complete = False
        self._answered_ns: int | None = None

    @property
    def own_pipeline(self) -> bool:
        """Does the span belong to our pipeline?"""
        return self._span.foreign is None

    def enter(self) -> None:
        """Make the span current for the application."""
        self._token = otel_context.attach(self._context)

    def send(self, message: Message) -> Awaitable[None]:
        """The server's `send`, seen: its result and exceptions are the caller's."""
        GUARD.call(SITE, self._note, message)
        return self._send_last(message) if self._complete else self._send(message)

    async def _send_last(self, message: Message) -> Any:
        result = cast(Any, await self._send(message))
        self._answered_ns = clock.wall_ns()
        return result

    def _note(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            self._complete = not message.get("more_body", False)
        elif kind == "http.response.start":
            self._status = int(message["status"])
        elif kind == "http.response.pathsend":
            self._complete = True

    def end(self, error: BaseException | None) -> None:
        """The application has returned, or raised `error`."""
        span, scope = self._span, self.scope
        # In another context this coroutine was closed from outside, and there is nothing to restore.
        if self._token is not None and otel_context.get_current() is self._context:
            otel_context.detach(self._token)
        own = span.own = dict(span.own or {})
        own[names.URL_SCHEME] = scope.get("scheme", "http")  # a proxy header may have corrected it
        route = GUARD.call("asgi.route", route_template, scope)
        if route is not None:
            own[names.HTTP_ROUTE] = route
            self._rename(f"{self._name} {route}")
        self._outcome(own, error)
        answered = self._answered_ns
        if answered is not None and (background := clock.wall_ns() - answered) >= BACKGROUND_NS:
            own[names.BACKGROUND_DURATION] = background / 1e9
        self.scope = {}
        self._engine.finish(span, answered)

    def _rename(self, name: str) -> None:
        """Name the span after its route, unless the service has given it a name."""
        target: Any = self._span.foreign or self._span
        if getattr(target, "name", self._name) == self._name:
            target.update_name(name)
            self._span.name = name

    def _outcome(self, own: dict[str, Any], error: BaseException | None) -> None:
        status = self._status
        if error is None:
            if status is not None and not self._complete:
                own[names.STREAM_END] = "client_closed"
        elif isinstance(error, asyncio.CancelledError):
            own[names.STREAM_END] = "cancelled"
        elif isinstance(error, GeneratorExit):
            own[names.STREAM_END] = "abandoned"
        elif type(error).__name__ in CLIENT_GONE:
            own[names.STREAM_END] = "client_closed"
        else:
            own[names.ERROR_TYPE] = type_name(error)
            # The server answers 500 for an application that raises before it has begun to answer.
            status = status or 500
        if status is not None:
            own[names.HTTP_RESPONSE_STATUS_CODE] = status
            if status >= 500:
                own.setdefault(names.ERROR_TYPE, str(status))


def traced_into_own_pipeline() -> bool:
    """Is the current request one that we trace, and not into a pipeline of the service's?"""
    request = otel_context.get_value(_REQUEST)
    return isinstance(request, Request) and request.own_pipeline


def trace_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """The headers that carry trace context, and no others; repeated ones joined, as HTTP has it."""
    found: dict[str, str] = {}
    for key, value in scope.get("headers", ()):
        if key in TRACE_HEADERS:
            name, text = key.decode("ascii"), value.decode("latin-1")
            found[name] = f"{found[name]},{text}" if name in found else text
    return found


def _is_server(span: trace.Span) -> bool:
    """Is this a SERVER span still open, whoever made it?"""
    return span.is_recording() and getattr(span, "kind", None) is SpanKind.SERVER
