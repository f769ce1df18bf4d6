"""Messages in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common import parts as common
from neuronscope_instrumentation.common.fields import field, text
from neuronscope_instrumentation.common.parts import Part, address, blob, tool_call, without_none

_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "refusal": "content_filter",
}
# Tools that run at the provider.
_SERVER_TOOLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
_MODALITIES: Final = {"image": "image", "document": "document", "container_upload": "document"}


def read_message(message: Any) -> Message:
    """One message that was sent."""
    return common.message(text(field(message, "role")), content_parts(field(message, "content")))


def read_answer(blocks: Any, stop_reason: str | None) -> Message:
    """The message that came back."""
    return Message("assistant", list(content_parts(blocks)), finish_reason_name(stop_reason))


def finish_reason_name(reason: str | None) -> str | None:
    """A stop reason in the words of the message schema."""
    return None if reason is None else _FINISH.get(reason, reason)


def content_parts(content: Any) -> Iterator[Part]:
    """The parts of a message's content: a text, or a list of blocks."""
    return common.content_parts(content, _part)


def _part(block: Any) -> Part:
    kind = text(field(block, "type")) or "unknown"
    if kind == "text":
        return {"type": "text", "content": text(field(block, "text")) or ""}
    if kind == "thinking":
        return {"type": "reasoning", "content": text(field(block, "thinking")) or ""}
    if kind in _MODALITIES:
        return _media(_MODALITIES[kind], block)
    if kind.endswith("tool_use"):
        return call(kind, text(field(block, "id")), text(field(block, "name")), field(block, "input"))
    if kind.endswith("tool_result"):
        return _result(kind, block)
    return {"type": kind}


def call(kind: str, identifier: str | None, name: str | None, arguments: Any) -> Part:
    """A tool call; one that runs at the provider is told as such."""
    if isinstance(arguments, Mapping) and not arguments:
        arguments = None
    part = tool_call(identifier, name, arguments)
    if kind not in _SERVER_TOOLS:
        return part
    inner = without_none({"type": kind, "arguments": part.get("arguments")})
    return without_none(
        {"type": "server_tool_call", "id": identifier, "name": name, "server_tool_call": inner}
    )


def _result(kind: str, block: Any) -> Part:
    identifier, content = text(field(block, "tool_use_id")), field(block, "content")
    if kind == "tool_result":
        response: Any = content if isinstance(content, str) else list(content_parts(content))
        return without_none({"type": "tool_call_response", "id": identifier, "response": response})
    # What a tool of the provider has found: kind only, its documents may be anyone's.
    return without_none(
        {"type": "server_tool_call_response", "id": identifier, "server_tool_call_response": {"type": kind}}
    )


def _media(modality: str, block: Any) -> Part:
    source = field(block, "source")
    kind = text(field(source, "type"))
    if kind == "base64":
        media_type = text(field(source, "media_type")) or f"{modality}/*"
        return blob(modality, media_type, text(field(source, "data")) or "")
    if kind == "url":
        return address(modality, text(field(source, "url")) or "")
    if kind == "text":
        return {"type": "text", "content": text(field(source, "data")) or ""}
    identifier = text(field(source, "file_id")) or text(field(block, "file_id"))
    return without_none({"type": "file", "modality": modality, "file_id": identifier})
