"""Messages in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.common.parts import Part, blob, tool_call, without_none

_ROLES: Final = {"model": "assistant", "function": "tool"}


def read_content(content: Any) -> Message:
    """One content that was sent; results of tools are the tool's words."""
    parts = list(content_parts(content))
    only_results = bool(parts) and all(part["type"] == "tool_call_response" for part in parts)
    role = text(field(content, "role")) or "user"
    return Message("tool" if only_results else _ROLES.get(role, role), parts)


def content_parts(content: Any) -> Iterator[Part]:
    """The parts of a content."""
    for part in items(field(content, "parts")):
        yield _part(part)


def _part(part: Any) -> Part:
    words = field(part, "text")
    if isinstance(words, str):
        return {"type": "reasoning" if field(part, "thought") is True else "text", "content": words}
    call, result = field(part, "functionCall"), field(part, "functionResponse")
    if call is not None:
        return tool_call(text(field(call, "id")), text(field(call, "name")), field(call, "args") or None)
    if result is not None:
        answer = {
            "type": "tool_call_response",
            "id": text(field(result, "id")),
            "name": text(field(result, "name")),
            "response": field(result, "response"),
        }
        return without_none(answer)
    return _media(part)


def _media(part: Any) -> Part:
    data, file = field(part, "inlineData"), field(part, "fileData")
    if data is not None:
        kind = text(field(data, "mimeType")) or "*/*"
        return blob(_modality(kind), kind, text(field(data, "data")) or "")
    if file is not None:
        kind = text(field(file, "mimeType")) or "*/*"
        return {"type": "uri", "modality": _modality(kind), "uri": text(field(file, "fileUri")) or ""}
    return {"type": next(iter(mapping(part) or ()), "unknown")}


def _modality(mime_type: str) -> str:
    kind = mime_type.partition("/")[0]
    return kind if kind in ("image", "video", "audio") else "document"
