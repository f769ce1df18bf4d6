"""What is asked: which endpoint a request is, what to keep of it, and how to read that afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Snapshot
from neuronscope_instrumentation.common.asking import SAMPLING, asked, embeddings_reader, parameters, spoken
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import items, mapping, text
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
_CONTENT: Final = ("messages", "prompt", "system", "images")


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
        kept["tools"] = body.get("tools")
        kept["think"] = body.get("think")
        if content:
            kept.update((name, body.get(name)) for name in _CONTENT)
            kept["stop"] = options.get("stop")
    return Snapshot(endpoint, text(body.get("model")), kept, peer(client._client.base_url, "", provider))


_PARAMETERS: Final = parameters(
    "model", *SAMPLING, "seed", "output_type", "message_count", max_tokens="num_predict"
)


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat or a completion in our words."""
    tools, system = items(arguments.get("tools")), text(arguments.get("system"))
    instructions = [{"type": "text", "content": system}] if system else []
    said = spoken(_messages(arguments), instructions, tools, arguments.get("stop")) if content else None
    think = arguments.get("think")  # a level, or whether at all
    return asked(arguments, _PARAMETERS, tools=tools, effort=think, content=said)


def _messages(arguments: Mapping[str, Any]) -> list[Message]:
    messages = [read_message(message) for message in items(arguments.get("messages"))]
    prompt = list(prompt_parts(arguments.get("prompt"), arguments.get("images")))
    return messages or ([Message("user", prompt)] if prompt else [])


CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_response,
    fold_chunk=fold_part,
    is_content=has_content,
    is_complete=is_done,
)
COMPLETION: Final = replace(CHAT, operation=Operation.TEXT_COMPLETION)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=embeddings_reader(parameters("model", "dimensions", "input_count")),
    read_response=read_embeddings,
)
_PATHS: Final[Mapping[Any, Endpoint]] = {
    "/api/chat": CHAT,
    "/api/generate": COMPLETION,
    "/api/embed": EMBEDDINGS,
    "/api/embeddings": EMBEDDINGS,
}
