"""Streamed messages are folds over their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import msgspec
from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope_instrumentation.anthropic.messages import call, content_parts, finish_reason_name
from neuronscope_instrumentation.anthropic.responses import (
    SENT_COUNTS,
    head,
    kept_longer,
    refused,
    tokens,
    tool_name,
    usage,
)
from neuronscope_instrumentation.common.draft import Streamed, note_call
from neuronscope_instrumentation.common.fields import count, document, text
from neuronscope_instrumentation.common.fields import field as read
from neuronscope_instrumentation.common.parts import Part, without_none


@dataclass(slots=True)
class _Block:
    """A content block that arrives in pieces."""

    kind: str = "text"
    start: Any = None
    pieces: list[str] = field(default_factory=list[str])

    def part(self) -> Part:
        content = "".join(self.pieces)
        if self.kind == "text":
            return {"type": "text", "content": content}
        if self.kind == "thinking":
            return {"type": "reasoning", "content": content}
        if self.kind.endswith("tool_use"):
            arguments = content or read(self.start, "input")
            return call(self.kind, text(read(self.start, "id")), text(read(self.start, "name")), arguments)
        return next(content_parts([self.start]))


class _Messages(Sequence[Message]):
    """The message so far, put together when it is read."""

    def __init__(self) -> None:
        self.blocks: dict[int, _Block] = {}
        self.stop_reason: str | None = None

    def __len__(self) -> int:
        return 1 if self.blocks else 0

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        parts = [self.blocks[key].part() for key in sorted(self.blocks)]
        whole = [Message("assistant", parts, finish_reason_name(self.stop_reason))] if parts else []
        return whole[index]


class StreamedMessage(Streamed, frozen=True, kw_only=True):
    """A message in the making; its pieces grow in place (a fold owns them).

    Attributes:
        counts: token counts in Anthropic's words; later events replace earlier ones, none adds up.
    """

    counts: dict[str, int] = msgspec.field(default_factory=dict[str, int])


def fold_message_event(so_far: Response, event: Any, content: bool) -> Response:
    """The response after one more event."""
    event = document(event)
    streamed = so_far if isinstance(so_far, StreamedMessage) else _start(content)
    kind = read(event, "type")
    changes: dict[str, Any] = {}
    if kind == "message_start":
        message = read(event, "message")
        changes = {
            **head(message),
            **without_none({"service_tier": text(read(read(message, "usage"), "service_tier"))}),
        }
        # Its output tokens are a placeholder; the count comes with `message_delta`.
        started = usage(read(message, "usage"))
        _count(streamed, changes, {key: value for key, value in started.items() if key in SENT_COUNTS})
    elif kind == "message_delta":
        _count(streamed, changes, usage(read(event, "usage")))
        reason = text(read(read(event, "delta"), "stop_reason"))
        if reason is not None:
            changes["finish_reasons"] = [reason]
            changes["extra"] = {**changes.get("extra", streamed.extra), **refused(reason)}
            if isinstance(streamed.messages, _Messages):
                streamed.messages.stop_reason = reason
    elif kind == "content_block_start":
        note_call(streamed, changes, read(event, "index"), tool_name(read(event, "content_block")))
    if kind in _BLOCK_EVENTS and isinstance(streamed.messages, _Messages):
        _fold_block(streamed.messages.blocks, kind, event)
    return replace(streamed, **changes) if changes else streamed


_BLOCK_EVENTS = frozenset({"content_block_start", "content_block_delta"})


def _start(content: bool) -> StreamedMessage:
    return StreamedMessage(messages=_Messages() if content else None)


def _count(streamed: StreamedMessage, changes: dict[str, Any], counts: dict[str, int]) -> None:
    streamed.counts.update(counts)
    changes.update(tokens(streamed.counts))
    longer = kept_longer(streamed.counts)
    if longer:
        changes["extra"] = {**streamed.extra, **longer}


def _fold_block(blocks: dict[int, _Block], kind: Any, event: Any) -> None:
    index = count(read(event, "index"))
    if index is None:
        return
    if kind == "content_block_start":
        start = read(event, "content_block")
        block = blocks[index] = _Block(text(read(start, "type")) or "unknown", start)
        piece = text(read(start, "text")) or text(read(start, "thinking"))
    elif kind == "content_block_delta":
        delta = read(event, "delta")
        # Some gateways leave the start out, or send it late.
        block = blocks.setdefault(index, _Block(_KINDS.get(text(read(delta, "type")) or "", "text")))
        piece = next(filter(None, (text(read(delta, name)) for name in _PIECES)), None)
    else:
        return
    if piece is not None:
        block.pieces.append(piece)


_PIECES = ("text", "thinking", "partial_json")
_KINDS = {"thinking_delta": "thinking", "signature_delta": "thinking", "input_json_delta": "tool_use"}
_CONTENT_DELTAS = frozenset({"text_delta", "thinking_delta", "input_json_delta"})


def has_content(event: Any) -> bool:
    """Does an event carry something the model has written: text, thinking, a tool call, a tool's result?"""
    event = document(event)
    kind = read(event, "type")
    if kind == "content_block_delta":
        return read(read(event, "delta"), "type") in _CONTENT_DELTAS
    return kind == "content_block_start" and read(read(event, "content_block"), "type") not in (
        "text",
        "thinking",
    )


def is_complete(response: Response) -> bool:
    """Did the message say why it stopped?"""
    return response.finish_reasons is not None
