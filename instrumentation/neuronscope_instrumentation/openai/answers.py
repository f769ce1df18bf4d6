"""What came back of a chat, parsed by the SDK or still JSON; and what a failed call tells."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import count, document, field, items, mapping, text
from neuronscope_instrumentation.openai.facts import known, modalities
from neuronscope_instrumentation.openai.messages import read_message


def read_chat(result: Any, content: bool) -> Response:
    """A chat completion in our words."""
    completion = document(result)
    choices = items(field(completion, "choices"))
    if len(choices) > 1:
        choices = sorted(choices, key=lambda choice: count(field(choice, "index")) or 0)
    reasons = [text(field(choice, "finish_reason")) for choice in choices]
    answers = [field(choice, "message") for choice in choices]
    messages = None
    if content and choices:
        messages = [read_message(answer, why) for answer, why in zip(answers, reasons, strict=True)]
    reported = field(completion, "usage")
    return Response(
        **head(completion),
        **usage(reported),
        finish_reasons=[reason for reason in reasons if reason is not None] or None,
        messages=messages,
        extra={
            **known(
                {
                    names.TOOLS_CALLED: [name for answer in answers for name in _called(answer)] or None,
                    names.REFUSED: any(field(answer, "refusal") for answer in answers) or None,
                    names.LOGPROBS: any(field(choice, "logprobs") for choice in choices) or None,
                }
            ),
            **usage_by_modality(reported),
        },
    )


def _called(answer: Any) -> list[str]:
    calls = [
        field(call, text(field(call, "type")) or "function") for call in items(field(answer, "tool_calls"))
    ]
    calls.append(field(answer, "function_call"))
    return [name for call in calls if (name := text(field(call, "name"))) is not None]


def head(completion: Any) -> dict[str, Any]:
    """Facts that a completion and each of its chunks carry; absent ones are left out."""
    return known(
        {
            "id": text(field(completion, "id")),
            "model": text(field(completion, "model")),
            "service_tier": text(field(completion, "service_tier")),
            "system_fingerprint": text(field(completion, "system_fingerprint")),
        }
    )


def usage(reported: Any) -> dict[str, Any]:
    """Token counts as the provider reported them: `prompt_tokens` includes cached ones."""
    prompt, completion = (
        field(reported, "prompt_tokens_details"),
        field(reported, "completion_tokens_details"),
    )
    cached = count(field(prompt, "cached_tokens"))
    return known(
        {
            "input_tokens": count(field(reported, "prompt_tokens")),
            "output_tokens": count(field(reported, "completion_tokens")),
            # DeepSeek keeps it at the top
            "cache_read_tokens": count(field(reported, "prompt_cache_hit_tokens"))
            if cached is None
            else cached,
            "cache_write_tokens": count(field(prompt, "cache_write_tokens")),
            "reasoning_tokens": count(field(completion, "reasoning_tokens")),
        }
    )


def usage_by_modality(reported: Any) -> dict[str, int]:
    """Token counts by modality."""
    return modalities(field(reported, "prompt_tokens_details"), field(reported, "completion_tokens_details"))


def read_error(error: BaseException) -> ErrorFacts:
    """A failed call: `parse` raises after the model has answered, with the billed completion at hand."""
    completion = getattr(error, "completion", None)
    billed = None if completion is None else read_chat(completion, False)
    sent_again = _resends(error)
    if sent_again:
        billed = billed or Response()
        billed = replace(billed, extra={**billed.extra, names.HTTP_RESEND_COUNT: sent_again})
    return ErrorFacts(type_name(error), count(getattr(error, "status_code", None)), billed)


def _resends(error: BaseException) -> int:
    """How often the SDK had tried again, as its last request says."""
    request = vars(error).get("request")  # asking the HTTP library's own errors for it may raise
    headers = mapping(getattr(request, "headers", None)) or {}
    told = str(headers.get("x-stainless-retry-count", ""))
    return int(told) if told.isascii() and told.isdigit() else 0
