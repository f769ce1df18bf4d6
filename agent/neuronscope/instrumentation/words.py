"""What adapters say: operations, requests and responses in our own words, whoever the provider is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class Operation(StrEnum):
    """What a call does.  GenAI operations carry OpenTelemetry's names."""

    CHAT = "chat"
    TEXT_COMPLETION = "text_completion"
    GENERATE_CONTENT = "generate_content"
    EMBEDDINGS = "embeddings"
    MODERATION = "moderation"  # a verdict on texts or images; not one of OpenTelemetry's names
    INFERENCE = "inference"  # a run of a model that is no language model; not one of OpenTelemetry's names
    TRAIN = "train"  # a trainer's call, and its other one; not OpenTelemetry's names
    EVALUATE = "evaluate"
    TOKENIZE = "tokenize"  # texts to tokens, and back: neither a model's call nor OpenTelemetry's names
    DETOKENIZE = "detokenize"
    FETCH_RESPONSE = "fetch_response"  # of a call that was made before: its tokens are not counted again
    RETRIEVAL = "retrieval"
    RERANK = "rerank"
    STORE = "store"  # a vector store call that is not a similarity search


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in OpenTelemetry's message schema.

    Attributes:
        role: system, user, assistant or tool.
        parts: dictionaries with a ``type`` (``text``, ``reasoning``, ``tool_call``,
            ``tool_call_response``, ``blob``, ``uri``, …).
        finish_reason: on output messages.
    """

    role: str
    parts: Sequence[Mapping[str, Any]]
    finish_reason: str | None = None


class Stage(NamedTuple):
    """One step of a search that has several, such as the halves of a hybrid search and their fusion.

    Attributes:
        kind: how it ranks: ``dense``, ``sparse``, ``bm25``, ``rrf``, ``rerank`` and so on.
        name: of the vector it searches, or of the model that ranks.
        k: hits it hands on, if the request says.
    """

    kind: str
    name: str | None = None
    k: int | None = None


class Query(Struct, frozen=True, kw_only=True):
    """One query of a search.  What is unset is as the request says, or unknown.

    Attributes:
        vector: dense vector searched with: read for dimension, norm and fingerprint, and itself recorded only
            with content.
        text: content.
    """

    vector: Any = None
    text: str | None = None
    k: int | None = None
    filtered: bool | None = None
    metric: str | None = None
    stages: Sequence[Stage] | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What was asked, in our words.  Unset fields are unknown and produce nothing.

    Content fields (`messages`, `inputs`, `query_text`, `Query.text`) are filled only when the engine asks for
    content.
    """

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_sequences: Sequence[str] | None = None
    choice_count: int | None = None
    output_type: str | None = None
    encoding_formats: Sequence[str] | None = None
    dimensions: int | None = None
    conversation_id: str | None = None
    service_tier: str | None = None
    message_count: int | None = None
    input_count: int | None = None
    api_type: str | None = None
    # content
    messages: Sequence[Message] | None = None
    system: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    inputs: Sequence[str] | None = None  # texts to embed; never recorded, read for their structure
    # retrieval
    collection: str | None = None
    namespace: str | None = None
    k: int | None = None
    filtered: bool | None = None
    query_text: str | None = None  # of a reranking; a search has it in `queries`
    queries: Sequence[Query] | None = None  # what was searched with; in order, one record each
    metric: str | None = None  # as in `Response`, for stores whose request or collection tells it
    stages: Sequence[Stage] | None = None
    write_count: int | None = None
    # anything else worth an attribute of the registry, by key
    extra: Mapping[str, Any] = {}


class Hit(Struct, frozen=True):
    """One retrieved document; `score` is as the store returned it.

    Attributes:
        id: empty if the store does not tell.
        metadata: its keys are recorded, its values with content only.
        text: the document, content.
    """

    id: str
    score: float | None
    metadata: Mapping[str, Any] | None = None
    text: str | None = None


class Response(Struct, frozen=True, kw_only=True):
    """What came back, in our words.  For streams the value that `fold_chunk` builds up.

    Token counts follow OpenTelemetry: `input_tokens` includes cached ones.  A count that the
    provider did not report is None, never an estimate.
    """

    model: str | None = None
    id: str | None = None
    finish_reasons: Sequence[str] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    dimensions: int | None = None
    messages: Sequence[Message] | None = None
    # retrieval: one list of hits per query
    hits: Sequence[Sequence[Hit]] | None = None
    metric: str | None = None  # how to read scores: a name in `neuronscope.signals.scores.SCALES`
    returned: int | None = None
    extra: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What a failed call tells: a low-cardinality type, an HTTP status, and what was billed."""

    type: str
    status_code: int | None = None
    response: Response | None = None


class Peer(NamedTuple):  # made on the hot path, where a frozen dataclass costs a microsecond more
    """Who is called: OpenTelemetry provider name (or database system), host and port."""

    provider: str
    address: str | None = None
    port: int | None = None
