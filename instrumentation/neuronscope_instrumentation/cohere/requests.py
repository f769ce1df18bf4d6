"""What is asked: which endpoint a request is, what to keep of it, and how to read that afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Snapshot
from neuronscope_instrumentation.cohere.messages import read_message, read_turn
from neuronscope_instrumentation.cohere.responses import (
    fold_event,
    has_content,
    read_chat,
    read_embeddings,
    read_rerank,
)
from neuronscope_instrumentation.common.asking import (
    asked,
    embeddings_reader,
    output_format,
    parameters,
    spoken,
)
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import count, items, mapping, text
from neuronscope_instrumentation.common.headers import header_reader
from neuronscope_instrumentation.common.peers import peer_at

# Scalars of a body, which nobody can change afterwards.
_KEPT: Final = (
    "model",
    "stream",
    "temperature",
    "p",
    "k",
    "max_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "num_generations",
    "output_dimension",
    "top_n",
)
# Content of a body: texts, and lists that are copied.
_CONTENT: Final = (
    "messages",
    "message",
    "preamble",
    "prompt",
    "chat_history",
    "stop_sequences",
    "query",
)


@lru_cache(maxsize=64)
def provider(host: str) -> str:
    """OpenTelemetry's name of the provider behind a host."""
    if host.endswith(".amazonaws.com"):
        return "aws.bedrock"
    return "azure.ai.inference" if host.endswith((".azure.com", ".azure.net")) else "cohere"


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of an HTTP request; None for requests that call no model."""
    path = arguments.get("path")
    endpoint = _PATHS.get(path.strip("/")) if isinstance(path, str) else None
    body = mapping(arguments.get("json"))
    if endpoint is None or body is None:
        return None
    kept = {name: body[name] for name in _KEPT if name in body}
    if endpoint is CHAT:
        kept["message_count"] = _message_count(body)
        kept["output_type"] = output_format(body.get("response_format"))
        kept["tools"] = list(items(body.get("tools")))
    else:
        counts = (len(items(body.get(name))) for name in _INPUTS)
        kept["input_count"] = next(filter(None, counts), None)
    if content and endpoint is not EMBEDDINGS:
        for name in _CONTENT:
            value = body.get(name)
            kept[name] = list(items(value)) if isinstance(value, list | tuple) else text(value)
    address = str(client.get_base_url(arguments.get("base_url")))
    return Snapshot(endpoint, text(body.get("model")), kept, peer_at(address, provider))


_INPUTS: Final = ("texts", "images", "inputs", "documents")


def _message_count(body: Mapping[str, Any]) -> int | None:
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        return len(items(messages))
    history = len(items(body.get("chat_history")))
    return history + 1 if text(body.get("message")) or text(body.get("prompt")) else None


def inject_headers(client: Any, arguments: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Add trace headers to the HTTP request, unless the service has set its own."""
    options = mapping(arguments.get("request_options")) or {}
    given = mapping(arguments.get("headers")) or {}
    base = client.base_headers  # a function, but in the oldest releases
    defaults = base() if callable(base) else base
    theirs = (given, mapping(options.get("additional_headers")) or {}, mapping(defaults) or {})
    if any(name.lower() in headers for source in theirs for name in source):
        return
    arguments["headers"] = {**given, **headers}


_PARAMETERS: Final = parameters(
    "model",
    "temperature",
    "max_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "message_count",
    "output_type",
    top_p="p",
    top_k="k",
    choice_count="num_generations",
)


def read_chat_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat of either version, or a generation, in our words."""
    tools, preamble = items(arguments.get("tools")), text(arguments.get("preamble"))
    system = [{"type": "text", "content": preamble}] if preamble else []
    said = spoken(_messages(arguments), system, tools, arguments.get("stop_sequences")) if content else None
    return asked(arguments, _PARAMETERS, tools=tools, content=said)


def _messages(arguments: Mapping[str, Any]) -> list[Message]:
    messages = [read_message(message) for message in items(arguments.get("messages"))]
    messages += [read_turn(turn) for turn in items(arguments.get("chat_history"))]
    last = text(arguments.get("message")) or text(arguments.get("prompt"))
    if last is not None:
        messages.append(Message("user", [{"type": "text", "content": last}]))
    return messages


def read_rerank_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A reranking in our words."""
    return Request(
        model=text(arguments.get("model")),
        input_count=count(arguments.get("input_count")),
        k=count(arguments.get("top_n")),
        query_text=text(arguments.get("query")) if content else None,
    )


# Limits are told to trial keys alone.
read_headers: Final = header_reader(
    {"requests": "x-trial-endpoint-call-{bound}"}, ("x-debug-trace-id", "x-request-id")
)

CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_chat_request,
    read_response=read_chat,
    fold_chunk=fold_event,
    is_content=has_content,
    is_complete=is_done,
    read_headers=read_headers,
)
GENERATE: Final = replace(CHAT, operation=Operation.TEXT_COMPLETION)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=embeddings_reader(parameters("model", "input_count", dimensions="output_dimension")),
    read_response=read_embeddings,
    read_headers=read_headers,
)
RERANK: Final = Endpoint(
    operation=Operation.RERANK,
    read_request=read_rerank_request,
    read_response=read_rerank,
    read_headers=read_headers,
)
_PATHS: Final[Mapping[str, Endpoint]] = {
    "v1/chat": CHAT,
    "v2/chat": CHAT,
    "chat": CHAT,  # releases before 5.6 kept the version in the base URL
    "v1/generate": GENERATE,
    "generate": GENERATE,
    "v1/embed": EMBEDDINGS,
    "v2/embed": EMBEDDINGS,
    "embed": EMBEDDINGS,
    "v1/rerank": RERANK,
    "v2/rerank": RERANK,
    "rerank": RERANK,
}
