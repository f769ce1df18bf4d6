"""Items of the Responses API as messages in OpenTelemetry's schema.

A conversation is a list of items there: messages, reasoning, tool calls and their results, each of its own
type.  Parts are made only where content may be recorded; names of tools always.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from neuronscope.instrumentation import Message
from neuronscope_instrumentation.common.fields import field, items, text
from neuronscope_instrumentation.common.parts import (
    Part,
    address,
    blob,
    content_parts,
    parsed,
    tool_call,
    without_none,
)

_ROLES: Final = {"developer": "system"}
# Tool calls that the service has to carry out: where each type keeps its arguments.
_CALLS: Final = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
# Those that the provider carries out itself.
_SERVER_CALLS: Final = {
    "web_search_call": "action",
    "file_search_call": "queries",
    "code_interpreter_call": "code",
    "image_generation_call": "revised_prompt",
    "mcp_call": "arguments",
    "tool_search_call": "arguments",
    "program": "code",
}
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def read_input(value: Any) -> list[Message]:
    """What was sent: a text, or a list of items."""
    if isinstance(value, str):
        return [Message("user", [{"type": "text", "content": value}])]
    return [_sent(item) for item in items(value)]


def read_output(output: Iterable[Any], finish_reason: str | None) -> Message:
    """The one message that the items of an answer make."""
    parts = [part for item in output for part in item_parts(item)]
    return Message("assistant", parts, finish_reason)


def tool_name(item: Any) -> str | None:
    """The tool that an item calls; None if it calls none."""
    kind = text(field(item, "type")) or ""
    if kind in ("function_call", "custom_tool_call", "mcp_call"):
        return text(field(item, "name"))
    return kind.removesuffix("_call") if kind in _CALLS or kind in _SERVER_CALLS else None


def waits_for_service(item: Any) -> bool:
    """Is the item a call of a tool that the service has to answer?"""
    return field(item, "type") in _CALLS


def is_refusal(item: Any) -> bool:
    """Is the item a message in which the model refuses?"""
    return any(field(part, "type") == "refusal" for part in items(field(item, "content")))


def has_logprobs(item: Any) -> bool:
    """Does the item carry log probabilities?"""
    return any(field(part, "logprobs") for part in items(field(item, "content")))


def _sent(item: Any) -> Message:
    kind = text(field(item, "type")) or "message"
    if kind.endswith("_output"):
        return Message("tool", [_tool_result(item)])
    role = text(field(item, "role")) or "assistant"
    return Message(_ROLES.get(role, role), list(item_parts(item)))


def item_parts(item: Any) -> Iterator[Part]:
    """The parts that one item is."""
    kind = text(field(item, "type")) or "message"
    if kind == "message":
        yield from content_parts(field(item, "content"), _part)
    elif kind == "reasoning":
        # What is encrypted stays so; of a summary and the thoughts themselves the latter say more.
        thoughts = items(field(item, "content")) or items(field(item, "summary"))
        yield {"type": "reasoning", "content": "".join(text(field(each, "text")) or "" for each in thoughts)}
    elif kind in _CALLS:
        arguments = plain(field(item, _CALLS[kind]))
        yield tool_call(text(field(item, "call_id")) or text(field(item, "id")), tool_name(item), arguments)
    elif kind in _SERVER_CALLS:
        yield _server_call(kind, item)
        yield from _result_of_server(kind, item)
    else:
        yield {"type": kind}


def _server_call(kind: str, item: Any) -> Part:
    inner = {"type": kind, "arguments": parsed(plain(field(item, _SERVER_CALLS[kind])))}
    call = {"type": "server_tool_call", "id": text(field(item, "id")), "name": tool_name(item)}
    return without_none({**call, "server_tool_call": without_none(inner)})


def _result_of_server(kind: str, item: Any) -> Iterator[Part]:
    """What the provider's tool has found: pictures by size and hash, anything else by kind only."""
    result = text(field(item, "result"))
    if kind == "image_generation_call" and result is not None:
        yield blob("image", f"image/{text(field(item, 'output_format')) or '*'}", result)
    elif kind == "mcp_call" and field(item, "output") is not None:
        identifier = text(field(item, "id"))
        inner = {"type": kind}
        yield without_none(
            {"type": "server_tool_call_response", "id": identifier, "server_tool_call_response": inner}
        )


def _tool_result(item: Any) -> Part:
    output = field(item, "output")
    response: Any = output if isinstance(output, str) else list(content_parts(output, _part))
    answer = {"type": "tool_call_response", "id": text(field(item, "call_id")), "response": response}
    return without_none(answer)


def _part(part: Any) -> Part:
    kind = text(field(part, "type")) or "unknown"
    if kind in _TEXTS:
        return {"type": "text", "content": text(field(part, "text")) or ""}
    if kind == "refusal":
        return {"type": "refusal", "content": text(field(part, "refusal")) or ""}
    if kind == "input_audio":
        sound = field(part, "input_audio")
        mime_type = f"audio/{text(field(sound, 'format')) or '*'}"
        return blob("audio", mime_type, text(field(sound, "data")) or "")
    if kind in ("input_image", "input_file"):
        return _media("image" if kind == "input_image" else "document", part)
    return {"type": kind}


def _media(modality: str, part: Any) -> Part:
    identifier = text(field(part, "file_id"))
    if identifier is not None:
        return {"type": "file", "modality": modality, "file_id": identifier}
    where = next(
        filter(None, (text(field(part, name)) for name in ("image_url", "file_url", "file_data"))), ""
    )
    return address(modality, where)


def plain(value: Any) -> Any:
    """A parsed object of the SDK as the dictionary it was; anything else as it is."""
    dump = getattr(value, "model_dump", None)
    if isinstance(value, list):
        return [plain(each) for each in items(value)]
    return value if dump is None else dump(exclude_none=True, warnings=False)
