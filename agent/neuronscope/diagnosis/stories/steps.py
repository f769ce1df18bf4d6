"""What to look at first, for each kind of cause: what confirms it or rules it out, and what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from neuronscope.diagnosis.kinds import Kind

STEPS: Final[Mapping[Kind, str]] = {
    Kind.TRAFFIC_CHANGED: "Look at who calls, since when; other findings may only mirror it.",
    Kind.QUERIES_SHIFTED: "Nothing to roll back: see whether the index covers what users ask now.",
    Kind.QUERIES_OR_EMBEDDER: (
        "Compare the embedder's deployment of both days; if it is the same, users changed."
    ),
    Kind.EMBEDDER_CHANGED: (
        "Compare model, prefix and element type that the service loads with those the index was built with; "
        "roll the embedder back, or embed the index anew."
    ),
    Kind.EMBEDDERS_MIXED: "Find the instances with the other fingerprint; a rollout may be half done.",
    Kind.INDEX_LOST: (
        "Count the index's documents and read the last ingest's log; ingest the missing ones again."
    ),
    Kind.INDEX_GREW: "See whether the last ingest was meant; if answers got worse, look at what it added.",
    Kind.INDEX_REWRITTEN: "Ask who built the index anew, with which embedder and distance.",
    Kind.INDEX_STALE: (
        "Compare a document of the evidence with its source; a backup or a partial ingest is likely."
    ),
    Kind.INDEX_DUPLICATED: "Look for an ingest that ran twice with new ids; delete one generation.",
    Kind.COLLECTION_SWITCHED: (
        "Check the collection's name in the service's configuration, or an alias in the store."
    ),
    Kind.SEARCH_CHANGED: (
        "Compare k, metric and search parameters of both releases, and the store's own defaults."
    ),
    Kind.FILTER_CHANGED: "Check the filter's field and value against a stored document.",
    Kind.RERANKER_CHANGED: "Check the reranker's name and its switch in the configuration.",
    Kind.PROMPT_CHANGED: "Compare the template of both releases; roll it back if nobody meant it.",
    Kind.SYSTEM_PROMPT_CHANGED: "Compare the system prompt of both releases.",
    Kind.CONTEXT_DROPPED: "Look for a limit of characters, tokens or documents before the prompt is made.",
    Kind.TOOLS_CHANGED: "Compare the tool definitions of both releases.",
    Kind.MODEL_CHANGED: (
        "Check the model's name, and whether the provider retired or moved a version; pin it."
    ),
    Kind.SAMPLING_CHANGED: "Compare the parameters of the call in both releases.",
    Kind.OUTPUT_CUT: "Compare the limit of output tokens, and the provider's, with how long answers are.",
    Kind.TOKENIZER_CHANGED: (
        "Check limits and budgets that count tokens; a provider may have changed its model."
    ),
    Kind.WEIGHTS_CHANGED: (
        "Compare revision and checksum of the weights of both deployments, and their adapters."
    ),
    Kind.PRECISION_CHANGED: "Compare the element type and quantisation that the model is loaded with.",
    Kind.LAYERS_DIVERGED: (
        "If weights and versions are the same, compare kernels and devices; full tensors of the layer, taken "
        "with the same inputs, tell which channels."
    ),
    Kind.NON_FINITE: "Take this layer's inputs from an example trace, and run them in float32.",
    Kind.DEAD_UNITS: "Look at the kernel or the weights of this layer; compare its channels one by one.",
    Kind.CACHE_LOST: "See whether the beginning of prompts varies now: dates, ids, order of documents.",
    Kind.PROVIDER_SLOWER: (
        "See the provider's status page, and whether region or tier changed; set a timeout."
    ),
    Kind.PROVIDER_LIMITED: "Compare the calls a minute with the quota; back off, or ask for more.",
    Kind.PROVIDER_FAILING: "Open an example trace for the error; see the provider's status page.",
    Kind.CALLS_CHANGED: (
        "Look for a switch, a cache, a guard or a loop in front of these calls; open an example of each side."
    ),
    Kind.QUEUEING: (
        "Compare workers and their load of both releases; the service itself is short of capacity."
    ),
    Kind.CONSUMER_STALLING: (
        "Look at what the service does between two chunks: logging, parsing, a slow client."
    ),
    Kind.ENVIRONMENT_CHANGED: (
        "Compare the lock files and images; pin what moved, and run this comparison again."
    ),
    Kind.FIDELITY_CHANGED: (
        "Compare the agent's settings; findings about what only one side records are void."
    ),
    Kind.UNEXPLAINED: "Open example traces of both sides beside each other.",
}


def opening(paths: Sequence[str], traces: Sequence[str]) -> str:
    """What to type to see an example; empty where there is none, or it is in no file."""
    if not paths or not traces or not paths[0].strip() or paths[0] in {"spans", "live recording"}:
        return ""
    return shlex.join(["neuronscope", "view", *paths, "--trace", traces[0]])
