"""What came back, read from the wire: whole answers, and streams as folds over their chunks."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope_instrumentation.common.draft import Draft, Drafts, start
from neuronscope_instrumentation.common.fields import count, document, field, items, text
from neuronscope_instrumentation.common.parts import without_none
from neuronscope_instrumentation.mistral.messages import content_parts

_FINISH: Final = {"tool_calls": "tool_call", "model_length": "length"}


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
        finish_reasons=[reason for reason in reasons if reason is not None] or None,
        messages=messages or None,
    )


def _index(choice: Any, position: int) -> int:
    index = count(field(choice, "index"))
    return position if index is None else index


def _head(completion: Any) -> dict[str, Any]:
    """Facts beside the choices; absent ones are left out."""
    usage = field(completion, "usage")
    details = field(usage, "prompt_tokens_details") or field(usage, "prompt_token_details")
    cached = count(field(details, "cached_tokens"))
    return without_none(
        {
            "id": text(field(completion, "id")),
            "model": text(field(completion, "model")),
            "input_tokens": count(field(usage, "prompt_tokens")),
            "output_tokens": count(field(usage, "completion_tokens")),
            "cache_read_tokens": cached if cached is not None else count(field(usage, "num_cached_tokens")),
        }
    )


def _add(draft: Draft, message: Any, reason: str | None, *, whole: bool) -> None:
    """Add a whole message, or a delta of one."""
    for part in content_parts(field(message, "content")):
        draft.part(part)
    for position, call in enumerate(items(field(message, "tool_calls"))):
        index = count(field(call, "index"))
        key = position if whole or index is None else index
        function = field(call, "function")
        draft.tool(key, text(field(call, "id")), text(field(function, "name")), field(function, "arguments"))
    if reason is not None:
        draft.finish_reason = _FINISH.get(reason, reason)


def fold_chunk(so_far: Response, chunk: Any, content: bool) -> Response:
    """The response after one more chunk."""
    chunk = document(chunk)
    streamed = start(so_far, content)
    changes = _head(chunk)
    for choice in items(field(chunk, "choices")):
        index, reason = _index(choice, 0), text(field(choice, "finish_reason"))
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


def read_embeddings(result: Any, content: bool) -> Response:
    """An embeddings answer in our words: never a vector, only its length."""
    answer = document(result)
    vectors = items(field(answer, "data"))
    return Response(
        model=text(field(answer, "model")),
        input_tokens=count(field(field(answer, "usage"), "prompt_tokens")),
        dimensions=len(items(field(vectors[0], "embedding"))) or None if vectors else None,
    )
