"""The hot path of one call: open a light span, keep what the worker needs, hand it over.

Everything here runs in the service's thread.  It reads no payload and builds no attribute beyond those
that samplers may see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from neuronscope import compiled
from neuronscope.engine import bodies, facts
from neuronscope.engine.closing import close_with
from neuronscope.engine.context import take_out
from neuronscope.engine.current import detach
from neuronscope.engine.guard import GUARD
from neuronscope.engine.seam import MAX_PLAIN, Seam
from neuronscope.engine.sizes import held_bytes
from neuronscope.engine.streams import StreamState, observe, observe_generator
from neuronscope.instrumentation import ErrorFacts, Snapshot, Stream

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.events import Failure
    from neuronscope.engine.span import LightSpan


# HTTP statuses from here on are errors.
FAILED: Final = 400


class CallInPython:
    """What is kept of a call: the twin of a compiled class, which is made in a tenth of the time.

    Attributes:
        name: what the service calls the method, or what the call does if that does not tell.
        span: the span, until it has ended.
        context: in which the call is made.
        start_perf_ns: when it began.
        arguments: what to call with, if it is not what the service gave.
        replacement: what the service gets instead of a generator.
        result: for the adapter's reader.
        searches: what a search found, query by query, once it has been read.
        http: the HTTP response, until the call returns.
        resends: how often the request was sent again.
        quick: what of the engine the short way of `engine.entry` took, if it was taken.
    """

    __slots__ = (
        "arguments",
        "context",
        "engine",
        "error",
        "failure",
        "headers",
        "http",
        "name",
        "observing",
        "quick",
        "replacement",
        "resends",
        "result",
        "seam",
        "searches",
        "snapshot",
        "span",
        "start_perf_ns",
        "stream",
        "token",
        "watch",
    )

    def __init__(self, engine: Engine, seam: Seam, snapshot: Snapshot, start_perf_ns: int, name: str) -> None:
        self.engine = engine
        self.seam = seam
        self.snapshot = snapshot
        self.start_perf_ns = start_perf_ns
        self.name = name
        self.span: LightSpan | None = None
        self.context: otel_context.Context | None = None
        self.token: Token[otel_context.Context] | None = None
        self.watch: Callable[[], None] | None = None
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.replacement: Any = None
        self.observing = False
        self.result: Any = None
        self.error: ErrorFacts | None = None
        self.failure: Failure | None = None
        self.stream: StreamState | None = None
        self.searches: Sequence[dict[str, Any]] = ()
        self.http: Any = None
        self.headers: Mapping[str, str] | None = None
        self.resends: int | None = None
        self.quick: tuple[object, ...] | None = None


if TYPE_CHECKING:
    _Call = CallInPython
else:
    _Call = compiled.choose("Call", CallInPython)


class Invocation(_Call):
    """One call from its beginning to its end; every method is called through the guard.

    What the worker reads of it later is here, too.
    """

    __slots__ = ()

    def let_go_of_response(self) -> None:
        """Keep the response's headers; its body is the result's, or the service's."""
        http, self.http = self.http, None
        if http is not None:
            self.headers = http.headers

    def keep_of_failure(self, error: BaseException) -> None:
        """Keep the headers; and if the library did not like a complete answer, the body tells its cost."""
        http = self.http
        if http is None:
            self.headers = getattr(vars(error).get("response"), "headers", None)
        elif http.status_code < FAILED:
            self.result = bodies.content_if_read(http)
        self.let_go_of_response()

    def held_bytes(self, content: bool) -> int:
        """About how much the call keeps in memory until it has been read, beside what every call does."""
        endpoint, result = self.snapshot.endpoint, self.result
        size = held_bytes(self.snapshot.arguments) if content else 0
        if type(result) is bytes:
            size += len(result)
        elif endpoint.size is not None and result is not None:
            size += endpoint.size(result)
        return size

    def span_name(self) -> str:
        """What the span is called, unless somebody renames it."""
        snapshot = self.snapshot
        return facts.span_name(
            snapshot.endpoint.operation, snapshot.target, snapshot.method or self.seam.name
        )

    def start_facts(self) -> dict[str, Any]:
        """The attributes that are known before the call, for samplers and for the finished span."""
        snapshot = self.snapshot
        operation = snapshot.endpoint.operation
        return dict(facts.start_facts(operation, snapshot.target, snapshot.peer, self.name))

    def end(self) -> None:
        """End the span, once, and let go of it, also by the context: it holds the call until that is read."""
        span, self.span = self.span, None
        if span is not None:
            self.context = None
            self.engine.finish(span)

    def give_up(self) -> bool:
        """The call was never made."""
        self.leave()
        span, self.span = self.span, None
        if span is not None:
            self.context = None
            self.engine.discard(span)
            span.release()
        return True

    def leave(self) -> None:
        """Give the caller's context back.

        A coroutine may be closed in another context than it began in; there is then nothing to give
        back, and trying would log an error.  And what the call left current on top of our span (baggage,
        say) stays, without our span.
        """
        token = self.token
        if token is not None:
            current = otel_context.get_current()
            if current is self.context:
                detach(token)
            elif self.span is not None:
                take_out(self.span, current, token)
            self.token = None  # last: interrupted by a signal handler, it can be done again
        watch = self.watch
        if watch is not None:
            self.watch = None
            GUARD.call(self.seam.site, watch)

    def succeed(self, result: Any) -> bool:
        """The call returned: end the span now, or when the stream or raw response has been read.

        True, unless a fault of ours came between.
        """
        self.leave()
        method = self.seam.method
        later = False
        try:
            if self.http is not None:
                self.let_go_of_response()
            stream, body, kind = method.stream, method.body, result.__class__
            if kind in self.seam.plain:
                self._take(result)
            elif stream is not None and stream.is_stream(result):
                self._observe_stream(stream, result)
                later = True
            elif body is not None and (response := body(result)) is not None:
                later = self._observe_body(response)
            else:
                self._take(result)
                if method.typed and len(self.seam.plain) < MAX_PLAIN:
                    self.seam.plain.add(kind)
        finally:  # a fault of ours goes to the guard; the span ends all the same
            if not later:
                self.end()
        return True

    def _take(self, result: Any) -> None:
        unwrap = self.seam.method.unwrap
        self.result = result if unwrap is None else unwrap(result)

    def hand_out(self) -> Any:
        """What the service gets in the place of a generator, and we let go of."""
        replacement, self.replacement = self.replacement, None
        return replacement

    def fail(self, error: BaseException) -> bool:
        """The call raised: keep type and status, never the exception or its traceback.  True, as above."""
        self.leave()
        site = self.seam.site
        told = GUARD.always(site, error_facts, error, self.snapshot)
        self.error = told if told is not None else ErrorFacts(type_name(error))
        GUARD.call(site, self.keep_of_failure, error)
        self._note(error)
        self.end()
        return True

    def finish_later(self, result: Any) -> None:
        """A raw response has been read: `result` is the parsed value, a stream, or None."""
        GUARD.call(self.seam.site, self._finish_later, result)

    def _finish_later(self, result: Any) -> None:
        if self.span is None or self.observing:
            return
        stream = self.seam.method.stream
        if stream is not None and stream.is_stream(result):
            self._observe_stream(stream, result)
            return
        if isinstance(result, BaseException):
            self.error = error_facts(result, self.snapshot)
            self._note(result)
        else:
            self.result = result
        self.end()

    def _observe_body(self, response: Any) -> bool:
        """The service got an HTTP response: its body is the result, now or when it has been read."""
        when_read = getattr(response, "when_read", None)
        if when_read is not None:
            return bool(when_read(self.finish_later))
        if self.headers is None:
            self.headers = getattr(response, "headers", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status >= FAILED:
            self.error = ErrorFacts(str(status), status)  # the SDK will raise when it looks at it
            return False
        content = bodies.content_if_read(response)
        if content is not None:
            self.result = content
            return False
        decode = bodies.decoder(bodies.content_encoding(response))
        reader: bodies.BodyReader
        if bodies.is_event_stream(response):
            reader = bodies.EventReader(self._stream_state(), decode)
        elif bodies.is_frame_stream(response):
            reader = bodies.FrameReader(self._stream_state(), decode)
        elif bodies.is_line_stream(response):
            reader = bodies.LineReader(self._stream_state(), decode)
        else:
            reader = bodies.BodyCollector(self.finish_later, decode)
        return bodies.read_along(response, self.seam.site, reader)

    def _stream_state(self) -> StreamState:
        # A foreign span is finished here and now, so its chunks have to be folded here, too.
        later = self.engine.later if self.span is None or self.span.foreign is None else None
        endpoint = self.snapshot.endpoint
        return StreamState(endpoint, self.seam.site, self.engine.content, self._end_stream, later)

    def _observe_stream(self, stream: Stream, result: Any) -> None:
        state = self._stream_state()
        if stream.inner is not None:
            result = stream.inner(result)
        if stream.attach is not None:
            self.observing = True
            stream.attach(result, state)
            return
        if stream.get_iterator is None or stream.set_iterator is None:
            self.replacement = observe_generator(result, state)
            self.observing = True
            return
        inner = stream.get_iterator(result)
        stream.set_iterator(result, observe(inner, state))
        self.observing = True
        response = None if stream.body is None else stream.body(result)
        if response is None or not bodies.notice_close(response, self.seam.site, bodies.CloseNotice(state)):
            close_with(result, state)

    def _end_stream(self, state: StreamState, error: BaseException | None) -> None:
        self.stream = state
        if error is not None:
            self.error = error_facts(error, self.snapshot)
            self._note(error)
        self.end()

    def _note(self, error: BaseException) -> None:
        """For the event of the exception, if events are wanted."""
        self.failure = GUARD.call("events.note", self.engine.events.note, error)


def error_facts(error: BaseException, snapshot: Snapshot) -> ErrorFacts:
    """Type and status of a failed call, taken at once."""
    read = snapshot.endpoint.read_error
    if read is not None:
        told = GUARD.call("read_error", read, error)
        if told is not None:
            return told
    status = getattr(error, "status_code", None)
    # Some clients have a number there although no server has answered: Ollama's -1.
    return ErrorFacts(type_name(error), status if isinstance(status, int) and status >= 100 else None)


def type_name(error: BaseException) -> str:
    """`error.type` of an exception: its qualified class name, without `builtins.`."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
