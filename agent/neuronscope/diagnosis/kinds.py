"""What can have happened to a service, and where: one vocabulary for live findings and for comparisons."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """Where in the path of a request a change happened, in the order of the path."""

    TRAFFIC = "traffic"
    QUERIES = "queries"
    EMBED = "embed"
    INDEX = "index"
    SEARCH = "search"
    RERANK = "rerank"
    PROMPT = "prompt"
    MODEL = "model"
    INSIDE = "inside"  # the layers of a model that runs in the process
    PROVIDER = "provider"
    SERVICE = "service"
    ENVIRONMENT = "environment"
    AGENT = "agent"


class Kind(StrEnum):
    """What can have happened."""

    TRAFFIC_CHANGED = "traffic_changed"
    QUERIES_SHIFTED = "queries_shifted"
    QUERIES_OR_EMBEDDER = "queries_or_embedder"
    EMBEDDER_CHANGED = "embedder_changed"
    EMBEDDERS_MIXED = "embedders_mixed"
    INDEX_LOST = "index_lost"
    INDEX_GREW = "index_grew"
    INDEX_REWRITTEN = "index_rewritten"
    INDEX_STALE = "index_stale"
    INDEX_DUPLICATED = "index_duplicated"
    COLLECTION_SWITCHED = "collection_switched"
    SEARCH_CHANGED = "search_changed"
    FILTER_CHANGED = "filter_changed"
    RERANKER_CHANGED = "reranker_changed"
    PROMPT_CHANGED = "prompt_changed"
    SYSTEM_PROMPT_CHANGED = "system_prompt_changed"
    CONTEXT_DROPPED = "context_dropped"
    TOOLS_CHANGED = "tools_changed"
    MODEL_CHANGED = "model_changed"
    SAMPLING_CHANGED = "sampling_changed"
    OUTPUT_CUT = "output_cut"
    TOKENIZER_CHANGED = "tokenizer_changed"
    WEIGHTS_CHANGED = "weights_changed"
    PRECISION_CHANGED = "precision_changed"
    LAYERS_DIVERGED = "layers_diverged"
    NON_FINITE = "non_finite"
    DEAD_UNITS = "dead_units"
    CACHE_LOST = "cache_lost"
    PROVIDER_SLOWER = "provider_slower"
    PROVIDER_LIMITED = "provider_limited"  # rate limited, or asked again and again
    PROVIDER_FAILING = "provider_failing"
    CALLS_CHANGED = "calls_changed"  # requests search, embed or ask a model more or less often
    QUEUEING = "queueing"
    CONSUMER_STALLING = "consumer_stalling"
    ENVIRONMENT_CHANGED = "environment_changed"
    FIDELITY_CHANGED = "fidelity_changed"
    UNEXPLAINED = "unexplained"


STAGES: Final = {
    Kind.TRAFFIC_CHANGED: Stage.TRAFFIC,
    Kind.QUERIES_SHIFTED: Stage.QUERIES,
    Kind.QUERIES_OR_EMBEDDER: Stage.QUERIES,
    Kind.EMBEDDER_CHANGED: Stage.EMBED,
    Kind.EMBEDDERS_MIXED: Stage.EMBED,
    Kind.INDEX_LOST: Stage.INDEX,
    Kind.INDEX_GREW: Stage.INDEX,
    Kind.INDEX_REWRITTEN: Stage.INDEX,
    Kind.INDEX_STALE: Stage.INDEX,
    Kind.INDEX_DUPLICATED: Stage.INDEX,
    Kind.COLLECTION_SWITCHED: Stage.SEARCH,
    Kind.SEARCH_CHANGED: Stage.SEARCH,
    Kind.FILTER_CHANGED: Stage.SEARCH,
    Kind.RERANKER_CHANGED: Stage.RERANK,
    Kind.PROMPT_CHANGED: Stage.PROMPT,
    Kind.SYSTEM_PROMPT_CHANGED: Stage.PROMPT,
    Kind.CONTEXT_DROPPED: Stage.PROMPT,
    Kind.TOOLS_CHANGED: Stage.PROMPT,
    Kind.MODEL_CHANGED: Stage.MODEL,
    Kind.SAMPLING_CHANGED: Stage.MODEL,
    Kind.OUTPUT_CUT: Stage.MODEL,
    Kind.TOKENIZER_CHANGED: Stage.MODEL,
    Kind.WEIGHTS_CHANGED: Stage.INSIDE,
    Kind.PRECISION_CHANGED: Stage.INSIDE,
    Kind.LAYERS_DIVERGED: Stage.INSIDE,
    Kind.NON_FINITE: Stage.INSIDE,
    Kind.DEAD_UNITS: Stage.INSIDE,
    Kind.CACHE_LOST: Stage.PROVIDER,
    Kind.PROVIDER_SLOWER: Stage.PROVIDER,
    Kind.PROVIDER_LIMITED: Stage.PROVIDER,
    Kind.PROVIDER_FAILING: Stage.PROVIDER,
    Kind.CALLS_CHANGED: Stage.SERVICE,
    Kind.QUEUEING: Stage.SERVICE,
    Kind.CONSUMER_STALLING: Stage.SERVICE,
    Kind.ENVIRONMENT_CHANGED: Stage.ENVIRONMENT,
    Kind.FIDELITY_CHANGED: Stage.AGENT,
    Kind.UNEXPLAINED: Stage.SEARCH,
}
