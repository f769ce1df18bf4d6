"""What came back, read from the wire: whole answers, and streams as folds over their chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope_instrumentation.common.asking import tools_called
from neuronscope_instrumentation.common.draft import Draft, Drafts, note_call, start
from neuronscope_instrumentation.common.fields import (
    COUNT,
    INTO,
    TEXT,
    count,
    document,
    field,
    fields,
    items,
    pick,
    text,
)
from neuronscope_instrumentation.mistral.messages import content_parts

_FINISH: Final = {"tool_calls": "tool_call", "model_length": "length"}
_USAGE: Final = (
    "prompt_tokens", "input_tokens", COUNT,
    "completion_tokens", "output_tokens", COUNT,
    "num_cached_tokens", "cache_read_tokens", COUNT,
    "prompt_token_details", ("cached_tokens", "cache_read_tokens", COUNT), INTO,
    "prompt_tokens_details", ("cached_tokens", "cache_read_tokens", COUNT), INTO,
    "service_tier", "service_tier", TEXT,
)  # fmt: skip
_HEAD: Final = ("id", "id", TEXT, "model", "model", TEXT, "usage", _USAGE, INTO)


def read_response(result: Any, content: bool) -> Response:
    """A chat or a completion in our words."""
    completion = document(result)
    choices = items(field(completion, "choices"))
    reasons = [text(field(choice, "finish_reason")) for choice in choices]
    drafts = Drafts()
    if content:
        for position, choice in enumerate(choices):
            _add(drafts.of(_index(choice, position)), field(choice, "message"), reasons[position], whole=True)
    messages: list[Message] = list(drafts)
    return Response(
        **_head(completion),
        extra=tools_called(_names(choices)),
        finish_reasons=[reason for reason in reasons if reason is not None] or None,
        messages=messages or None,
    )


def _names(choices: Iterable[Any]) -> Iterator[Any]:
    for choice in choices:
        for call in items(field(field(choice, "message"), "tool_calls")):
            yield field(field(call, "function"), "name")


def _index(choice: Any, position: int) -> int:
    index = count(field(choice, "index"))
    return position if index is None else index


def _head(completion: Any) -> dict[str, Any]:
    """Facts beside the choices; absent ones are left out."""
    return pick(fields(completion), _HEAD)


def _add(draft: Draft, message: Any, reason: str | None, *, whole: bool) -> None:
    """Add a whole message, or a delta of one."""
    for part in content_parts(field(message, "content")):
        draft.part(part)
    for position, call in enumerate(items(field(message, "tool_calls"))):
        key = position if whole else _key(call, position)
        function = field(call, "function")
        draft.tool(key, text(field(call, "id")), text(field(function, "name")), field(function, "arguments"))
    if reason is not None:
        draft.finish_reason = _FINISH.get(reason, reason)


def _key(call: Any, position: int) -> int:
    index = count(field(call, "index"))
    return position if index is None else index


def fold_chunk(so_far: Response, chunk: Any, content: bool) -> Response:
    """The response after one more chunk."""
    chunk = document(chunk)
    streamed = start(so_far, content)
    changes = _head(chunk)
    for choice in items(field(chunk, "choices")):
        index, reason = _index(choice, 0), text(field(choice, "finish_reason"))
        for position, call in enumerate(items(field(field(choice, "delta"), "tool_calls"))):
            name = field(field(call, "function"), "name")
            note_call(streamed, changes, (index, _key(call, position)), name)
        if streamed.drafts is not None:
            _add(streamed.drafts.of(index), field(choice, "delta"), reason, whole=False)
        if reason is not None:
            streamed.reasons[index] = reason
            changes["finish_reasons"] = [streamed.reasons[key] for key in sorted(streamed.reasons)]
            changes["done"] = True
    return replace(streamed, **changes) if changes else streamed


def has_content(chunk: Any) -> bool:
    """Does a chunk carry something the model has written: text, thinking, a tool call?"""
    for choice in items(field(document(chunk), "choices")):
        delta = field(choice, "delta")
        if field(delta, "content") or field(delta, "tool_calls"):
            return True
    return False
