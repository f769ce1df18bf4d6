"""The hot path of one call: open a light span, keep what the worker needs, hand it over.

Everything here runs in the service's thread.  It reads no payload and builds no attribute beyond those
that samplers may see.
"""

from __future__ import annotations

import functools
import inspect
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import context as otel_context

from neuronscope.engine import bodies, facts
from neuronscope.engine.context import take_out
from neuronscope.engine.guard import GUARD
from neuronscope.engine.sizes import held_bytes
from neuronscope.engine.streams import StreamState, observe, observe_generator
from neuronscope.instrumentation import ErrorFacts, Snapshot, Stream, WrappedMethod

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.events import Failure
    from neuronscope.engine.span import LightSpan


# HTTP statuses from here on are errors.
FAILED: Final = 400


class Call:
    """What the worker reads of a finished call."""

    __slots__ = (
        "error",
        "failure",
        "headers",
        "http",
        "method_name",
        "resends",
        "result",
        "searches",
        "snapshot",
        "start_perf_ns",
        "stream",
    )

    def __init__(self, snapshot: Snapshot, method_name: str) -> None:
        self.snapshot = snapshot
        self.method_name = method_name
        self.start_perf_ns = time.perf_counter_ns()
        self.result: Any = None
        self.error: ErrorFacts | None = None
        self.failure: Failure | None = None
        self.stream: StreamState | None = None
        self.searches: Sequence[dict[str, Any]] = ()  # by the worker: each query of a batch
        self.http: Any = None  # the response, until the call returns
        self.headers: Mapping[str, str] | None = None
        self.resends: int | None = None

    def let_go_of_response(self) -> None:
        """Keep the response's headers; its body is the result's, or the service's."""
        http, self.http = self.http, None
        if http is not None:
            self.headers = http.headers

    def keep_of_failure(self, error: BaseException) -> None:
        """Keep the headers; and if the library did not like a complete answer, the body tells what it cost."""
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

    def start_facts(self) -> dict[str, Any]:
        """The attributes that are known before the call, for samplers and for the finished span."""
        snapshot = self.snapshot
        operation = snapshot.endpoint.operation
        return dict(facts.start_facts(operation, snapshot.target, snapshot.peer, self.method_name))


class Invocation:
    """One call from its beginning to its end; every method is called through the guard."""

    __slots__ = (
        "_context",
        "_engine",
        "_method",
        "_observing",
        "_replacement",
        "_token",
        "_unwrapped",
        "_watch",
        "call",
        "site",
        "span",
    )

    def __init__(self, engine: Engine, method: WrappedMethod, site: str, span: LightSpan, call: Call) -> None:
        self._engine = engine
        self._observing = False
        self._unwrapped = False
        self._replacement: Any = None  # what the service gets instead of a generator
        self._method = method
        self.site = site
        self.span = span
        self.call = call
        self._context: otel_context.Context | None = None
        self._token: Any = None
        self._watch: Callable[[], None] | None = None

    def enter(self, context: otel_context.Context, watch: Callable[[], None] | None) -> None:
        """Make the span current for the time of the call."""
        self._watch = watch
        self._context = context
        self._token = otel_context.attach(context)

    def context(self) -> otel_context.Context:
        """The context in which the call is made."""
        return self._context if self._context is not None else otel_context.get_current()

    def give_up(self) -> bool:
        """The call was never made."""
        self.leave()
        self._engine.discard(self.span)
        return True

    def leave(self) -> None:
        """Give the caller's context back.

        A coroutine may be closed in another context than it began in; there is then nothing to give
        back, and trying would log an error.  And what the call left current on top of our span (baggage,
        say) stays, without our span.
        """
        token, self._token = self._token, None
        if token is not None:
            current = otel_context.get_current()
            if current is self._context:
                otel_context.detach(token)
            else:
                take_out(self.span, current, token)
        watch, self._watch = self._watch, None
        if watch is not None:
            GUARD.call(self.site, watch)

    def succeed(self, result: Any) -> bool:
        """The call returned: end the span now, or when the stream or raw response has been read.

        True, unless a fault of ours came between.
        """
        self.leave()
        later = False
        try:
            self.call.let_go_of_response()
            later = self._read_later(result)
            if not (later or self._unwrapped):
                unwrap = self._method.unwrap
                self.call.result = result if unwrap is None else unwrap(result)
        finally:  # a fault of ours goes to the guard; the span ends all the same
            if not later:
                self._engine.finish(self.span)
        return True

    def hand_out(self, result: Any) -> Any:
        """What the service gets: the result, or the observed generator in its place, of which we let go."""
        replacement, self._replacement = self._replacement, None
        return result if replacement is None else replacement

    def _read_later(self, result: Any) -> bool:
        """Does the result end later than the call?  If so, arrange for it."""
        method = self._method
        stream = method.stream
        if stream is not None and stream.is_stream(result):
            self._observe_stream(stream, result)
            return True
        response = None if method.body is None else method.body(result)
        if response is not None:
            return self._observe_body(response)
        return False

    def fail(self, error: BaseException) -> bool:
        """The call raised: keep type and status, never the exception or its traceback.  True, as above."""
        self.leave()
        told = GUARD.always(self.site, error_facts, error, self.call.snapshot)
        self.call.error = told if told is not None else ErrorFacts(type_name(error))
        GUARD.call(self.site, self.call.keep_of_failure, error)
        self._note(error)
        self._engine.finish(self.span)
        return True

    def finish_later(self, result: Any) -> None:
        """A raw response has been read: `result` is the parsed value, a stream, or None."""
        GUARD.call(self.site, self._finish_later, result)

    def _finish_later(self, result: Any) -> None:
        if self.span.end_time is not None or self._observing:
            return
        stream = self._method.stream
        if stream is not None and stream.is_stream(result):
            self._observe_stream(stream, result)
            return
        if isinstance(result, BaseException):
            self.call.error = error_facts(result, self.call.snapshot)
            self._note(result)
        else:
            self.call.result = result
        self._engine.finish(self.span)

    def _observe_body(self, response: Any) -> bool:
        """The service got an HTTP response: its body is the result, now or when it has been read."""
        self._unwrapped = True
        when_read = getattr(response, "when_read", None)
        if when_read is not None:
            return bool(when_read(self.finish_later))
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and status >= FAILED:
            self.call.error = ErrorFacts(str(status), status)  # the SDK will raise when it looks at it
            return False
        content = bodies.content_if_read(response)
        if content is not None:
            self.call.result = content
            return False
        decode = bodies.decoder(bodies.content_encoding(response))
        reader: bodies.BodyReader
        if bodies.is_event_stream(response):
            reader = bodies.EventReader(self._stream_state(), decode)
        elif bodies.is_line_stream(response):
            reader = bodies.LineReader(self._stream_state(), decode)
        else:
            reader = bodies.BodyCollector(self.finish_later, decode)
        return bodies.read_along(response, self.site, reader)

    def _stream_state(self) -> StreamState:
        # A foreign span is finished here and now, so its chunks have to be folded here, too.
        later = self._engine.later if self.span.foreign is None else None
        endpoint = self.call.snapshot.endpoint
        return StreamState(endpoint, self.site, self._engine.content, self._end_stream, later)

    def _observe_stream(self, stream: Stream, result: Any) -> None:
        state = self._stream_state()
        if stream.inner is not None:
            result = stream.inner(result)
        if stream.attach is not None:
            self._observing = True
            stream.attach(result, state)
            return
        if stream.get_iterator is None or stream.set_iterator is None:
            self._replacement = observe_generator(result, state)
            self._observing = True
            return
        inner = stream.get_iterator(result)
        stream.set_iterator(result, observe(inner, state))
        self._observing = True
        response = None if stream.body is None else stream.body(result)
        if response is None or not bodies.notice_close(response, self.site, bodies.CloseNotice(state)):
            close_with(result, state)

    def _end_stream(self, state: StreamState, error: BaseException | None) -> None:
        self.call.stream = state
        if error is not None:
            self.call.error = error_facts(error, self.call.snapshot)
            self._note(error)
        self._engine.finish(self.span)

    def _note(self, error: BaseException) -> None:
        """For the event of the exception, if events are wanted."""
        self.call.failure = GUARD.call("events.note", self._engine.events.note, error)


def close_with(stream: Any, state: StreamState) -> None:
    """End the observation when the service closes the stream (`with` closes it too)."""
    for name in ("close", "aclose"):
        close: Any = getattr(cast("Any", type(stream)), name, None)
        if close is None:
            continue
        try:
            setattr(stream, name, _closing(close, weakref.ref(stream), state))
        except (AttributeError, TypeError):
            return  # slots, or not weakly referable: garbage collection ends it


def _closing(close: Callable[..., Any], stream: weakref.ref[Any], state: StreamState) -> Any:
    """The stream's own `close`, noting that it was called; holds the stream weakly: no cycle."""
    if not inspect.iscoroutinefunction(close):
        return _Closing(close, stream, state)

    @functools.wraps(close)
    async def aclose(*args: Any, **kwargs: Any) -> Any:
        GUARD.always("streams.end", state.close, "client_closed")
        target = stream()
        return None if target is None else await close(target, *args, **kwargs)

    return aclose


class _Closing:
    """A `close` that copies and pickles of the stream leave out."""

    def __init__(self, close: Callable[..., Any], stream: weakref.ref[Any], state: StreamState) -> None:
        functools.update_wrapper(self, close)
        self._close = close
        self._stream = stream
        self._state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        GUARD.always("streams.end", self._state.close, "client_closed")
        stream = self._stream()
        return None if stream is None else self._close(stream, *args, **kwargs)

    def __reduce_ex__(self, protocol: object) -> Any:
        return getattr, (self._stream(), self._close.__name__)


def error_facts(error: BaseException, snapshot: Snapshot) -> ErrorFacts:
    """Type and status of a failed call, taken at once."""
    read = snapshot.endpoint.read_error
    if read is not None:
        told = GUARD.call("read_error", read, error)
        if told is not None:
            return told
    status = getattr(error, "status_code", None)
    return ErrorFacts(type_name(error), status if isinstance(status, int) else None)


def type_name(error: BaseException) -> str:
    """`error.type` of an exception: its qualified class name, without `builtins.`."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def changed_arguments(
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    arguments: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with those replaced that our copy holds differently."""
    positional = tuple(arguments.get(name, value) for name, value in zip(names, args, strict=False)) + tuple(
        args[len(names) :]
    )
    keyword = {name: arguments.get(name, value) for name, value in kwargs.items()}
    extra = {
        name: value
        for name, value in arguments.items()
        if name not in kwargs and name not in names[: len(args)]
    }
    return positional, {**keyword, **extra}
