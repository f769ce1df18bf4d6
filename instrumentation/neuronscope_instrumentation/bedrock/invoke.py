"""`InvokeModel`: JSON bodies in each model family's own words, told apart by their fields.

An id tells a family only where it is no ARN of a profile or of provisioned throughput; fields always do.
Amazon Nova and Titan, Anthropic, Meta Llama, Mistral, Cohere, and whatever follows OpenAI's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from neuronscope.instrumentation import Message, Operation, Request, Response
from neuronscope_instrumentation.anthropic import chunks as claude_chunks
from neuronscope_instrumentation.anthropic import messages as claude_messages
from neuronscope_instrumentation.anthropic import responses as claude
from neuronscope_instrumentation.bedrock import converse
from neuronscope_instrumentation.bedrock import messages as nova_messages
from neuronscope_instrumentation.bedrock.metadata import with_metadata
from neuronscope_instrumentation.cohere import responses as cohere
from neuronscope_instrumentation.common.asking import asked, parameters, spoken
from neuronscope_instrumentation.common.draft import Streamed, start
from neuronscope_instrumentation.common.fields import count, document, field, items, mapping, text
from neuronscope_instrumentation.common.parts import Part, without_none
from neuronscope_instrumentation.mistral import responses as mistral

METRICS: Final = "amazon-bedrock-invocationMetrics"  # on the last chunk of every stream


class Answer(NamedTuple):
    """What came back: the body, None where nobody read it, and what botocore tells beside it."""

    body: bytes | None
    metadata: Mapping[str, Any]


@lru_cache(maxsize=256)
def operation_of(model: str) -> Operation:
    """What a model does, by its id; an ARN that does not tell is taken for a chat model."""
    if "embed" in model:
        return Operation.EMBEDDINGS
    if "rerank" in model:
        return Operation.RERANK
    if any(word in model for word in ("stability.", "titan-image", "canvas", "reel", "luma.")):
        return Operation.GENERATE_CONTENT
    return Operation.TEXT_COMPLETION if "titan-text" in model else Operation.CHAT


# --- requests ----------------------------------------------------------------------------------------
def read_invoke_request(kept: Mapping[str, Any], content: bool) -> Request:
    """A request of a generating model in our words."""
    body = _body(kept)
    config = mapping(body.get("inferenceConfig")) or mapping(body.get("textGenerationConfig")) or {}
    sources = (config, body)
    tools = items(body.get("tools")) or items(field(body.get("toolConfig"), "tools"))
    tools = [tool for tool in map(nova_messages.tool_definition, tools) if tool.get("name")]
    stops = _pick(sources, "stopSequences", "stop_sequences", "stop")
    return asked(
        {ours: _pick(sources, *theirs) for ours, theirs in _PARAMETERS.items()},
        parameters(*_PARAMETERS),
        tools=tools,
        effort=field(body.get("output_config"), "effort") or body.get("reasoning_effort"),
        model=text(kept.get("modelId")),
        stream=kept.get("stream") is True or None,
        output_type=text(kept.get("output_type")),
        service_tier=text(kept.get("service_tier")),
        message_count=len(items(body.get("messages"))) or None,
        content=spoken(_messages(body), list(_parts(body.get("system"))), tools, stops) if content else None,
    )


_PARAMETERS: Final = {
    "temperature": ("temperature",),
    "top_p": ("topP", "top_p", "p"),
    "top_k": ("topK", "top_k", "k"),
    "max_tokens": (
        "maxTokens",
        "maxTokenCount",
        "max_new_tokens",
        "max_tokens",
        "max_gen_len",
        "max_tokens_to_sample",
        "max_completion_tokens",
    ),
    "seed": ("seed",),
}
_PROMPTS: Final = ("message", "prompt", "inputText")


def _body(kept: Mapping[str, Any]) -> Mapping[str, Any]:
    body = kept.get("body")
    return mapping(document(body.encode() if isinstance(body, str) else body)) or {}


def _pick(sources: Iterable[Mapping[str, Any]], *keys: str) -> Any:
    return next((source[key] for source in sources for key in keys if source.get(key) is not None), None)


def _messages(body: Mapping[str, Any]) -> list[Message]:
    messages = [
        claude_messages.read_message(message) if _is_typed(message) else nova_messages.read_message(message)
        for message in items(body.get("messages"))
    ]
    prompt = text(_pick((body,), *_PROMPTS))
    if prompt is not None:
        messages.append(Message("user", [{"type": "text", "content": prompt}]))
    return messages


def _is_typed(message: Any) -> bool:
    """Are the blocks of the message Anthropic's, each with its `type`?"""
    blocks = items(field(message, "content"))
    return bool(blocks) and field(blocks[0], "type") is not None


def _parts(system: Any) -> Iterable[Part]:
    blocks = items(system)
    typed = bool(blocks) and field(blocks[0], "type") is not None
    return claude_messages.content_parts(system) if typed else nova_messages.content_parts(system)


def read_embeddings_request(kept: Mapping[str, Any], content: bool) -> Request:
    """An embeddings request in our words; its texts are never told."""
    body = _body(kept)
    inputs = next(filter(None, (len(items(body.get(key))) for key in ("texts", "inputs", "images"))), 0)
    return Request(
        model=text(kept.get("modelId")),
        dimensions=count(_pick((body,), "dimensions", "output_dimension")),
        input_count=inputs or (1 if body else None),
    )


def read_rerank_request(kept: Mapping[str, Any], content: bool) -> Request:
    """A reranking in our words."""
    body = _body(kept)
    return Request(
        model=text(kept.get("modelId")),
        input_count=len(items(body.get("documents"))) or None,
        k=count(body.get("top_n")),
        query_text=text(body.get("query")) if content else None,
    )


# --- answers -----------------------------------------------------------------------------------------
def read_invoke(answer: Answer, content: bool) -> Response:
    """An answer of a generating model; headers tell the tokens that the body does not."""
    told = document(answer.body)
    if field(told, "output") is not None and field(told, "stopReason") is not None:
        response = converse.read_converse(told, content)
    elif field(told, "type") == "message" or field(told, "stop_sequence") is not None:
        response = claude.read_response(told, content)
    elif field(told, "choices") is not None:
        response = mistral.read_response(told, content)
    elif field(told, "generations") is not None or field(told, "generation_id") is not None:
        response = cohere.read_chat(told, content)
    else:
        response = _fold_plain(Response(), told, content)
    return with_metadata(response, answer.metadata)


def read_invoke_embeddings(answer: Answer, content: bool) -> Response:
    """An embeddings answer in our words: never a vector, only its length."""
    told = document(answer.body)
    vector = items(field(told, "embedding"))
    several = items(field(told, "embeddings"))
    if not vector and several:
        vector = items(field(several[0], "embedding"))
    if vector:
        tokens = count(field(told, "inputTextTokenCount"))
        response = Response(dimensions=len(vector), input_tokens=tokens)
    else:
        response = cohere.read_embeddings(told, content)
    return without_output(with_metadata(response, answer.metadata))


def without_output(response: Response) -> Response:
    """Embedding models generate no token; some headers count 0 of them."""
    return response if response.output_tokens is None else replace(response, output_tokens=None)


def read_invoke_rerank(answer: Answer, content: bool) -> Response:
    """A reranking in our words: how many, and how well the best and the worst fit."""
    response = cohere.read_rerank(document(answer.body), content)
    return without_output(with_metadata(response, answer.metadata))


# --- streams -----------------------------------------------------------------------------------------
def fold_invoke(so_far: Response, chunk: Any, content: bool) -> Response:
    """The response after one more chunk; the last carries Bedrock's own counts."""
    told = document(field(field(chunk, "chunk"), "bytes"))
    if field(told, "type") is not None:
        streamed = claude_chunks.fold_message_event(so_far, told, content)
    elif field(told, "choices") is not None:
        streamed = mistral.fold_chunk(so_far, told, content)
    elif field(told, "event_type") is not None or field(told, "is_finished") is not None:
        streamed = cohere.fold_event(so_far, _cohere_event(told), content)
    elif any(key in _CONVERSE for key in mapping(told) or ()):
        streamed = converse.fold_converse(so_far, told, content)
    else:
        streamed = _fold_plain(so_far, told, content)
    metrics = field(told, METRICS)
    if metrics is None:
        return streamed
    counts = {
        "inputTokens": field(metrics, "inputTokenCount"),
        "outputTokens": field(metrics, "outputTokenCount"),
        "cacheReadInputTokens": field(metrics, "cacheReadInputTokenCount"),
        "cacheWriteInputTokens": field(metrics, "cacheWriteInputTokenCount"),
    }
    known = {key: value for key, value in converse.usage(counts).items() if getattr(streamed, key) is None}
    return replace(streamed, **known) if known else streamed


_CONVERSE: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


def _cohere_event(told: Any) -> Any:
    """An event of the older models has a text and no kind."""
    if field(told, "event_type") is not None:
        return told
    kind = "stream-end" if field(told, "is_finished") is True else "text-generation"
    return {**(mapping(told) or {}), "event_type": kind}


def _fold_plain(so_far: Response, told: Any, content: bool) -> Response:
    """Titan, Llama, Mistral and Cohere completions: a text, a reason and counts, whole or in pieces."""
    streamed = start(so_far, content)
    parts = [told, *items(field(told, "results")), *items(field(told, "outputs"))]
    changes: dict[str, Any] = {}
    draft = None if streamed.drafts is None else streamed.drafts.of()
    for part in parts:
        words = next(filter(None, (text(field(part, key)) for key in _TEXTS)), None)
        if words is not None and draft is not None:
            draft.part({"type": "text", "content": words})
        reason = next(filter(None, (text(field(part, key)) for key in _REASONS)), None)
        if reason is not None:
            changes |= {"finish_reasons": [reason], "done": True}
            if draft is not None:
                draft.finish_reason = nova_messages.finish_reason_name(reason)
        for ours, theirs in _PLAIN_COUNTS:
            tokens = next(filter(None, (count(field(part, key)) for key in theirs)), None)
            changes |= without_none({ours: tokens})
    return replace(streamed, **changes) if changes else streamed


_TEXTS: Final = ("outputText", "generation", "text", "completion")
_REASONS: Final = ("completionReason", "stop_reason", "finish_reason")
_PLAIN_COUNTS: Final = (
    ("input_tokens", ("inputTextTokenCount", "prompt_token_count")),
    ("output_tokens", ("tokenCount", "totalOutputTextTokenCount", "generation_token_count")),
)


def has_content(chunk: Any) -> bool:
    """Does a chunk carry something the model has written?"""
    told = document(field(field(chunk, "chunk"), "bytes"))
    return (
        any(text(field(told, key)) for key in _TEXTS)
        or claude_chunks.has_content(told)
        or converse.has_content(told)
        or mistral.has_content(told)
        or cohere.has_content(told)
        or any(text(field(part, "text")) for part in items(field(told, "outputs")))
    )


def is_complete(response: Response) -> bool:
    """Did the model say why it stopped?"""
    return response.finish_reasons is not None or (isinstance(response, Streamed) and response.done)
