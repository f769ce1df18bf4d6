"""Embeddings: never a text, never a vector, only how many and how long."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from neuronscope.engine.facts import request_table
from neuronscope.instrumentation import Endpoint, Operation, Request, Response
from neuronscope_instrumentation.common.fields import (
    COUNT,
    TEXTS,
    count,
    document,
    field,
    fields,
    items,
    mapping,
    teller,
    text,
)
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.facts import read_headers

_INPUT_COUNT: Final = "input_count"
_INPUTS: Final = "inputs"
_MAX_INPUTS: Final = 64  # whose structure is looked at


def keep_embeddings(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` how many texts there are."""
    given = body.get("input")
    kept[_INPUT_COUNT] = input_count(given)
    if content:
        inputs = [given] if isinstance(given, str) else items(given)[:_MAX_INPUTS]
        kept[_INPUTS] = [each for each in inputs if isinstance(each, str)]


def input_count(value: Any) -> int | None:
    """How many inputs there are: one string, or one list of tokens, is one."""
    if isinstance(value, str):
        return 1
    inputs = items(value)
    if not inputs:
        return None
    return 1 if isinstance(inputs[0], int) else len(inputs)


def read_embeddings_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """An embeddings request in our words."""
    encoding = text(arguments.get("encoding_format"))
    return Request(
        model=text(arguments.get("model")),
        dimensions=count(arguments.get("dimensions")),
        encoding_formats=None if encoding is None else [encoding],
        input_count=count(arguments.get(_INPUT_COUNT)),
        inputs=arguments.get(_INPUTS) if content else None,
    )


_tell_request: Final = teller(
    request_table((
        "dimensions", "dimensions", COUNT,
        "encoding_format", "encoding_formats", TEXTS,
        _INPUT_COUNT, "input_count", COUNT,
    ))
)  # fmt: skip


def read_embeddings(result: Any, content: bool) -> Response:
    """An embeddings answer in our words."""
    answer = document(result)
    vectors = items(field(answer, "data"))
    return Response(
        model=text(field(answer, "model")),
        input_tokens=count(field(field(answer, "usage"), "prompt_tokens")),
        dimensions=_dimension(field(vectors[0], "embedding")) if vectors else None,
    )


def _dimension(vector: Any) -> int | None:
    """Length of a vector, of numbers or of base64-encoded 32-bit floats."""
    if isinstance(vector, str):
        return (len(vector) * 3 // 4 - vector[-2:].count("=")) // 4
    return len(items(vector)) or None


def embeddings_size(result: Any) -> int:
    """About how many bytes the vectors of a result take, as lists of Python's floats."""
    vectors = items(fields(result).get("data"))
    return len(vectors) * len(items(fields(vectors[0]).get("embedding"))) * 32 if vectors else 0


def embeds_alike(client: Any, arguments: Mapping[str, Any]) -> Callable[[Any, Sequence[str]], Any] | None:
    """Embed other texts by the model and with the dimensions of a call; None for an asynchronous client."""
    create = getattr(getattr(client, "embeddings", None), "create", None)
    if create is None or inspect.iscoroutinefunction(create):
        return None
    body = mapping(arguments["options"].json_data) or {}
    kept = {key: body[key] for key in ("model", "dimensions") if body.get(key) is not None}

    def embed(same: Any, texts: Sequence[str]) -> list[Any]:
        return [item.embedding for item in same.embeddings.create(input=list(texts), **kept).data]

    return embed


EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_embeddings_request,
    read_response=read_embeddings,
    read_error=read_error,
    read_headers=read_headers,
    size=embeddings_size,
    embedder=embeds_alike,
    tell_request=_tell_request,
)
