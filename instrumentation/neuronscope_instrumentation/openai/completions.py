"""Legacy completions: one text on, one text back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.draft import Streamed, start
from neuronscope_instrumentation.common.fields import count, document, field, items, number, text
from neuronscope_instrumentation.openai.answers import head, read_error, usage, usage_by_modality
from neuronscope_instrumentation.openai.embeddings import input_count
from neuronscope_instrumentation.openai.facts import known, read_headers

_PROMPT: Final = "prompt"
_INPUT_COUNT: Final = "input_count"


def keep_completion(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what of a request's body is no scalar."""
    prompt = body.get("prompt")
    kept[_INPUT_COUNT] = input_count(prompt)
    if content:
        kept[_PROMPT] = [prompt] if isinstance(prompt, str) else list(items(prompt))


def read_completion_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request in our words; prompts given as tokens stay out."""
    prompts = [each for each in arguments.get(_PROMPT) or () if isinstance(each, str)]
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        temperature=number(arguments.get("temperature")),
        top_p=number(arguments.get("top_p")),
        top_k=count(arguments.get("top_k")),
        max_tokens=count(arguments.get("max_tokens")),
        seed=count(arguments.get("seed")),
        frequency_penalty=number(arguments.get("frequency_penalty")),
        presence_penalty=number(arguments.get("presence_penalty")),
        choice_count=count(arguments.get("n")),
        input_count=count(arguments.get(_INPUT_COUNT)),
        messages=[Message("user", [{"type": "text", "content": each}]) for each in prompts]
        if content
        else None,
    )


def read_completion(result: Any, content: bool) -> Response:
    """A completion in our words."""
    completion = document(result)
    choices = sorted(
        items(field(completion, "choices")), key=lambda choice: count(field(choice, "index")) or 0
    )
    reasons = [text(field(choice, "finish_reason")) for choice in choices]
    texts = [text(field(choice, "text")) or "" for choice in choices]
    reported = field(completion, "usage")
    return Response(
        **head(completion),
        **usage(reported),
        finish_reasons=[reason for reason in reasons if reason is not None] or None,
        messages=[
            Message("assistant", [{"type": "text", "content": answer}], reason)
            for answer, reason in zip(texts, reasons, strict=True)
        ]
        if content and choices
        else None,
        extra={
            **known({names.LOGPROBS: any(field(choice, "logprobs") for choice in choices) or None}),
            **usage_by_modality(reported),
        },
    )


def fold_completion_chunk(so_far: Response, chunk: Any, content: bool) -> Response:
    """The completion after one more chunk, which looks like a completion itself."""
    chunk = document(chunk)
    streamed = start(so_far, content)
    changes = head(chunk) if streamed.id is None else {}
    changes.update(usage(field(chunk, "usage")))
    for choice in items(field(chunk, "choices")):
        changes.update(_fold_choice(streamed, choice))
    return replace(streamed, **changes) if changes else streamed


def _fold_choice(streamed: Streamed, choice: Any) -> dict[str, Any]:
    index, reason = count(field(choice, "index")) or 0, text(field(choice, "finish_reason"))
    if streamed.drafts is not None:
        draft = streamed.drafts.of(index)
        draft.text.append(text(field(choice, "text")) or "")
        draft.finish_reason = reason
    if reason is None:
        return {}
    streamed.reasons[index] = reason
    return {"finish_reasons": [streamed.reasons[each] for each in sorted(streamed.reasons)]}


def has_text(chunk: Any) -> bool:
    """Does a chunk carry text?"""
    return any(text(field(choice, "text")) for choice in items(field(document(chunk), "choices")))


COMPLETIONS: Final = Endpoint(
    operation=Operation.TEXT_COMPLETION,
    read_request=read_completion_request,
    read_response=read_completion,
    fold_chunk=fold_completion_chunk,
    is_content=has_text,
    read_error=read_error,
    read_headers=read_headers,
)
