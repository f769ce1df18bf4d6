"""What came back: chat completions and embeddings, parsed by the SDK or still JSON."""

from __future__ import annotations

from typing import Any

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Response
from neuronscope_instrumentation.common.fields import count, document, field, items, text
from neuronscope_instrumentation.openai.messages import read_message


def read_chat(result: Any, content: bool) -> Response:
    """A chat completion in our words."""
    completion = document(result)
    choices = items(field(completion, "choices"))
    if len(choices) > 1:
        choices = sorted(choices, key=lambda choice: count(field(choice, "index")) or 0)
    reasons = [text(field(choice, "finish_reason")) for choice in choices]
    messages = None
    if content and choices:
        messages = [
            read_message(field(choice, "message"), why) for choice, why in zip(choices, reasons, strict=True)
        ]
    return Response(
        **head(completion),
        **usage(field(completion, "usage")),
        finish_reasons=[reason for reason in reasons if reason is not None] or None,
        messages=messages,
    )


def embeddings_size(result: Any) -> int:
    """About how many bytes the vectors of a result take, as lists of Python's floats."""
    vectors = items(field(result, "data"))
    return len(vectors) * len(items(field(vectors[0], "embedding"))) * 32 if vectors else 0


def head(completion: Any) -> dict[str, Any]:
    """Facts that a completion and each of its chunks carry; absent ones are left out."""
    facts = {
        "id": text(field(completion, "id")),
        "model": text(field(completion, "model")),
        "service_tier": text(field(completion, "service_tier")),
        "system_fingerprint": text(field(completion, "system_fingerprint")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def usage(reported: Any) -> dict[str, Any]:
    """Token counts as the provider reported them: `prompt_tokens` includes cached ones."""
    prompt, completion = (
        field(reported, "prompt_tokens_details"),
        field(reported, "completion_tokens_details"),
    )
    counts = {
        "input_tokens": count(field(reported, "prompt_tokens")),
        "output_tokens": count(field(reported, "completion_tokens")),
        "cache_read_tokens": count(field(prompt, "cached_tokens")),
        "cache_write_tokens": count(field(prompt, "cache_write_tokens")),
        "reasoning_tokens": count(field(completion, "reasoning_tokens")),
    }
    return {name: value for name, value in counts.items() if value is not None}


def read_error(error: BaseException) -> ErrorFacts:
    """A failed call: `parse` raises after the model has answered, with the billed completion at hand."""
    completion = getattr(error, "completion", None)
    return ErrorFacts(
        type_name(error),
        count(getattr(error, "status_code", None)),
        None if completion is None else read_chat(completion, False),
    )


def read_embeddings(result: Any, content: bool) -> Response:
    """An embeddings answer in our words: never a vector, only its length."""
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
