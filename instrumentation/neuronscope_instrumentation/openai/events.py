"""Streams of the Responses API are folds over their events.

Events at the beginning and the end carry the answer as it then is; those between are only needed when a
stream does not come to its end, and where servers leave the output out of the last event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

from msgspec.structs import asdict, replace

from neuronscope.instrumentation import Endpoint, Message, Operation, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import count, document, text
from neuronscope_instrumentation.common.fields import field as read
from neuronscope_instrumentation.common.parts import Part, tool_call
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.facts import read_headers
from neuronscope_instrumentation.openai.items import item_parts, tool_name, waits_for_service
from neuronscope_instrumentation.openai.responses import (
    fetched,
    output_facts,
    read_fetch,
    read_fetched,
    read_request,
    read_response,
    schema_reason,
)

_LAST: Final = frozenset(
    {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
)
_ARGUMENTS: Final = frozenset({"arguments", "input", "code"})


@dataclass(slots=True)
class _Item:
    """An item so far: as it began or ended, and what came between."""

    start: Any = None
    done: bool = False
    kind: str = "text"
    pieces: list[str] = field(default_factory=list[str])

    def parts(self) -> list[Part]:
        if self.done or not self.pieces:
            return list(item_parts(self.start)) if self.start is not None else []
        content = "".join(self.pieces)
        if self.kind != "arguments":
            return [{"type": self.kind, "content": content}]
        return [tool_call(text(read(self.start, "call_id")), tool_name(self.start), content)]


class _Messages(Sequence[Message]):
    """The message so far, put together when it is read."""

    def __init__(self) -> None:
        self.items: dict[int, _Item] = {}
        self.reason: str | None = None

    def __len__(self) -> int:
        return 1 if self.items else 0

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        parts = [part for key in sorted(self.items) for part in self.items[key].parts()]
        whole = [Message("assistant", parts, schema_reason(self.reason))] if parts else []
        return whole[index]


class StreamedResponse(Response, frozen=True, kw_only=True):
    """An answer in the making; its pieces grow in place (a fold owns them).

    Attributes:
        so_far: what has come of the output, None where content may not be recorded.
        waits: a tool of the service was called.
        status: the answer's state, as the last event that tells it says.
        done: the provider has said that the stream is over.
    """

    so_far: _Messages | None = None
    waits: bool = False
    status: str | None = None
    done: bool = False


def fold_event(so_far: Response, event: Any, content: bool) -> Response:
    """The answer after one more event."""
    event = document(event)
    streamed = so_far if isinstance(so_far, StreamedResponse) else _start(content)
    kind = text(read(event, "type")) or ""
    if kind.endswith(".delta"):
        if streamed.so_far is not None:
            _add_piece(streamed.so_far.items, kind, event)
        return streamed
    if kind.startswith("response.output_item."):
        return _add_item(streamed, event, done=kind.endswith("done"))
    if kind == "error":
        code = text(read(event, "code")) or "error"
        return replace(streamed, done=True, extra={**streamed.extra, names.ERROR_TYPE: code})
    answer = read(event, "response")
    return streamed if answer is None else _add_answer(streamed, answer, content, done=kind in _LAST)


def _start(content: bool) -> StreamedResponse:
    messages = _Messages() if content else None
    return StreamedResponse(messages=messages, so_far=messages)


def _add_piece(found: dict[int, _Item], kind: str, event: Any) -> None:
    piece = text(read(event, "delta"))
    index = count(read(event, "output_index")) or 0
    item = found.setdefault(index, _Item())
    if piece is None or kind.startswith("response.audio."):
        return
    subject = kind.removesuffix(".delta").rpartition("_")[2]
    if subject in _ARGUMENTS:
        item.kind = "arguments"
    elif "reasoning" in kind:
        item.kind = "reasoning"
    elif "refusal" in kind:
        item.kind = "refusal"
    item.pieces.append(piece)


def _add_item(streamed: StreamedResponse, event: Any, *, done: bool) -> StreamedResponse:
    item = read(event, "item")
    if streamed.so_far is not None:
        known = streamed.so_far.items.setdefault(count(read(event, "output_index")) or 0, _Item())
        known.start, known.done = item, done
    if not done:
        return streamed
    facts = output_facts([item])
    if names.TOOLS_CALLED in facts:
        facts[names.TOOLS_CALLED] = [*streamed.extra.get(names.TOOLS_CALLED, ()), *facts[names.TOOLS_CALLED]]
    waits = streamed.waits or waits_for_service(item)
    return replace(streamed, extra={**streamed.extra, **facts}, waits=waits)


def _add_answer(streamed: StreamedResponse, answer: Any, content: bool, *, done: bool) -> StreamedResponse:
    told = {key: value for key, value in asdict(read_response(answer, content)).items() if value is not None}
    told["extra"] = {**streamed.extra, **told["extra"]}
    if told.get("finish_reasons") == ["stop"] and streamed.waits:
        told["finish_reasons"] = ["tool_calls"]  # of a server that leaves the output out of the last event
    if streamed.so_far is not None and done and "finish_reasons" in told:
        streamed.so_far.reason = told["finish_reasons"][0]
    return replace(streamed, **told, done=done, status=text(read(answer, "status")) or streamed.status)


def fold_fetched_event(so_far: Response, event: Any, content: bool) -> Response:
    """The fetched answer after one more event."""
    folded = fold_event(so_far, event, content)
    assert isinstance(folded, StreamedResponse)
    return fetched(folded, folded.status)


def has_content(event: Any) -> bool:
    """Does an event carry something the model has written: text, arguments, reasoning, sound, a picture?"""
    kind = text(read(document(event), "type")) or ""
    return kind.endswith((".delta", ".partial_image"))


def is_complete(response: Response) -> bool:
    """Did the provider say that the answer was over?"""
    return isinstance(response, StreamedResponse) and response.done


RESPONSES: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_response,
    fold_chunk=fold_event,
    is_content=has_content,
    is_complete=is_complete,
    read_error=read_error,
    read_headers=read_headers,
)
FETCH: Final = Endpoint(
    operation=Operation.FETCH_RESPONSE,
    read_request=read_fetch,
    read_response=read_fetched,
    fold_chunk=fold_fetched_event,
    is_content=has_content,
    is_complete=is_complete,
    read_error=read_error,
    read_headers=read_headers,
)
