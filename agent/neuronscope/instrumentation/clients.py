"""The contract of clients' adapters: a table of a library's methods, and pure functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from neuronscope.instrumentation.words import ErrorFacts, Operation, Peer, Request, Response

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.streams import StreamState

ReadRequest = Callable[[Mapping[str, Any], bool], Request]
ReadResponse = Callable[[Any, bool], Response]
FoldChunk = Callable[[Response, Any, bool], Response]
ReadHeaders = Callable[[Mapping[str, str]], Mapping[str, Any]]
Tell = Callable[[dict[str, Any], Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation of a client: pure readers, run by the worker after the call has returned.

    The last argument of each reader tells whether content may be read.

    Attributes:
        operation: what the call does.
        read_request: ``(snapshot, content) -> Request``; `snapshot` is what `WrappedMethod.snapshot`
            kept of the arguments.
        read_response: ``(result, content) -> Response``.
        fold_chunk: ``(response so far, chunk, content) -> Response``; a stream is a fold.
        is_content: ``(chunk) -> bool``: does the chunk carry text, tool arguments or reasoning?  The
            first that does stops time-to-first-chunk.  None: every chunk does.
        is_complete: ``(response) -> bool``: did the stream say that it was over?  One that ends without a
            word was cut off.  None: every stream that ends is whole.
        read_error: ``(exception) -> ErrorFacts``; None: the engine takes type and `status_code`.
        read_headers: ``(headers of the HTTP response) -> attributes``, where the integration has a
            `ResponseSeam`, or a method whose result is such a response.
        size: ``(result) -> bytes``: about how much a result keeps in memory until the worker has read it, for
            results that can be large; well under a microsecond, so look at lengths only.
        embedder: ``(instance, arguments by name) -> ((instance, texts) -> vectors)``: embeds other texts as
            this call embeds its own, for the embedder's fingerprint; None where another thread cannot do
            that.  The function keeps neither the instance nor the call's own texts.
        called: what the operation is called if not as the method: where a request below it is wrapped.
        tell_request: ``(attributes, arguments) -> bool``: adds what `read_request` would tell of a usual call
            without content as attributes, at once; False, with nothing added, when there is more to tell.
            Only for speed: most calls are alike, and this is a third of what a call costs the worker.
        tell_response: ``(attributes, result) -> bool``: the same of `read_response`.
    """

    operation: Operation
    read_request: ReadRequest
    read_response: ReadResponse | None = None
    fold_chunk: FoldChunk | None = None
    is_content: Callable[[Any], bool] | None = None
    is_complete: Callable[[Response], bool] | None = None
    read_error: Callable[[BaseException], ErrorFacts] | None = None
    read_headers: ReadHeaders | None = None
    size: Callable[[Any], int] | None = None
    embedder: Callable[[Any, Mapping[str, Any]], Callable[[Any, Sequence[str]], Any] | None] | None = None
    called: str | None = None
    tell_request: Tell | None = None
    tell_response: Tell | None = None


class Snapshot(Struct, frozen=True):  # made for every call
    """What the hot path keeps of a call's arguments: scalars, and references the call cannot change.

    Attributes:
        endpoint: which operation this call is.
        target: what the span is named after (model, collection), if known.
        arguments: values for `Endpoint.read_request`, copied shallowly where they could change.
        peer: who is called.
        method: the operation, where the method's name does not tell it: an SQL statement's, for example.
    """

    endpoint: Endpoint
    target: str | None
    arguments: Mapping[str, Any]
    peer: Peer
    method: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """How a method's streams are observed without changing their type.

    The engine replaces the iterator *inside* the SDK's own stream object, so `isinstance`, `close`,
    `with`, `response` and every helper stay the SDK's.

    Attributes:
        is_stream: ``(result) -> bool``.
        inner: ``(result) -> the stream object in it``, for results that are none themselves; the functions
            below get that.
        get_iterator: ``(stream) -> iterator`` of parsed chunks, sync or async.  None: the result is a
            generator, and the service gets one of the same type in its place.
        set_iterator: ``(stream, iterator)`` puts ours in its place.
        attach: ``(stream, state)``, instead of the two, where the adapter has wrapped the steps of the class:
            it tells the state of chunks and of the end.
        body: ``(stream) -> the httpx-like response below it``, whose closing ends the stream.  Without it,
            `close` and `aclose` of the stream object are watched.
    """

    is_stream: Callable[[Any], bool]
    inner: Callable[[Any], Any] | None = None
    get_iterator: Callable[[Any], Any] | None = None
    set_iterator: Callable[[Any, Any], None] | None = None
    attach: Callable[[Any, StreamState], None] | None = None
    body: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedMethod:
    """A method to wrap: where it is, what to keep of a call, how its streams look.

    Attributes:
        target: ``"module:Class.method"``, or ``"module:function"``.
        snapshot: ``(instance, arguments by name, content) -> Snapshot``, or None when this call is none
            of ours (it then runs untouched).  What ``*args`` takes is called ``*0``, ``*1``.  Runs in the
            caller's thread before the call: keep it below a microsecond or two, read no payload, consume
            nothing.
        unwrap: ``(result) -> result to read``: e.g. the parsed object inside a raw response.  It must
            not parse, read or change anything; None when there is nothing to read yet.
        stream: how to observe a streamed result.
        inject_headers: ``(instance, arguments by name, headers) -> None``: adds trace headers to *our copy*
            of the call's options, never to an object of the caller's; user headers win.
        body: ``(result) -> the httpx-like response inside a raw result``, or None.  The engine reads along
            when the service reads it: `Endpoint.read_response` gets the document, `Endpoint.fold_chunk` and
            `Endpoint.is_content` each server-sent event, as bytes.  A body of another kind has a method
            ``when_read(finish) -> bool``, and calls `finish` once, with the result or an exception.
        manager: the method is a ``@contextmanager``: its call is made when the block is entered, and what the
            block gets is the result.
        in_process: the work is done in this process (the span is INTERNAL, not CLIENT).
        model: ``(instance, arguments by name) -> model``: the in-process model whose layers are watched
            during the call.
        typed: `body` and `Stream.is_stream` look at a result's type alone: they are asked once for each type.
        optional: absent in some supported versions; `doctor` does not complain.
        awaitable: a plain function that returns a coroutine: the call is made when that is awaited.
        inherited: wrap it for this class alone although a base class defines it.
        subclasses: wrap the overrides in subclasses too, those that the library itself has and keeps beside
            the class.
        layer: the library calls other clients: the span stands only if none of theirs is observed during the
            call, which is then told, and billed, once.
        inside: the target is a decorator's wrapper; the name of its variable that holds the function to wrap.
            Then it does not matter who has imported the wrapper before us.
    """

    target: str
    snapshot: Callable[[Any, dict[str, Any], bool], Snapshot | None]
    unwrap: Callable[[Any], Any] | None = None
    stream: Stream | None = None
    inject_headers: Callable[[Any, dict[str, Any], Mapping[str, str]], None] | None = None
    body: Callable[[Any], Any] | None = None
    manager: bool = False
    in_process: bool = False
    model: Callable[[Any, Mapping[str, Any]], Any] | None = None
    typed: bool = False
    optional: bool = False
    layer: bool = False
    inside: str | None = None
    awaitable: bool = False
    inherited: bool = False
    subclasses: bool = False


@dataclass(frozen=True, slots=True)
class HandOff:
    """A method that runs a callable elsewhere; the callable gets the caller's context.

    Attributes:
        target: ``"module:Class.method"``.
        parameter: name of the parameter that holds the callable.
        package: only callables of this package: one that a library hands over itself; empty: all.
    """

    target: str
    parameter: str
    package: str = ""


@dataclass(frozen=True, slots=True)
class ResponseSeam:
    """A method that the library calls inside an observed call, with the HTTP response.

    Parsed results carry neither headers nor how often was tried; and where a library raises because it does
    not like a complete answer, only the body tells what the call has cost.

    Attributes:
        target: ``"module:Class.method"``, a plain or a coroutine function.
        response: name of the parameter that holds the httpx-like response; given by keyword.
        resends: name of the parameter that tells how often the request was sent again.
    """

    target: str
    response: str = "response"
    resends: str = "retries_taken"


@dataclass(frozen=True, slots=True)
class Gap:
    """A part of a library that works with models and is not observed; `doctor` tells it.

    Attributes:
        target: ``"module:Class.method"`` that would have to be.
        why: in a few words.
    """

    target: str
    why: str


class Kind(StrEnum):
    """What an integration observes."""

    LLM = "llm"
    EMBEDDER = "embedder"
    RERANKER = "reranker"
    VECTOR_STORE = "vector_store"
    SERVER = "server"
    FRAMEWORK = "framework"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIntegration:
    """Everything the engine needs to observe a library.

    Attributes:
        name: the adapter's name (``"openai"``).
        requires: distribution and versions it is made for (``"openai>=1.40"``); told by `doctor`, never
            enforced.
        kind: what it observes.
        modules: modules whose import triggers installation; derived from the targets if empty.
        methods: the methods to wrap.
        handoffs: callables to carry context into.
        responses: where HTTP responses are seen.
        gaps: what is known not to be observed.
        copies: methods whose result stands for their instance (``client.with_options``): when only single
            objects are instrumented, the copy is instrumented too.
        members: ``(object) -> objects that act for it`` (a collection's object for queries, say): when only
            single objects are instrumented, those are too, and whatever shares one of them.
        install: escape hatch for a library that a table cannot describe: ``(engine) -> undo``.  Called
            once all of `modules` that are going to be imported have been; must be idempotent.
    """

    name: str
    requires: str
    kind: Kind
    modules: tuple[str, ...] = ()
    methods: tuple[WrappedMethod, ...] = ()
    handoffs: tuple[HandOff, ...] = ()
    copies: tuple[str, ...] = ()
    responses: tuple[ResponseSeam, ...] = ()
    gaps: tuple[Gap, ...] = ()
    members: Callable[[Any], Iterable[Any]] | None = None
    install: Callable[[Engine, str], Callable[[], None]] | None = None
