"""Messages in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common import parts as common
from neuronscope_instrumentation.common.fields import field, items, text
from neuronscope_instrumentation.common.parts import Part, address

_ROLES: Final = {"chatbot": "assistant"}


def read_message(message: Any) -> Message:
    """One message of version 2, as it was sent."""
    role = text(field(message, "role")) or "user"
    if role == "tool":
        return Message(role, [common.tool_response(message, content_parts)])
    return Message(role, list(answer_parts(message)))


def read_turn(turn: Any) -> Message:
    """One turn of a version 1 history."""
    role = (text(field(turn, "role")) or "user").lower()
    words = text(field(turn, "message"))
    parts: list[Part] = [] if words is None else [{"type": "text", "content": words}]
    return Message(_ROLES.get(role, role), parts)


def answer_parts(message: Any) -> Iterator[Part]:
    """The parts of a message of version 2: thinking, what it plans to do with tools, text, tool calls."""
    plan = text(field(message, "tool_plan"))
    if plan is not None:
        yield {"type": "reasoning", "content": plan}
    yield from content_parts(field(message, "content"))
    yield from map(common.function_call, items(field(message, "tool_calls")))


def content_parts(content: Any) -> Iterator[Part]:
    """The parts of a content: a text, or a list of blocks."""
    return common.content_parts(content, _part)


def _part(block: Any) -> Part:
    kind = text(field(block, "type")) or "unknown"
    if kind == "text":
        return {"type": "text", "content": text(field(block, "text")) or ""}
    if kind == "thinking":
        return {"type": "reasoning", "content": text(field(block, "thinking")) or ""}
    if kind == "image_url":
        value = field(block, "image_url")
        return address("image", text(field(value, "url")) or "")
    return {"type": kind}
