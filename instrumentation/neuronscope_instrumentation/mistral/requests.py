"""What is asked: which endpoint a request is, and how to read its body afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Snapshot
from neuronscope_instrumentation.common.asking import SAMPLING, asked, output_format, parameters, spoken
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import document, field, fields, items, text
from neuronscope_instrumentation.common.headers import header_reader
from neuronscope_instrumentation.common.peers import peer
from neuronscope_instrumentation.mistral.messages import read_message
from neuronscope_instrumentation.mistral.responses import (
    fold_chunk,
    has_content,
    read_response,
)
from neuronscope_instrumentation.openai.embeddings import read_embeddings


class _Head(msgspec.Struct):
    """What the span's name needs of a body; the rest is skipped, not decoded."""

    model: Any = None
    agent_id: Any = None


_HEAD: Final = msgspec.json.Decoder(_Head)


@lru_cache(maxsize=64)
def provider(host: str) -> str:
    """OpenTelemetry's name of the provider behind a host."""
    if host.endswith("aiplatform.googleapis.com"):
        return "gcp.vertex_ai"
    return (
        "azure.ai.inference"
        if host.endswith((".inference.ai.azure.com", ".models.ai.azure.com"))
        else "mistral_ai"
    )


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of an HTTP request: its body's bytes; None for requests that call no model."""
    request = arguments["request"]
    endpoint = endpoint_of(request.url.path)
    if endpoint is None or request.method != "POST":
        return None
    body = request.content
    try:
        head = _HEAD.decode(body)
    except msgspec.DecodeError:
        head = _Head()
    model = text(head.model) or text(head.agent_id)
    return Snapshot(endpoint, model, {"body": body}, peer(request.url, "", provider))


def inject_headers(client: Any, arguments: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Add trace headers to the HTTP request, which the SDK has made for this call; the service's own win."""
    request = arguments["request"]
    if not any(name in request.headers for name in headers):
        request.headers.update(headers)


@lru_cache(maxsize=256)
def endpoint_of(path: str) -> Endpoint | None:
    """The endpoint that a path names; cloud platforms have paths of their own."""
    path = path.rstrip("/")
    return next((endpoint for suffix, endpoint in _PATHS if path.endswith(suffix)), None)


_PARAMETERS: Final = parameters(
    "model", *SAMPLING, "max_tokens", "service_tier", seed="random_seed", choice_count="n"
)


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A chat or a completion in our words."""
    body = fields(document(arguments["body"]))
    tools = items(body.get("tools"))
    return asked(
        body,
        _PARAMETERS,
        tools=tools,
        effort=body.get("reasoning_effort"),
        output_type=output_format(body.get("response_format")),
        message_count=len(items(body.get("messages"))) or None,
        content=spoken(_messages(body), (), tools, body.get("stop")) if content else None,
    )


def _messages(body: Any) -> list[Message]:
    messages = [read_message(message) for message in items(field(body, "messages"))]
    # Fill in the middle: what stands before, and after.
    around = [text(field(body, name)) for name in ("prompt", "suffix")]
    parts = [{"type": "text", "content": words} for words in around if words is not None]
    return messages or ([Message("user", parts)] if parts else [])


def read_embeddings_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """An embeddings request in our words; its texts are never told."""
    body = fields(document(arguments["body"]))
    inputs, encoding = body.get("input"), text(body.get("encoding_format"))
    return asked(
        body,
        _EMBEDDING,
        encoding_formats=None if encoding is None else [encoding],
        input_count=1 if isinstance(inputs, str) else len(items(inputs)) or None,
    )


_EMBEDDING: Final = parameters("model", dimensions="output_dimension")


read_headers: Final = header_reader(
    {"requests": "x-ratelimit-{bound}-req-minute", "tokens": "x-ratelimit-{bound}-tokens-minute"},
    ("mistral-correlation-id", "x-request-id"),
)

CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_response,
    fold_chunk=fold_chunk,
    is_content=has_content,
    is_complete=is_done,
    read_headers=read_headers,
)
COMPLETION: Final = replace(CHAT, operation=Operation.TEXT_COMPLETION)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_embeddings_request,
    read_response=read_embeddings,
    read_headers=read_headers,
)
_PATHS: Final = (
    ("/fim/completions", COMPLETION),
    ("/chat/completions", CHAT),
    ("/agents/completions", CHAT),
    ("/embeddings", EMBEDDINGS),
    (":rawPredict", CHAT),
    (":streamRawPredict", CHAT),
)
