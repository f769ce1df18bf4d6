"""The contracts of adapters: what a client library and a model runtime must tell us.

**Clients** (LLM APIs, embedders, vector stores) are data plus small pure functions: a
`ClientIntegration` names methods and how to read them.  The engine does everything else: wrapping,
spans, clocks, context, streams, metrics, content policy, errors, uninstrumenting.

**Model runtimes** implement `BackendAdapter`.

An adapter imports nothing from OpenTelemetry and, at module level, nothing from the library it
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import LayerSpec, TensorSnapshot

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.streams import StreamState


class Operation(StrEnum):
    """What a call does.  GenAI operations carry OpenTelemetry's names."""

    CHAT = "chat"
    TEXT_COMPLETION = "text_completion"
    GENERATE_CONTENT = "generate_content"
    EMBEDDINGS = "embeddings"
    MODERATION = "moderation"  # a verdict on texts or images; not one of OpenTelemetry's names
    INFERENCE = "inference"  # a run of a model that is no language model; not one of OpenTelemetry's names
    TRAIN = "train"  # a trainer's call, and its other one; not OpenTelemetry's names
    EVALUATE = "evaluate"
    TOKENIZE = "tokenize"  # texts to tokens, and back: neither a model's call nor OpenTelemetry's names
    DETOKENIZE = "detokenize"
    FETCH_RESPONSE = "fetch_response"  # of a call that was made before: its tokens are not counted again
    RETRIEVAL = "retrieval"
    RERANK = "rerank"
    STORE = "store"  # a vector store call that is not a similarity search


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in OpenTelemetry's message schema.

    Attributes:
        role: system, user, assistant or tool.
        parts: dictionaries with a ``type`` (``text``, ``reasoning``, ``tool_call``,
            ``tool_call_response``, ``blob``, ``uri``, …).
        finish_reason: on output messages.
    """

    role: str
    parts: Sequence[Mapping[str, Any]]
    finish_reason: str | None = None


class Stage(NamedTuple):
    """One step of a search that has several, such as the halves of a hybrid search and their fusion.

    Attributes:
        kind: how it ranks: ``dense``, ``sparse``, ``bm25``, ``rrf``, ``rerank`` and so on.
        name: of the vector it searches, or of the model that ranks.
        k: hits it hands on, if the request says.
    """

    kind: str
    name: str | None = None
    k: int | None = None


class Query(Struct, frozen=True, kw_only=True):
    """One query of a search.  What is unset is as the request says, or unknown.

    Attributes:
        vector: dense vector searched with: read for dimension, norm and fingerprint, and itself recorded only
            with content.
        text: content.
    """

    vector: Any = None
    text: str | None = None
    k: int | None = None
    filtered: bool | None = None
    metric: str | None = None
    stages: Sequence[Stage] | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What was asked, in our words.  Unset fields are unknown and produce nothing.

    Content fields (`messages`, `inputs`, `query_text`, `Query.text`) are filled only when the engine asks for
    content.
    """

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_sequences: Sequence[str] | None = None
    choice_count: int | None = None
    output_type: str | None = None
    encoding_formats: Sequence[str] | None = None
    dimensions: int | None = None
    conversation_id: str | None = None
    service_tier: str | None = None
    message_count: int | None = None
    input_count: int | None = None
    api_type: str | None = None
    # content
    messages: Sequence[Message] | None = None
    system: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    inputs: Sequence[str] | None = None  # texts to embed; never recorded, read for their structure
    # retrieval
    collection: str | None = None
    namespace: str | None = None
    k: int | None = None
    filtered: bool | None = None
    query_text: str | None = None  # of a reranking; a search has it in `queries`
    queries: Sequence[Query] | None = None  # what was searched with; in order, one record each
    metric: str | None = None  # as in `Response`, for stores whose request or collection tells it
    stages: Sequence[Stage] | None = None
    write_count: int | None = None
    # anything else worth an attribute of the registry, by key
    extra: Mapping[str, Any] = {}


class Hit(Struct, frozen=True):
    """One retrieved document; `score` is as the store returned it.

    Attributes:
        id: empty if the store does not tell.
        metadata: its keys are recorded, its values with content only.
        text: the document, content.
    """

    id: str
    score: float | None
    metadata: Mapping[str, Any] | None = None
    text: str | None = None


class Response(Struct, frozen=True, kw_only=True):
    """What came back, in our words.  For streams the value that `fold_chunk` builds up.

    Token counts follow OpenTelemetry: `input_tokens` includes cached ones.  A count that the
    provider did not report is None, never an estimate.
    """

    model: str | None = None
    id: str | None = None
    finish_reasons: Sequence[str] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    dimensions: int | None = None
    messages: Sequence[Message] | None = None
    # retrieval: one list of hits per query
    hits: Sequence[Sequence[Hit]] | None = None
    metric: str | None = None  # how to read scores: a name in `neuronscope.signals.scores.SCALES`
    returned: int | None = None
    extra: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What a failed call tells: a low-cardinality type, an HTTP status, and what was billed."""

    type: str
    status_code: int | None = None
    response: Response | None = None


class Peer(NamedTuple):  # made on the hot path, where a frozen dataclass costs a microsecond more
    """Who is called: OpenTelemetry provider name (or database system), host and port."""

    provider: str
    address: str | None = None
    port: int | None = None


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


# What takes a snapshot of each run.  An attribute `needs` (a `Fidelity`) may say how much it will ask for at
# most: statistics (`SUMMARY`), or only that the layer ran (`CRITICAL`).  Runtimes that must decide before a
# program is compiled heed it.
LayerCallback = Callable[[TensorSnapshot], None]


@runtime_checkable
class BackendAdapter(Protocol):
    """A model runtime, as the platform sees it (the customer's protocol, word for word).

    Rules that one contract suite holds every adapter to: `matches` is cheap and imports nothing;
    `list_layers` is deterministic and its ids are the runtime's own dotted paths; observing changes no
    output, gradient, dtype, device or random state, and a raising callback never reaches the model;
    installing twice on one layer gives two observers; `remove_hooks` is idempotent and restores the
    object exactly; hooks hold the model weakly; the fingerprint depends on architecture and weights
    only.
    """

    name: str

    def matches(self, model_obj: Any) -> bool:
        """True if this adapter handles the object."""
        ...

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The layers a probe can watch."""
        ...

    def install_observer_hook(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> None:
        """Call `callback` with a snapshot of the layer's output each time it runs."""
        ...

    def remove_hooks(self, model_obj: Any) -> None:
        """Remove every observer this adapter installed on the object."""
        ...

    def fingerprint_model(self, model_obj: Any) -> str:
        """A stable fingerprint of architecture and weights."""
        ...


@runtime_checkable
class ObservingBackend(BackendAdapter, Protocol):
    """A backend that the platform can also watch selectively; our own runtimes are of this kind.

    Of a plain `BackendAdapter` only all hooks can be removed at once, so scopes share them.
    """

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one layer; the function returned undoes just this, once, from any thread.

        Raises:
            LayerNotFoundError: the model has no such layer.
        """
        ...

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Ids of the layers a pattern names, in the model's order: `*` within a part, `**` across parts.

        Raises:
            LayerNotFoundError: none; the message names what is close.
        """
        ...

    def block_paths(self, model_obj: Any) -> list[str]:
        """Ids of the repeated encoder or decoder blocks: what is worth watching by default."""
        ...

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Why watched layers were not `seen`: ``fused``, ``scripted``, ``compiled`` or ``not run``."""
        ...


@runtime_checkable
class GradientBackend(Protocol):
    """A backend that can also show gradients."""

    def observe_gradient(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Call `callback` with the gradient by each of the layer's outputs; returns the undo of just this.

        A run whose output has no gradient gives a snapshot that refuses to be read, with the reason.
        """
        ...


@runtime_checkable
class AttentionBackend(Protocol):
    """A backend that can also show attention weights."""

    def observe_attention(
        self, model_obj: Any, layer_id: str, callback: LayerCallback, heads: Sequence[int] | None
    ) -> Callable[[], None]:
        """Call `callback` with each run's weights, (batch, head, query, key); returns the undo of this.

        A run that shows none gives a snapshot that refuses to be read, with the reason.
        """
        ...


@runtime_checkable
class LearningBackend(Protocol):
    """A backend whose models may show what layers they have only when they run.

    Its wrapped models are watched in each scope, as `NEURONSCOPE_PROBES` says: probes cannot be attached to
    layers that are not known yet.
    """

    def prepare(self) -> None:
        """A model was wrapped: scopes will watch it."""
        ...

    def observe_pattern(
        self, model_obj: Any, pattern: str, make: Callable[[str], LayerCallback], needs: Fidelity
    ) -> Callable[[], None]:
        """Watch every layer that a pattern (or ``blocks``) turns out to name; returns the undo of just this.

        `make` gives the callback of a layer, the first time it runs; `needs` is the most they will ask for.
        """
        ...


@runtime_checkable
class NamingBackend(Protocol):
    """A backend that also knows what its models are called: by their files, say."""

    def name_model(self, model_obj: Any) -> str:
        """The model's name in records, for people."""
        ...


@runtime_checkable
class ExaminableBackend(Protocol):
    """A backend that stands on names of its library that no release has promised to keep.

    `neuronscope doctor` shows those that the installed version lacks.
    """

    def private_names(self) -> Mapping[str, bool]:
        """Such names, and whether the installed version has them; imports the library.

        Raises:
            ImportError: the library cannot be imported.
        """
        ...


@runtime_checkable
class PreparingBackend(Protocol):
    """A backend that has something to load before the first of its models is watched."""

    def prepare(self) -> None:
        """Load it, if the framework is loaded: asked when a library that runs models has been imported.

        In the first call instead, the service would wait for it, and observation be charged for it.
        """
        ...


@runtime_checkable
class DescribingBackend(Protocol):
    """A backend that also tells how a model is adapted, stored and distributed."""

    def describe_model(self, model_obj: Any) -> Mapping[str, Any]:
        """Attributes of the registry for the spans of the model's calls; a few µs, asked at each call."""
        ...
