"""What came back, read from the wire: answers of both versions, and streams as folds over their events.

Tokens are the billed ones, as the semantic conventions want of Cohere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope_instrumentation.cohere.messages import answer_parts
from neuronscope_instrumentation.common.asking import tools_called
from neuronscope_instrumentation.common.draft import Draft, note_call, start
from neuronscope_instrumentation.common.fields import document, field, items, mapping, number, text
from neuronscope_instrumentation.common.parts import Part, tool_call, without_none
from neuronscope_instrumentation.common.retrieval import rerank_facts

_FINISH: Final = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "TOOL_CALL": "tool_call",
    "ERROR": "error",
    "ERROR_TOXIC": "content_filter",
    "ERROR_LIMIT": "length",
    "TIMEOUT": "error",
}


def read_chat(result: Any, content: bool) -> Response:
    """A chat of either version, or a generation, in our words."""
    answer = document(result)
    facts = _head(answer)
    message = field(answer, "message")
    calls = items(field(answer if message is None else message, "tool_calls"))
    facts["extra"] = tools_called(
        field(call, "name") or field(field(call, "function"), "name") for call in calls
    )
    if content:
        parts = list(_parts(answer))
        reason = _reason(answer)
        facts["messages"] = [Message("assistant", parts, _finish(reason))] if parts else None
    return Response(**facts)


def _head(answer: Any) -> dict[str, Any]:
    """Facts beside the message; absent ones are left out."""
    reason = _reason(answer)
    identifier = text(field(answer, "id")) or text(field(answer, "generation_id"))
    return without_none({"id": identifier, "finish_reasons": [reason] if reason else None, **_tokens(answer)})


def _tokens(answer: Any) -> dict[str, int | None]:
    usage = field(answer, "usage")  # version 2 chat
    told = usage if usage is not None else field(answer, "meta")
    billed = field(told, "billed_units")
    return {
        "input_tokens": _whole(field(billed, "input_tokens")),
        "output_tokens": _whole(field(billed, "output_tokens")),
        "cache_read_tokens": _whole(field(told, "cached_tokens")),
    }


def _whole(value: Any) -> int | None:
    """Cohere counts in floats."""
    counted = number(value)
    return None if counted is None else int(counted)


def _reason(answer: Any) -> str | None:
    generations = items(field(answer, "generations"))
    return text(field(answer, "finish_reason")) or (
        text(field(generations[0], "finish_reason")) if generations else None
    )


def _finish(reason: str | None) -> str | None:
    return None if reason is None else _FINISH.get(reason, reason)


def _parts(answer: Any) -> Iterator[Part]:
    message = field(answer, "message")
    if message is not None:
        yield from answer_parts(message)
        return
    words = [field(answer, "text"), *(field(one, "text") for one in items(field(answer, "generations")))]
    for word in words:
        if text(word) is not None:
            yield {"type": "text", "content": word}
    for call in items(field(answer, "tool_calls")):
        yield tool_call(None, text(field(call, "name")), field(call, "parameters"))


def fold_event(so_far: Response, event: Any, content: bool) -> Response:
    """The response after one more event, of either version."""
    event = document(event)
    streamed = start(so_far, content)
    draft = None if streamed.drafts is None else streamed.drafts.of()
    changes: dict[str, Any] = {}
    if text(field(event, "type")) is not None:
        changes = _fold_v2(event, draft)
        call = field(field(field(event, "delta"), "message"), "tool_calls")
        note_call(streamed, changes, field(event, "index"), field(field(call, "function"), "name"))
    elif text(field(event, "event_type")) is not None:
        changes = _fold_v1(event, draft)
        for position, call in enumerate(items(field(event, "tool_calls"))):
            note_call(streamed, changes, position, field(call, "name"))
    return replace(streamed, **changes) if changes else streamed


def _fold_v2(event: Any, draft: Draft | None) -> dict[str, Any]:
    kind, delta = field(event, "type"), field(event, "delta")
    message = field(delta, "message")
    if kind == "message-start":
        return without_none({"id": text(field(event, "id"))})
    if kind == "message-end":
        if draft is not None:
            draft.finish_reason = _finish(_reason(delta))
        return {**_head(delta), "done": True}
    if draft is None:
        return {}
    content = field(message, "content")
    for part_kind, name in (("text", "text"), ("reasoning", "thinking")):
        piece = text(field(content, name))
        if piece is not None:
            draft.part({"type": part_kind, "content": piece})
    plan = text(field(message, "tool_plan"))
    if plan is not None:
        draft.part({"type": "reasoning", "content": plan})
    call = field(message, "tool_calls")
    if call is not None:
        function = field(call, "function")
        draft.tool(
            field(event, "index"),
            text(field(call, "id")),
            text(field(function, "name")),
            field(function, "arguments"),
        )
    return {}


def _fold_v1(event: Any, draft: Draft | None) -> dict[str, Any]:
    kind = field(event, "event_type")
    if kind == "stream-start":
        return without_none({"id": text(field(event, "generation_id"))})
    if kind == "stream-end" or (kind is None and field(event, "is_finished") is True):
        reason = text(field(event, "finish_reason"))
        if draft is not None:
            draft.finish_reason = _finish(reason)
        told = without_none({"finish_reasons": [reason] if reason else None})
        return {**_head(field(event, "response")), **told, "done": True}
    if draft is None:
        return {}
    piece = text(field(event, "text"))
    if piece is not None and kind == "text-generation":
        draft.part({"type": "text", "content": piece})
    if kind == "tool-calls-generation":
        for position, call in enumerate(items(field(event, "tool_calls"))):
            draft.tool(position, None, text(field(call, "name")), field(call, "parameters"))
    return {}


_CONTENT: Final = frozenset({"content-delta", "tool-call-start", "tool-call-delta", "tool-plan-delta"})
_CONTENT_V1: Final = frozenset({"text-generation", "tool-calls-generation", "tool-calls-chunk"})


def has_content(event: Any) -> bool:
    """Does an event carry something the model has written: text, thinking, a tool call?"""
    event = document(event)
    return field(event, "type") in _CONTENT or field(event, "event_type") in _CONTENT_V1


def read_embeddings(result: Any, content: bool) -> Response:
    """An embeddings answer in our words: never a vector, only its length."""
    answer = document(result)
    told = field(answer, "embeddings")
    # A list of vectors, or lists of vectors by type of their numbers.
    typed = mapping(told)
    by_type: list[Any] = [told] if typed is None else list(typed.values())
    vectors = next((items(value) for value in by_type if items(value)), ())
    return Response(
        input_tokens=_tokens(answer)["input_tokens"],
        dimensions=len(items(vectors[0])) or None if vectors else None,
    )


def read_rerank(result: Any, content: bool) -> Response:
    """A reranking in our words: how many, how well the best and the worst fit, how far documents moved."""
    answer = document(result)
    ranked = items(field(answer, "results"))
    extra = rerank_facts(
        [field(one, "index") for one in ranked], [field(one, "relevance_score") for one in ranked]
    )
    return Response(id=text(field(answer, "id")), extra=extra, input_tokens=_tokens(answer)["input_tokens"])
