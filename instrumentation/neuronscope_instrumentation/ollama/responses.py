"""What came back: whole answers, and streams as folds over their parts."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope_instrumentation.common.asking import tools_called
from neuronscope_instrumentation.common.draft import note_call, start
from neuronscope_instrumentation.common.fields import count, field, items, text
from neuronscope_instrumentation.common.parts import Part, without_none
from neuronscope_instrumentation.ollama.messages import answer_parts


def read_response(result: Any, content: bool) -> Response:
    """A chat or a completion in our words."""
    facts = _facts(result)
    facts["extra"] = tools_called(_tool_names(result))
    if content:
        reason = text(field(result, "done_reason"))
        parts = list(_parts(result))
        facts["messages"] = [Message("assistant", parts, reason)] if parts else None
    return Response(**facts)


def _facts(result: Any) -> dict[str, Any]:
    """What the last part of a stream, or a whole answer, tells; absent facts are left out."""
    reason = text(field(result, "done_reason"))
    return without_none(
        {
            "model": text(field(result, "model")),
            "finish_reasons": [reason] if reason is not None else None,
            "input_tokens": count(field(result, "prompt_eval_count")),
            "output_tokens": count(field(result, "eval_count")),
        }
    )


def _tool_names(result: Any) -> list[Any]:
    return [
        field(field(call, "function"), "name")
        for call in items(field(field(result, "message"), "tool_calls"))
    ]


def _parts(result: Any) -> list[Part]:
    message = field(result, "message")
    if message is None:  # a completion
        return list(answer_parts(result, text(field(result, "response"))))
    return list(answer_parts(message, text(field(message, "content"))))


def fold_part(so_far: Response, part: Any, content: bool) -> Response:
    """The response after one more part."""
    streamed = start(so_far, content)
    done = field(part, "done") is True
    if streamed.drafts is not None:
        draft = streamed.drafts.of()
        for piece in _parts(part):
            draft.part(piece)
        draft.finish_reason = text(field(part, "done_reason"))
    changes: dict[str, Any] = {**_facts(part), "done": done} if done or streamed.model is None else {}
    for name in _tool_names(part):  # each comes whole
        note_call(streamed, changes, len(streamed.called), name)
    return replace(streamed, **changes) if changes else streamed


def has_content(part: Any) -> bool:
    """Does a part carry something the model has written: text, thinking, a tool call?"""
    message = field(part, "message")
    source = part if message is None else message
    return bool(
        text(field(source, "content"))
        or text(field(source, "response"))
        or text(field(source, "thinking"))
        or field(source, "tool_calls")
    )


def read_embeddings(result: Any, content: bool) -> Response:
    """An embeddings answer in our words: never a vector, only its length."""
    vectors = items(field(result, "embeddings"))
    vector = vectors[0] if vectors else field(result, "embedding")
    return Response(
        model=text(field(result, "model")),
        input_tokens=count(field(result, "prompt_eval_count")),
        dimensions=len(items(vector)) or None,
    )
