"""What is asked: which endpoint a request is, what to keep of it, and how to read that afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Snapshot
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import count, field, items, mapping, number, text
from neuronscope_instrumentation.common.parts import without_none
from neuronscope_instrumentation.common.peers import peer
from neuronscope_instrumentation.ollama.messages import prompt_parts, read_message
from neuronscope_instrumentation.ollama.responses import (
    fold_part,
    has_content,
    read_embeddings,
    read_response,
)

# Read from a request's `options`.
_OPTIONS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "num_predict",
    "seed",
    "frequency_penalty",
    "presence_penalty",
)
# The library has made a copy of these for the request: nobody can change them afterwards.
_CONTENT: Final = ("messages", "tools", "prompt", "system", "images")


@lru_cache(maxsize=16)
def provider(host: str) -> str:
    """Ollama, wherever it runs."""
    return "ollama"


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of a call to the client's `_request`; None for requests that call no model."""
    endpoint = _PATHS.get(arguments.get("*1"))
    body = mapping(arguments.get("json"))
    if endpoint is None or body is None:
        return None
    options = mapping(body.get("options")) or {}
    kept = {name: options[name] for name in _OPTIONS if name in options}
    kept["stream"] = arguments.get("stream")
    kept["model"] = body.get("model")
    kept["dimensions"] = body.get("dimensions")
    if endpoint is EMBEDDINGS:
        inputs = body.get("input")
        kept["input_count"] = len(items(inputs)) if isinstance(inputs, list | tuple) else 1
    else:
        kept["message_count"] = len(items(body.get("messages"))) or None
        kept["output_type"] = "json" if body.get("format") else None
        if content:
            kept.update((name, body.get(name)) for name in _CONTENT)
            kept["stop"] = options.get("stop")
    return Snapshot(endpoint, text(body.get("model")), kept, peer(client._client.base_url, "", provider))


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat or a completion in our words."""
    stop = arguments.get("stop")
    stops = [stop] if isinstance(stop, str) else list(items(stop))
    system = text(arguments.get("system"))
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        temperature=number(arguments.get("temperature")),
        top_p=number(arguments.get("top_p")),
        top_k=count(arguments.get("top_k")),
        max_tokens=count(arguments.get("num_predict")),
        seed=count(arguments.get("seed")),
        frequency_penalty=number(arguments.get("frequency_penalty")),
        presence_penalty=number(arguments.get("presence_penalty")),
        output_type=text(arguments.get("output_type")),
        message_count=count(arguments.get("message_count")),
        messages=_messages(arguments) if content else None,
        system=[{"type": "text", "content": system}] if content and system else None,
        tools=[_tool(tool) for tool in items(arguments.get("tools"))] or None if content else None,
        stop_sequences=stops or None if content else None,
    )


def _messages(arguments: Mapping[str, Any]) -> list[Message] | None:
    messages = [read_message(message) for message in items(arguments.get("messages"))]
    prompt = list(prompt_parts(arguments.get("prompt"), arguments.get("images")))
    return messages or ([Message("user", prompt)] if prompt else None)


def _tool(tool: Any) -> Mapping[str, Any]:
    """A tool's definition: type and name, as the semantic conventions want by default."""
    kind = text(field(tool, "type")) or "function"
    return without_none({"type": kind, "name": text(field(field(tool, "function"), "name"))})


def read_embeddings_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """An embeddings request in our words; its texts are never kept."""
    return Request(
        model=text(arguments.get("model")),
        dimensions=count(arguments.get("dimensions")),
        input_count=count(arguments.get("input_count")),
    )


def _generating(operation: Operation) -> Endpoint:
    return Endpoint(
        operation=operation,
        read_request=read_request,
        read_response=read_response,
        fold_chunk=fold_part,
        is_content=has_content,
        is_complete=is_done,
    )


CHAT: Final = _generating(Operation.CHAT)
COMPLETION: Final = _generating(Operation.TEXT_COMPLETION)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_embeddings_request,
    read_response=read_embeddings,
)
_PATHS: Final[Mapping[Any, Endpoint]] = {
    "/api/chat": CHAT,
    "/api/generate": COMPLETION,
    "/api/embed": EMBEDDINGS,
    "/api/embeddings": EMBEDDINGS,
}
