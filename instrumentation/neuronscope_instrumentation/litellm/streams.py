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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

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
_STEPS: Final = "__next__", "__anext__", "aclose"


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
    wrappers = {name: _WRAPPERS[name](original) for name, original in originals.items()}
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


def _state_of(stream: Any) -> StreamState | None:
    return cast("StreamState | None", vars(stream).get(_STATE))


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any) -> Any:
        state = _state_of(self)
        if state is None:
            return original(self)
        state.fetching = True
        try:
            chunk = original(self)
        except BaseException as error:
            GUARD.always("litellm.stream", _fail, self, state, error)
            raise
        finally:
            state.fetching = False
        GUARD.call("litellm.stream", state.take, chunk)
        return chunk

    return step


def _anext(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def step(self: Any) -> Any:
        state = _state_of(self)
        if state is None:
            return await original(self)
        state.fetching = True
        try:
            chunk = await original(self)
        except BaseException as error:
            GUARD.always("litellm.stream", _fail, self, state, error)
            raise
        finally:
            state.fetching = False
        GUARD.call("litellm.stream", state.take, chunk)
        return chunk

    return step


def _aclose(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def aclose(self: Any) -> Any:
        state = _state_of(self)
        if state is not None and not state.fetching:  # what closes itself at its end was not left
            GUARD.always("litellm.stream", _end, self, state, "client_closed")
        return await original(self)

    return aclose


_WRAPPERS: Final = {"__next__": _next, "__anext__": _anext, "aclose": _aclose}
