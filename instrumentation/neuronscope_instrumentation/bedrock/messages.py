"""Messages of the Converse API in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common import parts as common
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.common.parts import Part, blob, tool_call, without_none

_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_call",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
    # of Titan, Llama, Cohere and Mistral models
    "FINISH": "stop",
    "COMPLETE": "stop",
    "LENGTH": "length",
    "MAX_TOKENS": "length",
    "CONTENT_FILTERED": "content_filter",
    "tool_calls": "tool_call",
}
_MODALITIES: Final = ("image", "video", "audio", "document")


def finish_reason_name(reason: str | None) -> str | None:
    """A stop reason in the words of the message schema."""
    return None if reason is None else _FINISH.get(reason, reason)


def read_message(message: Any) -> Message:
    """One message that was sent."""
    return common.message(text(field(message, "role")), content_parts(field(message, "content")))


def read_answer(message: Any, reason: str | None) -> Message:
    """The message that came back."""
    return Message("assistant", list(content_parts(field(message, "content"))), finish_reason_name(reason))


def content_parts(content: Any) -> Iterator[Part]:
    """The parts of a message's content: blocks, each of which has one key that tells its kind."""
    return common.content_parts(content, _part)


def _part(block: Any) -> Part:
    kind, value = next(iter((mapping(block) or {"unknown": None}).items()))
    if kind == "text":
        return {"type": "text", "content": text(value) or ""}
    if kind == "citationsContent":
        said = (text(field(piece, "text")) or "" for piece in items(field(value, "content")))
        return {"type": "text", "content": "".join(said)}
    if kind == "reasoningContent":
        return {"type": "reasoning", "content": text(field(field(value, "reasoningText"), "text")) or ""}
    if kind in _MODALITIES:
        return _media(kind, value)
    if kind == "toolUse":
        return tool_call(text(field(value, "toolUseId")), text(field(value, "name")), field(value, "input"))
    if kind == "toolResult":
        return without_none(
            {
                "type": "tool_call_response",
                "id": text(field(value, "toolUseId")),
                "response": list(content_parts(field(value, "content"))),
            }
        )
    if kind == "json":
        return {"type": "json", "content": value}
    return {"type": kind}


def _media(modality: str, value: Any) -> Part:
    source = mapping(field(value, "source")) or {}
    uri = text(field(source.get("s3Location"), "uri"))
    if uri is not None:
        return {"type": "uri", "modality": modality, "uri": uri}
    kind = f"{modality}/{text(field(value, 'format')) or '*'}"
    data = source.get("bytes")
    if isinstance(data, bytes):
        digest = hashlib.sha256(data).hexdigest()
        return {"type": "blob", "modality": modality, "mime_type": kind, "size": len(data), "sha256": digest}
    return blob(modality, kind, data) if isinstance(data, str) else {"type": modality}


def tool_definition(tool: Any) -> Mapping[str, Any]:
    """A tool's definition: type and name, as the semantic conventions want by default."""
    name = text(field(field(tool, "toolSpec"), "name")) or text(field(field(tool, "systemTool"), "name"))
    return without_none({"type": "function", "name": name or text(field(tool, "name"))})
