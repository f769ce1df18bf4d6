"""Messages in OpenTelemetry's schema.  Only called when content may be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common.fields import field, items, text
from neuronscope_instrumentation.common.parts import Part, address, blob, thought, tool_call, tool_response

_ROLES: Final = {"developer": "system", "function": "tool"}
_FINISH: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}


def read_message(message: Any, finish_reason: str | None = None) -> Message:
    """One message, sent or received."""
    role = text(field(message, "role")) or "assistant"
    parts = list(_tool_result(message) if role in ("tool", "function") else _parts(message))
    return Message(_ROLES.get(role, role), parts, finish_reason_name(finish_reason))


def finish_reason_name(reason: str | None) -> str | None:
    """A finish reason in the words of the message schema."""
    return None if reason is None else _FINISH.get(reason, reason)


def reasoning(message: Any) -> str | None:
    """The reasoning that servers of other makes add to a message or delta."""
    return text(field(message, "reasoning_content")) or text(field(message, "reasoning"))


def _parts(message: Any) -> Iterator[Part]:
    thoughts = reasoning(message)
    if thoughts is not None:
        yield {"type": "reasoning", "content": thoughts}
    yield from _content(field(message, "content"))
    refusal = text(field(message, "refusal"))
    if refusal is not None:
        yield {"type": "refusal", "content": refusal}
    audio = field(message, "audio")
    if audio is not None:
        yield from _audio_answer(audio)
    for call in items(field(message, "tool_calls")):
        yield _tool_call(call)
    function = field(message, "function_call")
    if function is not None:
        yield tool_call(None, text(field(function, "name")), text(field(function, "arguments")))


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield {"type": "text", "content": content}
        return
    for part in items(content):
        yield _part(part)


def _part(part: Any) -> Part:
    kind = text(field(part, "type")) or "unknown"
    value = field(part, kind)
    if kind == "thinking":  # Mistral's
        return {"type": "reasoning", "content": thought(value)}
    if kind in ("text", "refusal"):
        return {"type": kind, "content": text(value) or ""}
    if kind == "image_url":
        return address("image", text(field(value, "url")) or "")
    if kind == "input_audio":
        return blob("audio", f"audio/{text(field(value, 'format')) or '*'}", text(field(value, "data")) or "")
    if kind == "file":
        identifier = text(field(value, "file_id"))
        if identifier is not None:
            return {"type": "file", "modality": "document", "file_id": identifier}
        return address("document", text(field(value, "file_data")) or "")
    return {"type": kind}


def _tool_result(message: Any) -> Iterator[Part]:
    yield tool_response(message, _content)


def _tool_call(call: Any) -> Part:
    function, custom = field(call, "function"), field(call, "custom")
    arguments = field(function, "arguments") if function is not None else field(custom, "input")
    name = field(function if function is not None else custom, "name")
    return tool_call(text(field(call, "id")), text(name), text(arguments))


def _audio_answer(audio: Any) -> Iterator[Part]:
    transcript, data = text(field(audio, "transcript")), text(field(audio, "data"))
    if transcript is not None:
        yield {"type": "text", "content": transcript}
    if data is not None:
        yield blob("audio", "audio/*", data)
    elif (identifier := text(field(audio, "id"))) is not None:
        yield {"type": "file", "modality": "audio", "file_id": identifier}
