"""What came back of a chat, parsed by the SDK or still JSON; and what a failed call tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.engine.facts import response_table
from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Message, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import (
    COUNT,
    INTO,
    ODD,
    ONE,
    TEXT,
    TEXTS,
    TRUTH,
    count,
    document,
    field,
    fields,
    items,
    mapping,
    pick,
    teller,
    text,
)
from neuronscope_instrumentation.openai.facts import RECEIVED, SENT, generated
from neuronscope_instrumentation.openai.messages import read_message

_HEAD: Final = (
    "id", "id", TEXT,
    "model", "model", TEXT,
    "service_tier", "service_tier", TEXT,
    "system_fingerprint", "system_fingerprint", TEXT,
)  # fmt: skip
_TOKENS: Final = (
    "prompt_tokens", "input_tokens", COUNT,
    "completion_tokens", "output_tokens", COUNT,
    "prompt_cache_hit_tokens", "cache_read_tokens", COUNT,  # DeepSeek's; others' details win
    "cached_tokens", "cache_read_tokens", COUNT,  # Moonshot's
)  # fmt: skip
_SENT: Final = (
    "cached_tokens", "cache_read_tokens", COUNT,
    "cache_write_tokens", "cache_write_tokens", COUNT,
)  # fmt: skip
_RECEIVED: Final = ("reasoning_tokens", "reasoning_tokens", COUNT)
_USAGE: Final = (
    *_TOKENS,
    "prompt_tokens_details", _SENT, INTO,
    "completion_tokens_details", _RECEIVED, INTO,
)  # fmt: skip
_ALL_USAGE: Final = (
    *_TOKENS,
    "prompt_tokens_details", _SENT + SENT, INTO,
    "completion_tokens_details", _RECEIVED + RECEIVED, INTO,
)  # fmt: skip
_TOTAL: Final = "total_tokens"
_BY_MODALITY: Final = ("prompt_tokens_details", SENT, INTO, "completion_tokens_details", RECEIVED, INTO)
_CHOICE: Final = (
    "finish_reason", "finish_reason", TEXT,
    "logprobs", "logprobs", TRUTH,
    "message", (
        "refusal", "refusal", TRUTH,
        "tool_calls", "calls", TRUTH,
        "function_call", "calls", TRUTH,
    ), INTO,
)  # fmt: skip
_USUAL_CHOICE: Final = (
    "logprobs", "", ODD,
    "message", ("refusal", "", ODD, "tool_calls", "", ODD, "function_call", "", ODD), INTO,
    "finish_reason", "finish_reasons", TEXTS,
)  # fmt: skip


def read_chat(result: Any, content: bool) -> Response:
    """A chat completion in our words."""
    completion = fields(document(result))
    choices = items(completion.get("choices"))
    if len(choices) > 1:
        choices = sorted(map(fields, choices), key=lambda choice: count(choice.get("index")) or 0)
    reasons: list[str] = []
    messages: list[Message] = []
    extra: dict[str, Any] = {}
    for each in choices:
        choice = fields(each)
        told = pick(choice, _CHOICE)
        reason = told.get("finish_reason")
        if reason is not None:
            reasons.append(reason)
        if len(told) > (reason is not None):
            _add_answer(extra, told, choice)
        if content:
            messages.append(read_message(choice.get("message"), reason))
    reported = completion.get("usage")
    facts = pick(completion, _HEAD)
    if reported is not None:
        extra.update(usage_by_modality(reported))
        facts.update(usage(reported))
    return Response(**facts, finish_reasons=reasons or None, messages=messages or None, extra=extra)


_tell: Final = teller(
    response_table((
        "choices", _USUAL_CHOICE, ONE,
        *_HEAD,
        "usage", (*_ALL_USAGE, _TOTAL, _TOTAL, COUNT), INTO,
    ))
)  # fmt: skip


def tell_chat(attributes: dict[str, Any], result: Any) -> bool:
    """`read_chat` of one choice without content that tells nothing beside its message."""
    told = _tell(attributes, result)
    total = attributes.pop(_TOTAL, None)
    if total is not None and names.OUTPUT_TOKENS in attributes:
        get = attributes.get
        attributes[names.OUTPUT_TOKENS] = generated(
            get(names.INPUT_TOKENS),
            get(names.OUTPUT_TOKENS),
            total,
            get(names.CACHE_READ_TOKENS),
            get(names.REASONING_TOKENS),
        )
    return told


def _add_answer(extra: dict[str, Any], told: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    """Add what a choice tells beside its message; most tell nothing."""
    if "logprobs" in told:
        extra[names.LOGPROBS] = True
    if "refusal" in told:
        extra[names.REFUSED] = True
    called = _called(choice.get("message")) if "calls" in told else ()
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
    facts = pick(told, _USAGE)
    if "output_tokens" in facts:
        get = facts.get
        facts["output_tokens"] = generated(
            get("input_tokens"),
            get("output_tokens"),
            count(told.get(_TOTAL)),
            get("cache_read_tokens"),
            get("reasoning_tokens"),
        )
    return facts


def usage_by_modality(reported: Any) -> dict[str, int]:
    """Token counts by modality."""
    return pick(fields(reported), _BY_MODALITY)


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
