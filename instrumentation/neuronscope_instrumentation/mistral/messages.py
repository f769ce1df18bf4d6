"""Messages in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common import parts as common
from neuronscope_instrumentation.common.fields import field, items, text
from neuronscope_instrumentation.common.parts import Part, address, blob, thought, without_none


def read_message(message: Any) -> Message:
    """One message, as it was sent."""
    role = text(field(message, "role")) or "user"
    content = field(message, "content")
    if role == "tool":
        return Message(role, [common.tool_response(message, content_parts)])
    calls = map(common.function_call, items(field(message, "tool_calls")))
    return Message(role, [*content_parts(content), *calls])


def content_parts(content: Any) -> Iterator[Part]:
    """The parts of a content: a text, or a list of chunks."""
    return common.content_parts(content, _part)


def _part(chunk: Any) -> Part:
    kind = text(field(chunk, "type")) or "unknown"
    if kind == "text":
        return {"type": "text", "content": text(field(chunk, "text")) or ""}
    if kind == "thinking":
        return {"type": "reasoning", "content": thought(field(chunk, "thinking"))}
    if kind in ("image_url", "document_url"):
        value = field(chunk, kind)
        url = value if isinstance(value, str) else text(field(value, "url"))
        return address("image" if kind == "image_url" else "document", url or "")
    if kind == "input_audio":
        value = field(chunk, kind)
        data = value if isinstance(value, str) else text(field(value, "data"))
        return address("audio", data) if data and "://" in data else blob("audio", "audio/*", data or "")
    if kind == "file":
        return without_none(
            {"type": "file", "modality": "document", "file_id": text(field(chunk, "file_id"))}
        )
    return {"type": kind}
