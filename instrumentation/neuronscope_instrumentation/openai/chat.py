"""Chat completions: what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Operation, Request
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import count, items, number, text
from neuronscope_instrumentation.openai.answers import read_chat, read_error
from neuronscope_instrumentation.openai.chunks import fold_chat_chunk, has_content
from neuronscope_instrumentation.openai.facts import (
    known,
    output_format,
    read_headers,
    tool_definitions,
    tool_names,
)
from neuronscope_instrumentation.openai.messages import read_message

_MESSAGES: Final = "messages"
_MESSAGE_COUNT: Final = "message_count"
_OUTPUT_TYPE: Final = "output_type"
_STOP: Final = "stop"
_TOOLS: Final = "tools"


def keep_chat(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what of a request's body is no scalar."""
    # A list is copied, never anything that reading would use up.
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        kept[_MESSAGE_COUNT] = len(items(messages))
    if "response_format" in body or "modalities" in body:
        kept[_OUTPUT_TYPE] = _output_type(body)
    tools = body.get("tools") or body.get("functions")
    if tools:
        kept[_TOOLS] = list(items(tools))
    if content:
        kept[_MESSAGES] = list(items(messages))
        stop = body.get("stop")
        kept[_STOP] = [stop] if isinstance(stop, str) else list(items(stop))


def _output_type(body: Mapping[str, Any]) -> str | None:
    return (
        "speech" if "audio" in items(body.get("modalities")) else output_format(body.get("response_format"))
    )


def read_chat_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat request in our words."""
    limit = count(arguments.get("max_completion_tokens"))
    tools: Sequence[Any] = arguments.get(_TOOLS) or ()
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        temperature=number(arguments.get("temperature")),
        top_p=number(arguments.get("top_p")),
        top_k=count(arguments.get("top_k")),
        max_tokens=limit if limit is not None else count(arguments.get("max_tokens")),
        seed=count(arguments.get("seed")),
        frequency_penalty=number(arguments.get("frequency_penalty")),
        presence_penalty=number(arguments.get("presence_penalty")),
        choice_count=count(arguments.get("n")),
        service_tier=text(arguments.get("service_tier")),
        output_type=text(arguments.get(_OUTPUT_TYPE)),
        message_count=count(arguments.get(_MESSAGE_COUNT)),
        api_type="chat_completions",
        messages=[read_message(message) for message in arguments[_MESSAGES]]
        if content and _MESSAGES in arguments
        else None,
        tools=tool_definitions(tools) if content and tools else None,
        stop_sequences=[stop for stop in arguments[_STOP] if isinstance(stop, str)]
        if content and arguments.get(_STOP)
        else None,
        extra=known(
            {
                names.REASONING_LEVEL: text(arguments.get("reasoning_effort")),
                names.TOOLS_OFFERED: tool_names(tools),
            }
        ),
    )


CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_chat_request,
    read_response=read_chat,
    fold_chunk=fold_chat_chunk,
    is_content=has_content,
    read_error=read_error,
    read_headers=read_headers,
)
