"""What came back of a chat, parsed by the SDK or still JSON; and what a failed call tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Message, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import (
    COUNT,
    TEXT,
    count,
    document,
    field,
    fields,
    items,
    mapping,
    pick,
    text,
)
from neuronscope_instrumentation.openai.facts import modalities
from neuronscope_instrumentation.openai.messages import read_message

_HEAD: Final = (
    "id", "id", TEXT,
    "model", "model", TEXT,
    "service_tier", "service_tier", TEXT,
    "system_fingerprint", "system_fingerprint", TEXT,
)  # fmt: skip
_USAGE: Final = (
    "prompt_tokens", "input_tokens", COUNT,
    "completion_tokens", "output_tokens", COUNT,
    "prompt_cache_hit_tokens", "cache_read_tokens", COUNT,  # DeepSeek's; others' details win
)  # fmt: skip
_PROMPT: Final = (
    "cached_tokens", "cache_read_tokens", COUNT,
    "cache_write_tokens", "cache_write_tokens", COUNT,
)  # fmt: skip
_COMPLETION: Final = ("reasoning_tokens", "reasoning_tokens", COUNT)


def read_chat(result: Any, content: bool) -> Response:
    """A chat completion in our words."""
    completion = fields(document(result))
    choices = [fields(choice) for choice in items(completion.get("choices"))]
    if len(choices) > 1:
        choices.sort(key=lambda choice: count(choice.get("index")) or 0)
    reasons: list[str] = []
    messages: list[Message] = []
    extra: dict[str, Any] = {}
    for choice in choices:
        reason = text(choice.get("finish_reason"))
        if reason is not None:
            reasons.append(reason)
        _add_answer(extra, choice)
        if content:
            messages.append(read_message(choice.get("message"), reason))
    reported = completion.get("usage")
    if reported is not None:
        extra.update(usage_by_modality(reported))
    facts = head(completion)
    facts.update(usage(reported), finish_reasons=reasons or None, messages=messages or None, extra=extra)
    return Response(**facts)


def _add_answer(extra: dict[str, Any], choice: Mapping[str, Any]) -> None:
    """Add what a choice tells beside its message."""
    if choice.get("logprobs"):
        extra[names.LOGPROBS] = True
    answer = fields(choice.get("message"))
    if answer.get("refusal"):
        extra[names.REFUSED] = True
    if answer.get("tool_calls") or answer.get("function_call"):
        called = _called(answer)
        if called:
            extra[names.TOOLS_CALLED] = [*extra.get(names.TOOLS_CALLED, ()), *called]


def _called(answer: Any) -> list[str]:
    calls = [
        field(call, text(field(call, "type")) or "function") for call in items(field(answer, "tool_calls"))
    ]
    calls.append(field(answer, "function_call"))
    return [name for call in calls if (name := text(field(call, "name"))) is not None]


def head(completion: Any) -> dict[str, Any]:
    """Facts that a completion and each of its chunks carry; absent ones are left out."""
    return pick(fields(completion), _HEAD)


def usage(reported: Any) -> dict[str, Any]:
    """Token counts as the provider reported them: `prompt_tokens` includes cached ones."""
    told = fields(reported)
    found = pick(told, _USAGE)
    found.update(pick(fields(told.get("prompt_tokens_details")), _PROMPT))
    found.update(pick(fields(told.get("completion_tokens_details")), _COMPLETION))
    return found


def usage_by_modality(reported: Any) -> dict[str, int]:
    """Token counts by modality."""
    told = fields(reported)
    return modalities(told.get("prompt_tokens_details"), told.get("completion_tokens_details"))


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
