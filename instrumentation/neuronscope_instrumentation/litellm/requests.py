"""What is asked of LiteLLM, which takes and gives OpenAI's words for every provider."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace as change
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Endpoint, Operation, Peer, ReadRequest, Request, Response, Snapshot
from neuronscope.signals import names
from neuronscope_instrumentation.cohere.requests import read_rerank_request
from neuronscope_instrumentation.cohere.responses import read_rerank
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.common.peers import peer_at
from neuronscope_instrumentation.litellm.streams import fold_chat, headers_of, read_headers, tokens
from neuronscope_instrumentation.openai.answers import read_chat
from neuronscope_instrumentation.openai.chat import CHAT as OPENAI_CHAT
from neuronscope_instrumentation.openai.chat import keep_chat
from neuronscope_instrumentation.openai.embeddings import EMBEDDINGS as OPENAI_EMBEDDINGS
from neuronscope_instrumentation.openai.embeddings import keep_embeddings, read_embeddings
from neuronscope_instrumentation.openai.events import RESPONSES as OPENAI_RESPONSES
from neuronscope_instrumentation.openai.responses import keep_request
from neuronscope_instrumentation.openai.routes import KEPT

# LiteLLM's names of providers where OpenTelemetry has another.
PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "azure_text": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "cohere_chat": "cohere",
    "gemini": "gcp.gemini",
    "hosted_vllm": "vllm",
    "mistral": "mistral_ai",
    "ollama_chat": "ollama",
    "text-completion-openai": "openai",
    "vertex_ai": "gcp.vertex_ai",
    "vertex_ai_beta": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
UNKNOWN: Final = "litellm"  # until the answer tells
_KEPT: Final = KEPT | {"top_n"}
Keep = Callable[[dict[str, Any], Mapping[str, Any], bool], None]
TakeSnapshot = Callable[[Any, dict[str, Any], bool], Snapshot | None]


def _snapshot(endpoint: Endpoint, keep: Keep) -> TakeSnapshot:
    def snapshot(_: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
        if arguments.get("mock_response") is not None:
            return None  # nobody's model is asked
        asked = {name: value for name, value in arguments.items() if value is not None}
        kept = {name: asked[name] for name in _KEPT if name in asked}
        keep(kept, asked, content)
        provider, model = split(asked)
        kept["model"] = model
        address = text(asked.get("api_base")) or text(asked.get("base_url"))
        name = PROVIDERS.get(provider, provider)
        peer = Peer(name) if address is None or "://" not in address else peer_at(address, _always(name))
        return Snapshot(endpoint, model, kept, peer)

    return snapshot


@lru_cache(maxsize=64)
def _always(name: str) -> Callable[[str], str]:
    """A provider that no host tells: LiteLLM has said it."""

    def provider(host: str) -> str:
        return name

    return provider


def split(arguments: Mapping[str, Any]) -> tuple[str, str | None]:
    """Provider and model of a call, as LiteLLM takes them apart."""
    model, provider = text(arguments.get("model")), text(arguments.get("custom_llm_provider"))
    if model is None:
        return provider or UNKNOWN, None
    prefix, slash, rest = model.partition("/")
    if slash and (prefix == provider or (provider is None and prefix in _known())):
        return prefix, rest
    told = mapping(vars(sys.modules["litellm"]).get("model_cost")) or {}
    return provider or text(field(told.get(model), "litellm_provider")) or UNKNOWN, model


def _known() -> frozenset[str]:
    return frozenset(str(getattr(name, "value", name)) for name in sys.modules["litellm"].provider_list)


def keep_rerank(kept: dict[str, Any], asked: Mapping[str, Any], content: bool) -> None:
    """How many documents, and with content the query."""
    kept["input_count"] = len(items(asked.get("documents"))) or None
    if content:
        kept["query"] = text(asked.get("query"))


# --- answers -----------------------------------------------------------------------------------------
def _read_chat(result: Any, content: bool) -> Response:
    response = read_chat(result, content)
    # Counts by modality are LiteLLM's own sums.
    extra = {key: value for key, value in response.extra.items() if not key.startswith("gen_ai.usage.")}
    unknown = {"input_tokens": None, "output_tokens": None}
    told = tokens([field(result, "usage")])
    return with_provider(replace(response, extra=extra, **{**unknown, **told}), result)


def _read_embeddings(result: Any, content: bool) -> Response:
    response = read_embeddings(result, content)
    return with_provider(replace(response, input_tokens=response.input_tokens or None), result)


def _read_rerank(result: Any, content: bool) -> Response:
    return with_provider(read_rerank(result, content), result)


def with_provider(response: Response, result: Any) -> Response:
    """The response with what LiteLLM keeps beside it: the provider, which no name may tell; its limits."""
    told = text(field(getattr(result, "_hidden_params", None), "custom_llm_provider"))
    provider = {} if told is None else {names.PROVIDER_NAME: PROVIDERS.get(told, told)}
    return replace(response, extra={**response.extra, **read_headers(headers_of(result)), **provider})


def _not_openais(read: ReadRequest) -> ReadRequest:
    """A reader whose requests are in OpenAI's words, and go to anybody."""

    def read_request(kept: Mapping[str, Any], content: bool) -> Request:
        return replace(read(kept, content), api_type=None)

    return read_request


# Nor are its answers: errors are LiteLLM's, and headers not at hand.
_NOT_OPENAIS: Final[dict[str, Any]] = dict.fromkeys(
    ("read_error", "read_headers", "tell_request", "tell_response")
)
CHAT: Final = change(
    OPENAI_CHAT,
    read_request=_not_openais(OPENAI_CHAT.read_request),
    read_response=_read_chat,
    fold_chunk=fold_chat,
    **_NOT_OPENAIS,
)
EMBEDDINGS: Final = change(OPENAI_EMBEDDINGS, read_response=_read_embeddings, **_NOT_OPENAIS)
RESPONSES: Final = change(
    OPENAI_RESPONSES,
    read_request=_not_openais(OPENAI_RESPONSES.read_request),
    **_NOT_OPENAIS,
)
RERANK: Final = Endpoint(
    operation=Operation.RERANK, read_request=read_rerank_request, read_response=_read_rerank
)
SNAPSHOTS: Final[Mapping[str, TakeSnapshot]] = {
    "completion": _snapshot(CHAT, keep_chat),
    "embedding": _snapshot(EMBEDDINGS, keep_embeddings),
    "rerank": _snapshot(RERANK, keep_rerank),
    "responses": _snapshot(RESPONSES, keep_request),
}
