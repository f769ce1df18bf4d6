"""Chat completions: what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronscope.engine.facts import request_table
from neuronscope.instrumentation import Endpoint, Operation, Request
from neuronscope.signals import names
from neuronscope_instrumentation.common.asking import output_format, tool_definitions, tool_names
from neuronscope_instrumentation.common.fields import (
    CONSTANT,
    COUNT,
    FLAG,
    NUMBER,
    ODD,
    RARE,
    TEXT,
    items,
    pick,
    teller,
    text,
)
from neuronscope_instrumentation.openai.answers import read_chat, read_error, tell_chat
from neuronscope_instrumentation.openai.chunks import fold_chat_chunk, has_content
from neuronscope_instrumentation.openai.facts import known, read_headers
from neuronscope_instrumentation.openai.keeping import Usual
from neuronscope_instrumentation.openai.messages import read_message

_MESSAGES: Final = "messages"
_MESSAGE_COUNT: Final = "message_count"
_OUTPUT_TYPE: Final = "output_type"
_STOP: Final = "stop"
_TOOLS: Final = "tools"
_LISTS: Final = (list, tuple)
# What most requests do not have.
_RARE: Final = frozenset({"functions", "modalities", "response_format", "stop", "tools"})
# What `keep_chat` does with all other bodies.
USUAL: Final = Usual(_MESSAGES, _MESSAGE_COUNT, _RARE)


def keep_chat(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what of a request's body is no scalar."""
    messages: Any = body.get("messages")
    is_list = isinstance(messages, _LISTS)
    if is_list:
        kept[_MESSAGE_COUNT] = len(messages)  # pyright: ignore[reportUnknownArgumentType]  # of anything
    if content:
        kept[_MESSAGES] = [*messages] if is_list else []  # never what reading would use up
    if not _RARE.isdisjoint(body):
        _keep_rare(kept, body, content)


def _keep_rare(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    if content:
        stop = body.get("stop")
        if stop is not None:
            kept[_STOP] = [stop] if isinstance(stop, str) else list(items(stop))
    if "response_format" in body or "modalities" in body:
        kept[_OUTPUT_TYPE] = _output_type(body)
    tools = body.get("tools") or body.get("functions")
    if tools:
        kept[_TOOLS] = list(items(tools))


def _output_type(body: Mapping[str, Any]) -> str | None:
    return (
        "speech" if "audio" in items(body.get("modalities")) else output_format(body.get("response_format"))
    )


_API: Final = "chat_completions"
_PARAMETERS: Final = (
    "temperature", "temperature", NUMBER,
    "top_p", "top_p", NUMBER,
    "top_k", "top_k", COUNT,
    "max_tokens", "max_tokens", COUNT,
    "max_completion_tokens", "max_tokens", COUNT,  # the newer one wins
    "seed", "seed", COUNT,
    "frequency_penalty", "frequency_penalty", NUMBER,
    "presence_penalty", "presence_penalty", NUMBER,
    _OUTPUT_TYPE, "output_type", TEXT,
    _MESSAGE_COUNT, "message_count", COUNT,
)  # fmt: skip
_MORE_PARAMETERS: Final = (
    "model", "model", TEXT,
    "n", "choice_count", COUNT,
    "service_tier", "service_tier", TEXT,
)  # fmt: skip


def read_chat_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat request in our words."""
    facts = pick(arguments, _ALL_PARAMETERS)
    facts["api_type"] = _API
    if arguments.get("stream") is True:
        facts["stream"] = True
    effort, tools = text(arguments.get("reasoning_effort")), arguments.get(_TOOLS)
    if effort is not None or tools:
        facts["extra"] = known({names.REASONING_LEVEL: effort, names.TOOLS_OFFERED: tool_names(tools or ())})
    if content:
        facts.update(_content_of(arguments))
    return Request(**facts)


_ALL_PARAMETERS: Final = _PARAMETERS + _MORE_PARAMETERS
# `read_chat_request` of a request without tools, tiers and several choices.
_tell_request: Final = teller(
    request_table((
        "n", "", RARE,
        "service_tier", "", ODD,
        _TOOLS, "", ODD,
        _API, "api_type", CONSTANT,
        *_PARAMETERS,
        "stream", names.REQUEST_STREAM, FLAG,
        "reasoning_effort", names.REASONING_LEVEL, TEXT,
    ))
)  # fmt: skip


def _content_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What may only be read where content is recorded."""
    facts: dict[str, Any] = {}
    if _MESSAGES in arguments:
        facts["messages"] = [read_message(message) for message in arguments[_MESSAGES]]
    if arguments.get(_TOOLS):
        facts["tools"] = tool_definitions(arguments[_TOOLS])
    if arguments.get(_STOP):
        facts["stop_sequences"] = [stop for stop in arguments[_STOP] if isinstance(stop, str)]
    return facts


CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_chat_request,
    read_response=read_chat,
    fold_chunk=fold_chat_chunk,
    is_content=has_content,
    read_error=read_error,
    read_headers=read_headers,
    tell_request=_tell_request,
    tell_response=tell_chat,
)
