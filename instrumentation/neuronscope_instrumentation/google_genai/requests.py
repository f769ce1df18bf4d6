"""What is asked: which endpoint a path names, what to keep of a request, and how to read that afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Operation, Request, Snapshot
from neuronscope_instrumentation.common.asking import asked, embeddings_reader, parameters, spoken
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import count, field, fields, items, mapping, number, text
from neuronscope_instrumentation.common.parts import without_none
from neuronscope_instrumentation.common.peers import Provider, peer_at
from neuronscope_instrumentation.google_genai.messages import content_parts, read_content
from neuronscope_instrumentation.google_genai.responses import (
    fold_chunk,
    has_content,
    read_embeddings,
    read_error,
    read_response,
)

# The SDK has made the request's dictionary for this call: nobody can change it afterwards.
_CONTENT: Final = ("contents", "systemInstruction")


def gemini(host: str) -> str:
    """The Gemini API, wherever it is reached."""
    return "gcp.gemini"


def vertex(host: str) -> str:
    """Vertex AI, wherever it is reached."""
    return "gcp.vertex_ai"


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of a call to the API client; None for requests that call no model."""
    path, body = arguments.get("path"), mapping(arguments.get("request_dict"))
    named = call_of(path) if isinstance(path, str) else None
    if named is None or body is None:
        return None
    model, method = named
    endpoint = _METHODS.get(method)
    if endpoint is None or (method == "predict" and not _embeds(body)):
        return None
    kept: dict[str, Any] = {"model": model, "stream": method == "streamGenerateContent"}
    if endpoint is EMBEDDINGS:
        kept["input_count"] = _inputs(body)
        kept["dimensions"] = _dimensions(body)
    else:
        kept["config"] = body.get("generationConfig")
        contents = body.get("contents")
        kept["message_count"] = len(items(contents)) or None
        kept["tools"] = body.get("tools")
        if content:
            kept.update((name, body.get(name)) for name in _CONTENT)
    return Snapshot(endpoint, model, kept, _peer(client))


def _peer(client: Any) -> Any:
    provider: Provider = vertex if client.vertexai else gemini
    return peer_at(str(field(client._http_options, "base_url") or ""), provider)


@lru_cache(maxsize=256)
def call_of(path: str) -> tuple[str, str] | None:
    """Model and method of a path like ``publishers/google/models/m:generateContent?alt=sse``."""
    resource, separator, method = path.partition("?")[0].rpartition(":")
    return (resource.rpartition("/")[2], method) if separator else None


def _embeds(body: Mapping[str, Any]) -> bool:
    """Vertex predicts many things; embeddings are asked for by `content`."""
    instances = items(body.get("instances"))
    return bool(instances) and field(instances[0], "content") is not None


def _inputs(body: Mapping[str, Any]) -> int | None:
    for name in ("requests", "instances", "contents"):
        if body.get(name) is not None:
            return len(items(body.get(name)))
    return 1 if body.get("content") is not None else None


def _dimensions(body: Mapping[str, Any]) -> int | None:
    requests = items(body.get("requests"))
    sources = (requests[0] if requests else None, body, field(body.get("parameters"), "outputDimensionality"))
    for source in sources:
        told = count(source) or count(field(source, "outputDimensionality"))
        if told is not None:
            return told
    return None


_PARAMETERS: Final = parameters(
    "temperature",
    "seed",
    top_p="topP",
    max_tokens="maxOutputTokens",
    frequency_penalty="frequencyPenalty",
    presence_penalty="presencePenalty",
    choice_count="candidateCount",
)


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A generation in our words."""
    config, tools = fields(arguments.get("config")), _tools(arguments.get("tools"))
    top_k = number(config.get("topK"))  # the SDK takes it as a float
    return asked(
        config,
        _PARAMETERS,
        tools=tools,
        effort=field(config.get("thinkingConfig"), "thinkingLevel"),
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True or None,
        top_k=None if top_k is None else int(top_k),
        output_type=_output_type(config),
        message_count=count(arguments.get("message_count")),
        content=spoken(
            [read_content(one) for one in items(arguments.get("contents"))],
            list(content_parts(arguments.get("systemInstruction"))),
            tools,
            config.get("stopSequences"),
        )
        if content
        else None,
    )


def _output_type(config: Mapping[str, Any]) -> str | None:
    wanted = {str(kind).lower() for kind in items(config.get("responseModalities"))} - {"text"}
    if config.get("responseMimeType") == "application/json":
        return "json"
    return _MODALITIES.get(next(iter(wanted), "")) if len(wanted) == 1 else None


_MODALITIES: Final = {"image": "image", "audio": "speech"}


def _tools(tools: Any) -> list[Mapping[str, Any]]:
    """Definitions of tools: type and name; tools of the provider by their kind."""
    told: list[Mapping[str, Any]] = []
    for tool in items(tools):
        declared = items(field(tool, "functionDeclarations"))
        told += [without_none({"type": "function", "name": text(field(one, "name"))}) for one in declared]
        known = mapping(tool) or {}
        told += [{"type": kind, "name": kind} for kind in known if kind != "functionDeclarations"]
    return told


GENERATE: Final = Endpoint(
    operation=Operation.GENERATE_CONTENT,
    read_request=read_request,
    read_response=read_response,
    fold_chunk=fold_chunk,
    is_content=has_content,
    is_complete=is_done,
    read_error=read_error,
)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=embeddings_reader(parameters("model", "dimensions", "input_count")),
    read_response=read_embeddings,
    read_error=read_error,
)
_METHODS: Final[Mapping[str, Endpoint]] = {
    "generateContent": GENERATE,
    "streamGenerateContent": GENERATE,
    "batchEmbedContents": EMBEDDINGS,
    "embedContent": EMBEDDINGS,
    "predict": EMBEDDINGS,
}
