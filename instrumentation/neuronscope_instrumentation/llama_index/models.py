"""A model's or an embedder's call in our words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace as change
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Endpoint, Message, Operation, Peer, Request, Response, Snapshot
from neuronscope_instrumentation.anthropic.responses import read_response as read_claude
from neuronscope_instrumentation.common.fields import count, field, items, mapping, number, text
from neuronscope_instrumentation.common.parts import Part, without_none
from neuronscope_instrumentation.openai.answers import read_chat

# LlamaIndex's packages of models where OpenTelemetry has another name.
PROVIDERS: Final[Mapping[str, str]] = {
    "azure_inference": "azure.ai.inference",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google_genai": "gcp.gemini",
    "mistralai": "mistral_ai",
    "vertex": "gcp.vertex_ai",
}


SUBJECT: Final = "*0"  # a first argument that has no name


class End:
    """The end of a streamed call, as the last of its chunks."""

    def __init__(self, result: Any) -> None:
        self.result = result


@lru_cache(maxsize=128)
def provider_of(module: str) -> str:
    """Whose model it is, by the package that its class comes from."""
    parts = module.split(".")
    name = (
        parts[2] if parts[:2] in (["llama_index", "llms"], ["llama_index", "embeddings"]) else "llama_index"
    )
    return PROVIDERS.get(name, name)


def snapshot(endpoint: Endpoint, instance: Any, arguments: Mapping[str, Any], content: bool) -> Snapshot:
    """What to keep of a call's start."""
    model = next(filter(None, (text(getattr(instance, name, None)) for name in _NAMES)), None)
    subject = arguments.get(SUBJECT)
    messages = items(arguments.get("messages", subject))
    prompt = text(arguments.get("prompt", subject))
    kept = {
        "model": model,
        "temperature": getattr(instance, "temperature", None),
        "max_tokens": getattr(instance, "max_tokens", None),
        "message_count": len(messages) or None,
        "input_count": len(items(arguments.get("texts", subject))) or 1,
        "messages": list(messages) if content else (),
        "prompt": prompt if content else None,
    }
    return Snapshot(endpoint, model, kept, Peer(provider_of(type(instance).__module__)))


_NAMES: Final = ("model", "model_name", "model_id")


def _read_model_request(kept: Mapping[str, Any], content: bool) -> Request:
    return Request(
        model=kept["model"],
        temperature=number(kept["temperature"]),
        max_tokens=count(kept["max_tokens"]),
        message_count=kept["message_count"],
        messages=list(_asked(kept)) or None if content else None,
    )


def _asked(kept: Mapping[str, Any]) -> Iterator[Message]:
    prompt = text(kept["prompt"])
    if prompt is not None:
        yield Message("user", [{"type": "text", "content": prompt}])
    for message in kept["messages"]:
        yield read_message(message)


def read_message(message: Any) -> Message:
    """A message in OpenTelemetry's schema."""
    role = field(message, "role")
    name = str(getattr(role, "value", role) or "user")
    return Message({"chatbot": "assistant", "model": "assistant"}.get(name, name), list(_parts(message)))


def _parts(message: Any) -> Iterator[Part]:
    blocks = items(field(message, "blocks"))
    for block in blocks:
        kind = text(field(block, "block_type")) or "unknown"
        words = text(field(block, "text"))
        yield {"type": "text", "content": words} if words is not None else {"type": kind}
    if not blocks and (words := text(field(message, "content"))) is not None:
        yield {"type": "text", "content": words}


def _read_model_response(result: Any, content: bool) -> Response:
    told = _answer(field(result, "raw"))
    counted = {} if told.input_tokens is not None else _tokens(result)
    return replace(told, messages=_said(result) if content else None, **counted)


def _answer(raw: Any) -> Response:
    """The provider's own answer that LlamaIndex keeps, where it is in Anthropic's words or in OpenAI's."""
    return read_claude(raw, False) if field(raw, "type") == "message" else read_chat(raw, False)


def _said(result: Any) -> list[Message] | None:
    message = field(result, "message")
    if message is not None:
        return [read_message(message)]
    words = text(field(result, "text"))
    return None if words is None else [Message("assistant", [{"type": "text", "content": words}])]


def _tokens(result: Any) -> dict[str, Any]:
    """Token counts that the model's package has told, in the words of one of the big providers."""
    usage = field(field(result, "raw"), "usage")
    told: tuple[Any, ...] = (mapping(field(result, "additional_kwargs")) or {}, usage)
    found: dict[str, Any] = {}
    for ours, theirs in (
        ("input_tokens", ("prompt_tokens", "input_tokens")),
        ("output_tokens", ("completion_tokens", "output_tokens")),
    ):
        counts = (count(field(source, name)) for source in told for name in theirs)
        found[ours] = next((each for each in counts if each is not None), None)
    return without_none(found)


def _fold(so_far: Response, chunk: Any, content: bool) -> Response:
    return _read_model_response(chunk.result, content) if isinstance(chunk, End) else so_far


def _read_embedding_request(kept: Mapping[str, Any], content: bool) -> Request:
    return Request(model=kept["model"], input_count=kept["input_count"])


def _read_embedding_response(length: int, content: bool) -> Response:
    return Response(dimensions=length)


def width(result: Any) -> int | None:
    """Length of a vector, or of the first of several; nothing keeps the vectors."""
    vectors = items(result)
    first = vectors[0] if vectors else None
    return len(vectors) if isinstance(first, float) else len(items(first)) or None


CHAT: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=_read_model_request,
    read_response=_read_model_response,
    fold_chunk=_fold,
    is_content=bool,
)
COMPLETION: Final = change(CHAT, operation=Operation.TEXT_COMPLETION)
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=_read_embedding_request,
    read_response=_read_embedding_response,
)
