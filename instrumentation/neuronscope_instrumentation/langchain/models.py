"""A model run in our words: what was asked, and what LangChain made of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Message, Operation, Peer, Request, Response, Snapshot
from neuronscope_instrumentation.common.asking import asked, output_format, parameters, spoken, tools_called
from neuronscope_instrumentation.common.fields import count, field, items, mapping, number, text
from neuronscope_instrumentation.common.parts import Part, content_parts, tool_call, without_none

# LangChain's names of providers where OpenTelemetry has another.
PROVIDERS: Final[Mapping[str, str]] = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "chat": "user"}


class End:
    """The end of a streamed run, as the last of its chunks."""

    def __init__(self, result: Any) -> None:
        self.result = result


def snapshot(endpoint: Endpoint, sent: Any, told: Mapping[str, Any], content: bool) -> Snapshot:
    """What to keep of the start of a model run.

    Args:
        sent: messages of a chat, or a prompt.
        told: keyword arguments of the callback.
    """
    metadata = mapping(told.get("metadata")) or {}
    params = mapping(told.get("invocation_params")) or {}
    model = text(metadata.get("ls_model_name")) or text(params.get("model_name")) or text(params.get("model"))
    provider = text(metadata.get("ls_provider")) or "langchain"
    kept: dict[str, Any] = {
        "model": model,
        "temperature": metadata.get("ls_temperature"),
        "max_tokens": metadata.get("ls_max_tokens"),
        "stop": list(items(metadata.get("ls_stop"))) if content else None,
        "message_count": len(items(sent)) or None,
        "sent": list(items(sent)) if content and not isinstance(sent, str) else sent if content else None,
        "params": {name: params[name] for name in _KEPT if name in params},
    }
    return Snapshot(endpoint, model, kept, Peer(PROVIDERS.get(provider, provider)))


_KEPT: Final = (
    "top_p",
    "top_k",
    "seed",
    "n",
    "frequency_penalty",
    "presence_penalty",
    "max_tokens",
    "stream",
    "tools",
    "response_format",
    "reasoning_effort",
)
_PARAMETERS: Final = parameters(
    "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty", "max_tokens", choice_count="n"
)


def read_request(kept: Mapping[str, Any], content: bool) -> Request:
    """What was asked."""
    params, sent = dict(kept["params"]), kept["sent"]
    if count(kept["max_tokens"]) is not None:
        params["max_tokens"] = kept["max_tokens"]
    return asked(
        params,
        _PARAMETERS,
        tools=items(params.get("tools")),
        effort=params.get("reasoning_effort"),
        model=text(kept["model"]),
        temperature=number(kept["temperature"]),
        output_type=output_format(params.get("response_format")),
        message_count=count(kept["message_count"]),
        content=spoken(list(_sent(sent)), (), items(params.get("tools")), kept["stop"]) if content else None,
    )


def _sent(sent: Any) -> Iterator[Message]:
    if isinstance(sent, str):
        yield Message("user", [{"type": "text", "content": sent}])
    for message in items(sent):
        yield read_message(message, None)


def read_message(message: Any, reason: str | None) -> Message:
    """A message in OpenTelemetry's schema."""
    kind = text(field(message, "type")) or "user"
    if kind == "tool":
        answer = {
            "type": "tool_call_response",
            "id": text(field(message, "tool_call_id")),
            "response": field(message, "content"),
        }
        return Message("tool", [without_none(answer)])
    parts = list(content_parts(field(message, "content"), _part))
    parts += [
        tool_call(text(field(call, "id")), text(field(call, "name")), field(call, "args"))
        for call in items(field(message, "tool_calls"))
    ]
    return Message(_ROLES.get(kind, kind), parts, reason)


def _part(block: Any) -> Part:
    if isinstance(block, str):
        return {"type": "text", "content": block}
    kind = text(field(block, "type")) or "unknown"
    words = text(field(block, "text"))
    if kind == "text" or words is not None:
        return {"type": "text", "content": words or ""}
    thought = text(field(block, "thinking")) or text(field(block, "reasoning"))
    return {"type": "reasoning", "content": thought} if thought is not None else {"type": kind}


def read_result(result: Any, content: bool) -> Response:
    """What came back: the candidates of one prompt, and their tokens as the provider told LangChain."""
    candidates = items(next(iter(items(field(result, "generations"))), None))
    messages = [field(each, "message") for each in candidates]
    told = [mapping(field(each, "generation_info")) or {} for each in candidates]
    metadata = [mapping(field(each, "response_metadata")) or {} for each in messages]
    reasons = [
        text(info.get("finish_reason")) or text(meta.get("finish_reason")) or text(meta.get("stop_reason"))
        for info, meta in zip(told, metadata, strict=True)
    ]
    first = metadata[0] if metadata else {}
    return Response(
        **_tokens(messages, field(result, "llm_output")),
        service_tier=text(first.get("service_tier")),
        extra=tools_called(
            field(call, "name") for message in messages for call in items(field(message, "tool_calls"))
        ),
        model=text(first.get("model_name")) or text(first.get("model")),
        id=text(first.get("id")),
        finish_reasons=[reason for reason in reasons if reason is not None] or None,
        messages=[
            _answer(each, message, reason)
            for each, message, reason in zip(candidates, messages, reasons, strict=True)
        ]
        if content
        else None,
    )


def _answer(candidate: Any, message: Any, reason: str | None) -> Message:
    if message is not None:
        return read_message(message, reason)
    return Message("assistant", [{"type": "text", "content": text(field(candidate, "text")) or ""}], reason)


def _tokens(messages: list[Any], output: Any) -> dict[str, Any]:
    told = [field(message, "usage_metadata") for message in messages]
    usage: Any = next((each for each in told if each), None)
    if usage is None:
        older = field(output, "token_usage")
        found = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
        return without_none({ours: count(field(older, theirs)) for ours, theirs in found.items()})
    detail, made = field(usage, "input_token_details"), field(usage, "output_token_details")
    return without_none(
        {
            "input_tokens": count(field(usage, "input_tokens")),
            "output_tokens": count(field(usage, "output_tokens")),
            "cache_read_tokens": count(field(detail, "cache_read")),
            "cache_write_tokens": count(field(detail, "cache_creation")),
            "reasoning_tokens": count(field(made, "reasoning")),
        }
    )


def was_cached(result: Any) -> bool:
    """Did LangChain answer from its own cache?  It marks such answers as free."""
    candidates = items(next(iter(items(field(result, "generations"))), None))
    return any(
        field(field(field(each, "message"), "usage_metadata"), "total_cost") == 0 for each in candidates
    )


def _fold(so_far: Response, chunk: Any, content: bool) -> Response:
    return read_result(chunk.result, content) if isinstance(chunk, End) else so_far


CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_result,
    fold_chunk=_fold,
    is_content=bool,
)
COMPLETION: Final = replace(CHAT, operation=Operation.TEXT_COMPLETION)
