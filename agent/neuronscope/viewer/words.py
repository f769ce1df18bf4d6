"""Attributes in people's words: the heading they stand under, and what to call them there.

An attribute that is not in the table is shown under its own key; nothing is ever left out.
"""

from __future__ import annotations

from typing import Final

from neuronscope.signals import names

GROUPS: Final = (
    "Model call",
    "Tokens",
    "Stream",
    "Retrieval",
    "Query",
    "Model in this process",
    "HTTP",
    "Server",
    "Agent",
    "Content",
    "More",
)

_WORDS: Final[dict[str, tuple[str, str]]] = {
    names.OPERATION_NAME: ("Model call", "operation"),
    names.PROVIDER_NAME: ("Model call", "provider"),
    names.REQUEST_MODEL: ("Model call", "model asked for"),
    names.RESPONSE_MODEL: ("Model call", "model that answered"),
    names.RESPONSE_ID: ("Model call", "response id"),
    names.FINISH_REASONS: ("Model call", "finish"),
    names.REQUEST_TEMPERATURE: ("Model call", "temperature"),
    names.REQUEST_TOP_P: ("Model call", "top p"),
    names.REQUEST_TOP_K: ("Model call", "top k of decoding"),
    names.REQUEST_MAX_TOKENS: ("Model call", "output limit, tokens"),
    names.REQUEST_SEED: ("Model call", "seed"),
    names.REQUEST_CHOICE_COUNT: ("Model call", "choices asked for"),
    names.REQUEST_FREQUENCY_PENALTY: ("Model call", "frequency penalty"),
    names.REQUEST_PRESENCE_PENALTY: ("Model call", "presence penalty"),
    names.INPUT_MESSAGE_COUNT: ("Model call", "messages sent"),
    names.INPUT_COUNT: ("Model call", "inputs"),
    names.EMBEDDING_DIMENSIONS: ("Model call", "vector length"),
    names.OPENAI_API_TYPE: ("Model call", "API"),
    names.OPENAI_FINGERPRINT: ("Model call", "backend fingerprint"),
    names.OUTPUT_TYPE: ("Model call", "output type"),
    names.CONVERSATION_ID: ("Model call", "conversation"),
    names.INPUT_TOKENS: ("Tokens", "input, cached included"),
    names.OUTPUT_TOKENS: ("Tokens", "output, reasoning included"),
    names.CACHE_READ_TOKENS: ("Tokens", "read from cache"),
    names.CACHE_WRITE_TOKENS: ("Tokens", "written to cache"),
    names.REASONING_TOKENS: ("Tokens", "reasoning"),
    names.REQUEST_STREAM: ("Stream", "streamed"),
    names.TIME_TO_FIRST_CHUNK: ("Stream", "first chunk after, s"),
    names.STREAM_CHUNKS: ("Stream", "chunks"),
    names.STREAM_END: ("Stream", "how it ended"),
    names.DATA_SOURCE_ID: ("Retrieval", "data source"),
    names.DB_SYSTEM: ("Retrieval", "store"),
    names.DB_COLLECTION: ("Retrieval", "collection"),
    names.DB_NAMESPACE: ("Retrieval", "namespace"),
    names.DB_OPERATION: ("Retrieval", "client's method"),
    names.DB_BATCH_SIZE: ("Retrieval", "queries in the batch"),
    names.DB_RETURNED_ROWS: ("Retrieval", "rows returned"),
    names.WRITE_COUNT: ("Retrieval", "points written"),
    names.RETRIEVAL_TOP_K: ("Retrieval", "hits asked for"),
    names.RETRIEVAL_RETURNED: ("Retrieval", "hits returned"),
    names.RETRIEVAL_IDS: ("Retrieval", "ids, best first"),
    names.RETRIEVAL_SCORES: ("Retrieval", "scores"),
    names.RETRIEVAL_TOP_SCORE: ("Retrieval", "best score"),
    names.RETRIEVAL_KTH_SCORE: ("Retrieval", "worst returned score"),
    names.RETRIEVAL_MARGIN: ("Retrieval", "margin"),
    names.RETRIEVAL_EMPTY: ("Retrieval", "empty"),
    names.RETRIEVAL_FILTERED: ("Retrieval", "filtered"),
    names.RETRIEVAL_METRIC: ("Retrieval", "metric"),
    names.RETRIEVAL_METADATA_KEYS: ("Retrieval", "metadata keys"),
    names.RETRIEVAL_STAGES: ("Retrieval", "steps"),
    names.RETRIEVAL_STAGES_K: ("Retrieval", "hits of each step"),
    names.RERANK_TOP_WAS: ("Retrieval", "rank of the best before"),
    names.RERANK_SHIFT: ("Retrieval", "ranks moved, mean"),
    names.RERANK_ORDER: ("Retrieval", "old positions, best first"),
    names.QUERY_COUNT: ("Query", "queries"),
    names.QUERY_INDEX: ("Query", "position in the batch"),
    names.QUERY_VECTOR: ("Query", "vector"),
    names.QUERY_DIMENSION: ("Query", "dimension"),
    names.QUERY_NORM: ("Query", "norm"),
    names.QUERY_DTYPE: ("Query", "element type"),
    names.QUERY_FINGERPRINT: ("Query", "fingerprint"),
    names.EMBEDDER_FINGERPRINT: ("Query", "embedder"),
    names.MODEL_NAME: ("Model in this process", "model"),
    names.MODEL_FORWARDS: ("Model in this process", "forward passes"),
    names.MODEL_PREFILL: ("Model in this process", "prefill, s"),
    names.MODEL_DECODE: ("Model in this process", "decoding, s"),
    names.MODEL_DECODE_RATE: ("Model in this process", "tokens a second"),
    names.MODEL_BATCH: ("Model in this process", "batch size"),
    names.LAYERS_OBSERVED: ("Model in this process", "layers observed"),
    names.LAYERS_RECORDS: ("Model in this process", "layer records"),
    names.LAYERS_NON_FINITE: ("Model in this process", "NaN and Inf"),
    names.LAYERS_NOT_VISITED: ("Model in this process", "not visited"),
    names.LAYERS_IDS: ("Model in this process", "layers"),
    names.LAYERS_MEAN: ("Model in this process", "mean by layer"),
    names.LAYERS_STD: ("Model in this process", "std by layer"),
    names.LAYERS_ABS_MAX: ("Model in this process", "abs-max by layer"),
    names.HTTP_REQUEST_METHOD: ("HTTP", "method"),
    names.HTTP_ROUTE: ("HTTP", "route"),
    names.HTTP_RESPONSE_STATUS_CODE: ("HTTP", "status"),
    names.URL_SCHEME: ("HTTP", "scheme"),
    names.NETWORK_PROTOCOL_VERSION: ("HTTP", "version"),
    names.SERVER_ADDRESS: ("Server", "address"),
    names.SERVER_PORT: ("Server", "port"),
    names.FIDELITY: ("Agent", "fidelity"),
    names.FIDELITY_REASON: ("Agent", "why not more"),
    names.LAYERS_SKIPPED: ("Agent", "layer runs not recorded"),
    names.TRUNCATED: ("Agent", "shortened attributes"),
    names.MASKED: ("Agent", "masked attributes"),
    names.ATTRIBUTION: ("Agent", "found its span by"),
    names.SCOPE_NAME: ("Agent", "scope"),
    names.SCOPE_CALLS_OUTSIDE: ("Agent", "calls of no scope meanwhile"),
}

_PREFIXES: Final = (
    ("gen_ai.usage.", "Tokens"),
    ("gen_ai.retrieval.", "Retrieval"),
    ("neuronscope.retrieval.", "Retrieval"),
    ("neuronscope.query.", "Query"),
    ("neuronscope.stream.", "Stream"),
    ("neuronscope.model.", "Model in this process"),
    ("neuronscope.layers.", "Model in this process"),
    ("neuronscope.", "Agent"),
    ("gen_ai.", "Model call"),
    ("openai.", "Model call"),
    ("db.", "Retrieval"),
    ("http.", "HTTP"),
    ("url.", "HTTP"),
    ("network.", "HTTP"),
    ("server.", "Server"),
)


def words(key: str) -> tuple[str, str, str]:
    """Heading, name and meaning of an attribute; the name is the key where we have no better one."""
    known = names.ATTRIBUTES.get(key)
    brief = known.brief if known is not None and known.brief != "…" else ""
    if known is not None and known.sensitivity is names.Sensitivity.CONTENT:
        return "Content", key, brief
    if key in _WORDS:
        group, name = _WORDS[key]
        return group, name, brief
    group = next((group for prefix, group in _PREFIXES if key.startswith(prefix)), "More")
    return group, key, brief
