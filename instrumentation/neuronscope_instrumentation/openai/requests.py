"""What is asked: which endpoint a request is, what to keep of it, and how to read that afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Operation, Request, Snapshot
from neuronscope_instrumentation.common.fields import count, field, items, mapping, number, text
from neuronscope_instrumentation.openai.chunks import fold_chat_chunk, has_content
from neuronscope_instrumentation.openai.messages import read_message
from neuronscope_instrumentation.openai.peers import peer
from neuronscope_instrumentation.openai.responses import (
    embeddings_size,
    read_chat,
    read_embeddings,
    read_error,
)

# Parameters kept of a request's body: scalars, which nobody can change afterwards.
_KEPT: Final = frozenset(
    {
        "dimensions",
        "encoding_format",
        "frequency_penalty",
        "max_completion_tokens",
        "max_tokens",
        "model",
        "n",
        "presence_penalty",
        "seed",
        "service_tier",
        "stream",
        "temperature",
        "top_k",  # not OpenAI's own: vLLM, llama.cpp and others take it as an extra
        "top_p",
    }
)
_MESSAGES: Final = "messages"
_MESSAGE_COUNT: Final = "message_count"
_INPUT_COUNT: Final = "input_count"
_OUTPUT_TYPE: Final = "output_type"
_STOP: Final = "stop"
_TOOLS: Final = "tools"


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of a call to the client's `request`; None for endpoints that call no model."""
    options = arguments["options"]
    endpoint = endpoint_of(options.url)
    body = mapping(options.json_data)
    if endpoint is None or body is None or options.method.lower() != "post":
        return None
    if options.extra_json:
        body = {**body, **options.extra_json}  # as the SDK merges `extra_body`
    kept = {key: value for key, value in body.items() if key in _KEPT}
    if endpoint is EMBEDDINGS:
        kept[_INPUT_COUNT] = _input_count(body.get("input"))
    else:
        _keep_chat(kept, body, content)
    return Snapshot(endpoint, text(body.get("model")), kept, peer(client, options.url))


def _keep_chat(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    # A list is copied, never anything that reading would use up.
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        kept[_MESSAGE_COUNT] = len(items(messages))
    if "response_format" in body or "modalities" in body:
        kept[_OUTPUT_TYPE] = _output_type(body)
    if content:
        kept[_MESSAGES] = list(items(messages))
        kept[_TOOLS] = list(items(body.get("tools")))
        stop = body.get("stop")
        kept[_STOP] = [stop] if isinstance(stop, str) else list(items(stop))


def _output_type(body: Mapping[str, Any]) -> str | None:
    if "audio" in items(body.get("modalities")):
        return "speech"
    kind = text(field(body.get("response_format"), "type"))
    return "json" if kind is not None and kind.startswith("json") else kind


def _input_count(value: Any) -> int | None:
    """How many texts are embedded: one string, or one list of tokens, is one."""
    if isinstance(value, str):
        return 1
    inputs = items(value)
    if not inputs:
        return None
    return 1 if isinstance(inputs[0], int) else len(inputs)


def read_chat_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat request in our words."""
    limit = count(arguments.get("max_completion_tokens"))
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
        tools=[_tool(tool) for tool in arguments[_TOOLS]] if content and arguments.get(_TOOLS) else None,
        stop_sequences=[stop for stop in arguments[_STOP] if isinstance(stop, str)]
        if content and arguments.get(_STOP)
        else None,
    )


def _tool(tool: Any) -> Mapping[str, Any]:
    """A tool's definition: type and name, as the semantic conventions want by default."""
    kind = text(field(tool, "type")) or "function"
    definition = {"type": kind, "name": text(field(field(tool, kind), "name"))}
    return {key: value for key, value in definition.items() if value is not None}


def read_embeddings_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """An embeddings request in our words; its texts are never kept."""
    encoding = text(arguments.get("encoding_format"))
    return Request(
        model=text(arguments.get("model")),
        dimensions=count(arguments.get("dimensions")),
        encoding_formats=None if encoding is None else [encoding],
        input_count=count(arguments.get(_INPUT_COUNT)),
    )


@lru_cache(maxsize=256)
def endpoint_of(url: str) -> Endpoint | None:
    """The endpoint that a path names; deployments, versions and whole addresses may stand before it."""
    path = url.partition("?")[0].rstrip("/")
    for suffix, endpoint in _PATHS:
        if path.endswith(suffix):
            return endpoint
    return None


CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_chat_request,
    read_response=read_chat,
    fold_chunk=fold_chat_chunk,
    is_content=has_content,
    read_error=read_error,
)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_embeddings_request,
    read_response=read_embeddings,
    size=embeddings_size,
)
_PATHS: Final = (("/chat/completions", CHAT), ("/embeddings", EMBEDDINGS))
