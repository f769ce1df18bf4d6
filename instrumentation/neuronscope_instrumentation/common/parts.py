"""Parts of messages in OpenTelemetry's schema.

Binary parts become their size and SHA-256: megabytes of base64 help nobody in a trace.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common.fields import field, items, text

Part = Mapping[str, Any]
# Characters of base64 decoded in one go: between two slices other threads can run.
_SLICE: Final = 1 << 20


def without_none(part: Mapping[str, Any]) -> dict[str, Any]:
    """The part without what is unknown."""
    return {key: value for key, value in part.items() if value is not None}


def content_parts(content: Any, read_block: Callable[[Any], Part]) -> Iterator[Part]:
    """The parts of a content that is a text, or a list of blocks."""
    if isinstance(content, str):
        if content:
            yield {"type": "text", "content": content}
        return
    for block in items(content):
        yield read_block(block)


def message(role: str | None, content: Iterable[Part]) -> Message:
    """One message; results of tools alone are the tool's words, though sent as the user's."""
    parts = list(content)
    only_results = bool(parts) and all(part["type"] == "tool_call_response" for part in parts)
    return Message("tool" if only_results else role or "user", parts)


def thought(thinking: Any) -> str:
    """The words of a part that Mistral's models think in: a text, or parts of one."""
    pieces = [thinking] if isinstance(thinking, str) else [field(each, "text") for each in items(thinking)]
    return "".join(piece for piece in pieces if isinstance(piece, str))


def tool_response(message: Any, read_content: Callable[[Any], Iterator[Part]]) -> Part:
    """What a tool has answered, from a message of the role ``tool``."""
    content = field(message, "content")
    response: Any = content if isinstance(content, str) else list(read_content(content))
    answer = {"type": "tool_call_response", "id": text(field(message, "tool_call_id")), "response": response}
    return without_none(answer)


def function_call(call: Any) -> Part:
    """A tool call whose name and arguments are those of a `function`."""
    function = field(call, "function")
    return tool_call(text(field(call, "id")), text(field(function, "name")), field(function, "arguments"))


def tool_call(identifier: str | None, name: str | None, arguments: Any) -> Part:
    """A tool call; arguments that are JSON text become what they say."""
    call = {"type": "tool_call", "id": identifier, "name": name, "arguments": parsed(arguments)}
    return without_none(call)


def parsed(arguments: Any) -> Any:
    """JSON text as what it says; anything else as it is."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments:
        return None
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments  # a custom tool's input, or a call that was cut off


def address(modality: str, address: str) -> Part:
    """A web address as it is; a `data:` address by what is in it."""
    if not address.startswith("data:"):
        return {"type": "uri", "modality": modality, "uri": address}
    header, _, data = address.partition(",")
    return blob(modality, header[len("data:") :].partition(";")[0], data)


def blob(modality: str, mime_type: str, base64_text: str) -> Part:
    """Binary content, given as base64: its size and SHA-256."""
    size, digest = _measure(base64_text)
    return {"type": "blob", "modality": modality, "mime_type": mime_type, "size": size, "sha256": digest}


def _measure(base64_text: str) -> tuple[int, str]:
    """Size and SHA-256 of what base64 text stands for; of the text itself if it is not base64."""
    digest, size = hashlib.sha256(), 0
    try:
        for start in range(0, len(base64_text), _SLICE):
            data = binascii.a2b_base64(base64_text[start : start + _SLICE])
            digest.update(data)
            size += len(data)
    except ValueError:  # not base64, or not ASCII
        raw = base64_text.encode("utf-8", "replace")
        return len(raw), hashlib.sha256(raw).hexdigest()
    return size, digest.hexdigest()
