"""Messages in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common.fields import field, items, text
from neuronscope_instrumentation.common.parts import Part, blob, tool_call, without_none


def read_message(message: Any) -> Message:
    """One message, as it was sent."""
    role = text(field(message, "role")) or "user"
    content = text(field(message, "content"))
    if role == "tool":
        answer = {
            "type": "tool_call_response",
            "name": text(field(message, "tool_name")),
            "response": content,
        }
        return Message(role, [without_none(answer)])
    return Message(role, list(answer_parts(message, content)))


def answer_parts(message: Any, content: str | None) -> Iterator[Part]:
    """The parts of a message: thinking, text, pictures, tool calls."""
    thinking = text(field(message, "thinking"))
    if thinking is not None:
        yield {"type": "reasoning", "content": thinking}
    yield from prompt_parts(content, field(message, "images"))
    for call in items(field(message, "tool_calls")):
        function = field(call, "function")
        yield tool_call(None, text(field(function, "name")), field(function, "arguments"))


def prompt_parts(content: Any, images: Any) -> Iterator[Part]:
    """A text and its pictures, which are base64 by now."""
    if text(content) is not None:
        yield {"type": "text", "content": content}
    for image in items(images):
        yield blob("image", "image/*", image) if isinstance(image, str) else {"type": "blob"}
