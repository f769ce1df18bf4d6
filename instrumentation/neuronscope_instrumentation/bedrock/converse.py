"""The Converse API: one request and one answer for all models, and its stream of events.

Models that take the same words in `InvokeModel` (Amazon Nova) are read by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Request, Response
from neuronscope.signals import names
from neuronscope_instrumentation.bedrock.messages import (
    content_parts,
    finish_reason_name,
    read_answer,
    read_message,
    tool_definition,
)
from neuronscope_instrumentation.common.asking import asked, parameters, spoken, tools_called
from neuronscope_instrumentation.common.draft import Draft, note_call, start
from neuronscope_instrumentation.common.fields import count, field, items, mapping, text
from neuronscope_instrumentation.common.parts import without_none

_LIMITS: Final = parameters("temperature", top_p="topP")


def read_converse_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A conversation's turn in our words; `arguments` has the parameters of the call."""
    limits = mapping(arguments.get("inferenceConfig")) or {}
    more = mapping(arguments.get("additionalModelRequestFields")) or {}
    messages = items(arguments.get("messages"))
    tools = [tool_definition(tool) for tool in items(field(arguments.get("toolConfig"), "tools"))]
    tools = [tool for tool in tools if tool.get("name")]  # others mark what is to be cached
    system = list(content_parts(arguments.get("system"))) if content else []
    return asked(
        limits,
        _LIMITS,
        tools=tools,
        model=text(arguments.get("modelId")),
        stream=arguments.get("stream") is True or None,
        top_k=_first_count(limits.get("topK"), more.get("top_k"), field(more.get("inferenceConfig"), "topK")),
        max_tokens=_first_count(limits.get("maxTokens"), limits.get("max_new_tokens")),
        output_type="json" if field(field(arguments.get("outputConfig"), "textFormat"), "type") else None,
        service_tier=text(field(arguments.get("serviceTier"), "type")),
        message_count=len(messages) or count(arguments.get("message_count")),
        content=spoken(list(map(read_message, messages)), system, tools, limits.get("stopSequences"))
        if content
        else None,
    )


def _first_count(*values: Any) -> int | None:
    return next((found for found in map(count, values) if found is not None), None)


def read_converse(answer: Any, content: bool) -> Response:
    """An answer in our words."""
    reason = text(field(answer, "stopReason"))
    message = field(field(answer, "output"), "message")
    return Response(
        **usage(field(answer, "usage")),
        service_tier=text(field(field(answer, "serviceTier"), "type")),
        extra={
            **tools_called(
                field(field(block, "toolUse"), "name") for block in items(field(message, "content"))
            ),
            **kept_longer(field(answer, "usage")),
        },
        finish_reasons=[reason] if reason is not None else None,
        messages=[read_answer(message, reason)] if content and message is not None else None,
    )


def usage(told: Any) -> dict[str, Any]:
    """Token counts.  Bedrock's `inputTokens` leaves cached ones out, OpenTelemetry's has them in."""
    fresh = count(field(told, "inputTokens"))
    read = _first_count(field(told, "cacheReadInputTokens"), field(told, "cacheReadInputTokenCount"))
    written = _first_count(field(told, "cacheWriteInputTokens"), field(told, "cacheWriteInputTokenCount"))
    return without_none(
        {
            "input_tokens": None if fresh is None else fresh + (read or 0) + (written or 0),
            "output_tokens": count(field(told, "outputTokens")),
            "cache_read_tokens": read,
            "cache_write_tokens": written,
        }
    )


def kept_longer(told: Any) -> dict[str, int]:
    """Tokens written to the cache for an hour, for a response's `extra`: these cost more."""
    details = items(field(told, "cacheDetails"))
    longer = sum(count(field(each, "inputTokens")) or 0 for each in details if field(each, "ttl") == "1h")
    return {names.CACHE_WRITE_1H_TOKENS: longer} if longer else {}


def fold_converse(so_far: Response, event: Any, content: bool) -> Response:
    """The response after one more event, which has one key: its kind."""
    streamed = start(so_far, content)
    changes: dict[str, Any] = {}
    draft = None if streamed.drafts is None else streamed.drafts.of()
    for kind, value in (mapping(event) or {}).items():
        name = field(field(field(value, "start"), "toolUse"), "name")
        note_call(streamed, changes, field(value, "contentBlockIndex"), name)
        if kind == "metadata":
            changes |= usage(field(value, "usage"))
            changes["extra"] = {**streamed.extra, **kept_longer(field(value, "usage"))}
            changes |= without_none({"service_tier": text(field(field(value, "serviceTier"), "type"))})
        elif kind == "messageStop":
            reason = text(field(value, "stopReason"))
            changes |= {"done": True, "finish_reasons": [reason] if reason is not None else None}
            if draft is not None:
                draft.finish_reason = finish_reason_name(reason)
        elif draft is not None:
            _fold_block(draft, kind, value)
    return replace(streamed, **changes) if changes else streamed


def _fold_block(draft: Draft, kind: str, value: Any) -> None:
    index = field(value, "contentBlockIndex")
    if kind == "contentBlockStart":
        tool = field(field(value, "start"), "toolUse")
        if tool is not None:
            draft.tool(index, text(field(tool, "toolUseId")), text(field(tool, "name")), "")
    elif kind == "contentBlockDelta":
        delta = field(value, "delta")
        words = text(field(delta, "text"))
        thought = text(field(field(delta, "reasoningContent"), "text"))
        arguments = text(field(field(delta, "toolUse"), "input"))
        if words is not None:
            draft.part({"type": "text", "content": words})
        if thought is not None:
            draft.part({"type": "reasoning", "content": thought})
        if arguments is not None:
            draft.tool(index, None, None, arguments)


def has_content(event: Any) -> bool:
    """Does an event carry something the model has written: text, reasoning, a tool call?"""
    delta = field(field(event, "contentBlockDelta"), "delta")
    return bool(delta) or field(field(field(event, "contentBlockStart"), "start"), "toolUse") is not None
