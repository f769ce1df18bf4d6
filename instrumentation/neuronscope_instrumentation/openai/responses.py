"""The Responses API: what is asked, what comes back at once, and what is fetched later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Endpoint, Operation, Request, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.asking import output_format, tool_definitions, tool_names
from neuronscope_instrumentation.common.fields import count, document, field, items, number, text
from neuronscope_instrumentation.common.fields import mapping as mapping_of
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.facts import generated, known, read_headers
from neuronscope_instrumentation.openai.items import (
    has_logprobs,
    is_refusal,
    read_input,
    read_output,
    tool_name,
    waits_for_service,
)

INPUT: Final = "input"
INSTRUCTIONS: Final = "instructions"
MESSAGE_COUNT: Final = "message_count"
RESPONSE_ID: Final = "response_id"
TOOLS: Final = "tools"
_CONVERSATION: Final = "conversation"
_FORMAT: Final = "format"
_PROMPT: Final = "prompt"
_REASONING: Final = "reasoning"
# Why an answer is incomplete, in the words of chat completions, so that one dashboard serves both.
_INCOMPLETE: Final = {"max_output_tokens": "length"}


def keep_request(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what of a request's body is no scalar: copied, and nothing that reading would use up."""
    sent = body.get("input")
    kept[MESSAGE_COUNT] = 1 if isinstance(sent, str) else len(items(sent)) or None
    if "tools" in body:
        kept[TOOLS] = list(items(body["tools"]))
    if "text" in body:
        kept[_FORMAT] = output_format(field(body["text"], "format"))
    if "reasoning" in body:
        kept[_REASONING] = text(field(body["reasoning"], "effort"))
    if "conversation" in body:
        given = body["conversation"]
        kept[_CONVERSATION] = text(given) or text(field(given, "id"))
    if "prompt" in body:
        prompt = mapping_of(body["prompt"]) or {}
        kept[_PROMPT] = (text(prompt.get("id")), text(prompt.get("version")))
    if content:
        kept[INPUT] = sent if isinstance(sent, str) else list(items(sent))
        kept[INSTRUCTIONS] = text(body.get("instructions"))


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request in our words."""
    instructions = arguments.get(INSTRUCTIONS)
    prompt, version = arguments.get(_PROMPT) or (None, None)
    tools: Sequence[Any] = arguments.get(TOOLS) or ()
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        temperature=number(arguments.get("temperature")),
        top_p=number(arguments.get("top_p")),
        max_tokens=count(arguments.get("max_output_tokens")),
        service_tier=text(arguments.get("service_tier")),
        output_type=arguments.get(_FORMAT),
        conversation_id=arguments.get(_CONVERSATION),
        message_count=count(arguments.get(MESSAGE_COUNT)),
        api_type="responses",
        messages=read_input(arguments[INPUT]) if content and INPUT in arguments else None,
        system=[{"type": "text", "content": instructions}] if content and instructions else None,
        tools=tool_definitions(tools) if content and tools else None,
        extra=known(
            {
                names.REASONING_LEVEL: arguments.get(_REASONING),
                names.PREVIOUS_RESPONSE_ID: text(arguments.get("previous_response_id")),
                names.PROMPT_NAME: prompt,
                names.PROMPT_VERSION: version,
                names.TOOLS_OFFERED: tool_names(tools),
                names.BACKGROUND: arguments.get("background") is True or None,
            }
        ),
    )


def read_response(result: Any, content: bool) -> Response:
    """An answer in our words."""
    answer = document(result)
    output = items(field(answer, "output"))
    reason = _finish_reason(answer, output)
    return Response(
        **head(answer),
        finish_reasons=None if reason is None else [reason],
        messages=[read_output(output, schema_reason(reason))] if content and output else None,
        extra={**_told(answer, output), **output_facts(output)},
    )


def head(answer: Any) -> dict[str, Any]:
    """Facts at the top of an answer, as it is or as it was when it began; absent ones are left out."""
    return known(
        {
            "id": text(field(answer, "id")),
            "model": text(field(answer, "model")),
            "service_tier": text(field(answer, "service_tier")),
            **usage(field(answer, "usage")),
        }
    )


def usage(reported: Any) -> dict[str, Any]:
    """Token counts as the provider reported them: `input_tokens` includes cached ones."""
    sent, received = field(reported, "input_tokens_details"), field(reported, "output_tokens_details")
    facts = {
        "input_tokens": count(field(reported, "input_tokens")),
        "output_tokens": count(field(reported, "output_tokens")),
        "cache_read_tokens": count(field(sent, "cached_tokens")),
        "cache_write_tokens": count(field(sent, "cache_write_tokens")),
        "reasoning_tokens": count(field(received, "reasoning_tokens")),
    }
    total = count(field(reported, "total_tokens"))
    told = (facts[name] for name in ("cache_read_tokens", "reasoning_tokens"))
    facts["output_tokens"] = generated(facts["input_tokens"], facts["output_tokens"], total, *told)
    return facts


def _finish_reason(answer: Any, output: Sequence[Any]) -> str | None:
    match field(answer, "status"):
        case "completed":
            return "tool_calls" if any(waits_for_service(item) for item in output) else "stop"
        case "incomplete":
            why = text(field(field(answer, "incomplete_details"), "reason")) or "incomplete"
            return _INCOMPLETE.get(why, why)
        case "failed":
            return "error"
        case "cancelled":
            return "cancelled"
        case _:
            return None  # still at work


def schema_reason(reason: str | None) -> str | None:
    """A finish reason in the words of the message schema."""
    return "tool_call" if reason == "tool_calls" else reason


def _told(answer: Any, output: Sequence[Any]) -> dict[str, Any]:
    compacted = field(answer, "object") == "response.compaction" or any(
        field(item, "type") == "compaction" for item in output
    )
    return known(
        {
            names.CONVERSATION_ID: text(field(field(answer, "conversation"), "id")),
            names.CONVERSATION_COMPACTED: compacted or None,
            names.ERROR_TYPE: failure(answer),
        }
    )


def failure(answer: Any) -> str | None:
    """The provider's code of what went wrong in an answer that came in order."""
    if field(answer, "status") != "failed":
        return None
    return text(field(field(answer, "error"), "code")) or "failed"


def output_facts(output: Sequence[Any]) -> dict[str, Any]:
    """What the items of an answer tell without their content."""
    called = [name for name in map(tool_name, output) if name is not None]
    return known(
        {
            names.TOOLS_CALLED: called or None,
            names.REFUSED: any(map(is_refusal, output)) or None,
            names.LOGPROBS: any(map(has_logprobs, output)) or None,
        }
    )


# --- fetched later ---------------------------------------------------------------------------------
def read_fetch(arguments: Mapping[str, Any], content: bool) -> Request:
    """What is fetched: a response by its id."""
    cursor = arguments.get("starting_after")
    return Request(
        stream=arguments.get("stream") is True,
        api_type="responses",
        extra=known(
            {
                names.RESPONSE_ID: text(arguments.get(RESPONSE_ID)),
                names.STREAM_CURSOR: None if cursor is None else str(cursor),
            }
        ),
    )


def read_fetched(result: Any, content: bool) -> Response:
    """A fetched response in our words."""
    answer = document(result)
    return fetched(read_response(answer, content), text(field(answer, "status")))


def fetched(response: Response, status: str | None) -> Response:
    """A response that another call has made: its state, and its tokens where nobody adds them up.

    OpenTelemetry's conventions forbid usage on the spans of fetches, since the call that made the response,
    or an earlier fetch, may have told it.
    """
    told = known(
        {
            names.RESPONSE_STATUS: status,
            names.FETCHED_INPUT_TOKENS: response.input_tokens,
            names.FETCHED_OUTPUT_TOKENS: response.output_tokens,
        }
    )
    extra = dict(response.extra)
    if status == "failed":  # which the fetch did not
        extra.pop(names.ERROR_TYPE, None)
    return replace(
        response,
        input_tokens=None,
        output_tokens=None,
        cache_read_tokens=None,
        cache_write_tokens=None,
        reasoning_tokens=None,
        extra=extra | told,
    )


# Shortens a conversation; a model does that, and it is billed.
COMPACT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_response,
    read_error=read_error,
    read_headers=read_headers,
)
