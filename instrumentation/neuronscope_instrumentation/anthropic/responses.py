"""What came back: messages, parsed by the SDK or still JSON."""

from __future__ import annotations

from typing import Any, Final

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Response
from neuronscope.signals import names
from neuronscope_instrumentation.anthropic.messages import read_answer
from neuronscope_instrumentation.common.asking import tools_called
from neuronscope_instrumentation.common.fields import count, document, field, items, text
from neuronscope_instrumentation.common.parts import without_none

_INPUT_COUNTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_KEPT_LONGER: Final = "ephemeral_1h_input_tokens"
SENT_COUNTS: Final = (*_INPUT_COUNTS, _KEPT_LONGER)


def read_response(result: Any, content: bool) -> Response:
    """A message in our words."""
    message = document(result)
    counts = usage(field(message, "usage"))
    reason = text(field(message, "stop_reason"))
    blocks = items(field(message, "content"))
    return Response(
        **head(message),
        **tokens(counts),
        service_tier=text(field(field(message, "usage"), "service_tier")),
        extra={
            **tools_called(tool_name(block) for block in blocks),
            **refused(reason),
            **kept_longer(counts),
        },
        finish_reasons=[reason] if reason is not None else None,
        messages=[read_answer(blocks, reason)] if content and blocks else None,
    )


def tool_name(block: Any) -> Any:
    """Name of the tool that a content block calls."""
    kind = text(field(block, "type")) or ""
    return field(block, "name") if kind.endswith("tool_use") else None


def refused(reason: str | None) -> dict[str, Any]:
    """Whether the model has refused to answer, for a response's `extra`."""
    return {names.REFUSED: True} if reason == "refusal" else {}


def head(message: Any) -> dict[str, Any]:
    """Facts that a message and the first event of its stream carry; absent ones are left out."""
    return without_none({"id": text(field(message, "id")), "model": text(field(message, "model"))})


def usage(reported: Any) -> dict[str, int]:
    """Token counts in Anthropic's own words; absent ones are left out."""
    counts = {name: count(field(reported, name)) for name in (*_INPUT_COUNTS, "output_tokens")}
    counts["thinking_tokens"] = count(field(field(reported, "output_tokens_details"), "thinking_tokens"))
    counts[_KEPT_LONGER] = count(field(field(reported, "cache_creation"), _KEPT_LONGER))
    return without_none(counts)


def tokens(counts: dict[str, int]) -> dict[str, Any]:
    """The same in ours.  Anthropic's `input_tokens` leaves cached ones out, OpenTelemetry's has them in."""
    read, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
    fresh = counts.get("input_tokens")
    return without_none(
        {
            "input_tokens": None if fresh is None else fresh + (read or 0) + (written or 0),
            "output_tokens": counts.get("output_tokens"),
            "cache_read_tokens": read,
            "cache_write_tokens": written,
            "reasoning_tokens": counts.get("thinking_tokens"),
        }
    )


def kept_longer(counts: dict[str, int]) -> dict[str, int]:
    """Tokens written to the cache for an hour, for a response's `extra`: these cost more."""
    longer = counts.get(_KEPT_LONGER)
    return {names.CACHE_WRITE_1H_TOKENS: longer} if longer else {}


def read_error(error: BaseException) -> ErrorFacts:
    """A failed call.  An `error` event has the status of the response that opened its stream."""
    status = count(getattr(error, "status_code", None))
    return ErrorFacts(type_name(error), status if status is not None and status >= 400 else None)
