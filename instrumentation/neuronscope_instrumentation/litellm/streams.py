"""LiteLLM's streams: their classes take their own steps, and tell whoever watches the object.

What a stream hands out has no token counts, or some that LiteLLM has estimated; what the provider has
reported lies in the stream's own list of chunks, and is read from there when the stream is over.  The stream
of the latest call is kept by LiteLLM itself (`litellm.error_logs`): one that the service drops half-read ends
with the next call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from msgspec.structs import replace

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import Response, Stream
from neuronscope_instrumentation.common.fields import field, items, mapping
from neuronscope_instrumentation.common.headers import header_reader
from neuronscope_instrumentation.openai.answers import usage
from neuronscope_instrumentation.openai.chunks import fold_chat_chunk

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.streams import StreamEnd, StreamState

HANDLER: Final = "litellm.litellm_core_utils.streaming_handler"
RESPONSES_STREAMS: Final = "litellm.responses.streaming_iterator"
_CLASSES: Final = {
    HANDLER: ("CustomStreamWrapper",),
    RESPONSES_STREAMS: (
        "ResponsesAPIStreamingIterator",
        "SyncResponsesAPIStreamingIterator",
        "MockResponsesAPIStreamingIterator",  # of a whole answer
    ),
}
_STATE: Final = "_neuronscope_state"  # on a stream: who watches it
_SITE: Final = "litellm.stream"


# LiteLLM gives the limits of all providers OpenAI's names; the others it hands on under its own.
read_headers: Final = header_reader(
    "x-ratelimit-{bound}-{unit}", ("request-id", "llm_provider-request-id", "llm_provider-x-request-id")
)


class Reported(NamedTuple):
    """What providers have reported during a stream, and with its head."""

    usages: list[Any]
    headers: Mapping[str, str]


def fold_chat(so_far: Response, chunk: Any, content: bool) -> Response:
    """The response after one more chunk; counts that LiteLLM may have estimated are left out."""
    if isinstance(chunk, Reported):
        extra = {**so_far.extra, **read_headers(chunk.headers)}
        return replace(so_far, extra=extra, **tokens(chunk.usages))
    response = fold_chat_chunk(so_far, chunk, content)
    counted = response.input_tokens is not None or response.output_tokens is not None
    return replace(response, input_tokens=None, output_tokens=None) if counted else response


def headers_of(result: Any) -> Mapping[str, str]:
    """Headers of the provider's response, as LiteLLM keeps them beside a result."""
    told = mapping(field(getattr(result, "_hidden_params", None), "additional_headers")) or {}
    return {name: str(value) for name, value in told.items() if value is not None}


def tokens(usages: Iterable[Any]) -> dict[str, int]:
    """Token counts of several reports: later ones win, and 0 stands for an unknown count."""
    found: dict[str, int] = {}
    for reported in usages:
        found |= {name: told for name, told in usage(reported).items() if told}
        written = field(reported, "cache_creation_input_tokens")
        if isinstance(written, int) and written:
            found["cache_write_tokens"] = written
    return found


def _is_stream(result: Any) -> bool:
    return any(hasattr(kind, "__neuronscope_steps__") for kind in type(result).__mro__)


def _attach(stream: Any, state: StreamState) -> None:
    vars(stream)[_STATE] = state


STREAMS: Final = Stream(is_stream=_is_stream, attach=_attach)


def install(engine: Engine, module_name: str) -> Callable[[], None]:
    """Wrap the steps of the module's stream classes; returns the undo."""
    members = vars(sys.modules[module_name])
    undos = [_wrap_class(members[name]) for name in _CLASSES[module_name] if name in members]

    def undo() -> None:
        for each in undos:
            each()

    return undo


def _wrap_class(kind: Any) -> Callable[[], None]:
    originals: dict[str, Any] = {name: vars(kind)[name] for name in _STEPS if name in vars(kind)}
    wrappers = {name: _watched(name, original) for name, original in originals.items()}
    kind.__neuronscope_steps__ = True
    for name, wrapper in wrappers.items():
        setattr(kind, name, wrapper)

    def undo() -> None:
        del kind.__neuronscope_steps__
        for name, wrapper in wrappers.items():
            if vars(kind).get(name) is wrapper:
                setattr(kind, name, originals[name])

    return undo


def _end(stream: Any, state: StreamState, end: StreamEnd) -> None:
    usages = [told for chunk in items(getattr(stream, "chunks", None)) if (told := field(chunk, "usage"))]
    headers = headers_of(stream)
    if usages or headers:
        state.chunks.append(Reported(usages, headers))
    state.close(end)


def _fail(stream: Any, state: StreamState, error: BaseException) -> None:
    if isinstance(error, StopIteration | StopAsyncIteration):
        _end(stream, state, "complete")
    else:
        state.fail(error)


class _Step:
    """One step of a stream that is watched: what it gives is a chunk, what it raises is the stream's end."""

    __slots__ = ("_state", "_stream")

    def __init__(self, stream: Any, state: StreamState) -> None:
        self._stream = stream
        self._state = state

    def __enter__(self) -> Self:
        self._state.fetching = True
        return self

    def gave(self, chunk: Any) -> Any:
        """The chunk, of which the state has been told."""
        self._state.fetching = False
        GUARD.call(_SITE, self._state.take, chunk)
        return chunk

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._state.fetching = False
        if error is not None:
            GUARD.always(_SITE, _fail, self._stream, self._state, error)


def _fetch(stream: Any) -> StreamState | None:
    return cast("StreamState | None", vars(stream).get(_STATE))


def _leave(stream: Any) -> None:
    """The stream is closed: left, unless it closes itself at its end."""
    state = _fetch(stream)
    if state is not None and not state.fetching:
        GUARD.always(_SITE, _end, stream, state, "client_closed")


# Steps of the classes, and who is to be told of what they give; nobody, of a step that gives nothing.
_STEPS: Final[Mapping[str, Callable[[Any], StreamState | None]]] = {
    "__next__": _fetch,
    "__anext__": _fetch,
    "aclose": _leave,
}


def _watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    begin = _STEPS[name]

    @functools.wraps(original)
    def step(self: Any) -> Any:
        state = begin(self)
        if state is None:
            return original(self)
        with _Step(self, state) as taken:
            return taken.gave(original(self))

    @functools.wraps(original)
    async def later(self: Any) -> Any:
        state = begin(self)
        if state is None:
            return await original(self)
        with _Step(self, state) as taken:
            return taken.gave(await original(self))

    return step if name == "__next__" else later
