"""Each kind of cause in one plain sentence, for a change and for its mirror; the details come after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from neuronscope.diagnosis.kinds import Kind

HEADLINES: Final[Mapping[Kind, str]] = {
    Kind.TRAFFIC_CHANGED: "The traffic is not what it was",
    Kind.QUERIES_SHIFTED: "Users ask about other things",
    Kind.QUERIES_OR_EMBEDDER: "Users ask about other things, or the embedder changed",
    Kind.EMBEDDER_CHANGED: "The embedder changed",
    Kind.EMBEDDERS_MIXED: "Two embedders are in use at once",
    Kind.INDEX_LOST: "Documents are missing from the index",
    Kind.INDEX_GREW: "The index holds new documents",
    Kind.INDEX_REWRITTEN: "The index holds other vectors",
    Kind.INDEX_STALE: "Part of the index is of another age than the rest",
    Kind.INDEX_DUPLICATED: "Duplicates in the index came or went",
    Kind.COLLECTION_SWITCHED: "Searches go to another collection",
    Kind.SEARCH_CHANGED: "The search runs another way",
    Kind.FILTER_CHANGED: "The filter lets other documents through than it did, or none",
    Kind.RERANKER_CHANGED: "The reranker changed",
    Kind.PROMPT_CHANGED: "The prompt template changed",
    Kind.SYSTEM_PROMPT_CHANGED: "The system prompt changed",
    Kind.CONTEXT_DROPPED: "Another part of what is retrieved reaches the prompt",
    Kind.TOOLS_CHANGED: "The tools offered to the model changed",
    Kind.MODEL_CHANGED: "Another model answers",
    Kind.SAMPLING_CHANGED: "The sampling parameters changed",
    Kind.OUTPUT_CUT: "Answers are cut at another length",
    Kind.TOKENIZER_CHANGED: "Text is cut into other tokens",
    Kind.WEIGHTS_CHANGED: "A model's weights changed",
    Kind.PRECISION_CHANGED: "A model computes in another precision",
    Kind.LAYERS_DIVERGED: "A model's layers give other numbers",
    Kind.NON_FINITE: "NaN or infinity came or went inside a model",
    Kind.DEAD_UNITS: "Units inside a model died or revived",
    Kind.CACHE_LOST: "The provider's cache serves another share of the prompts",
    Kind.PROVIDER_SLOWER: "The provider answers at another speed",
    Kind.PROVIDER_LIMITED: "The provider's limits make themselves felt differently",
    Kind.PROVIDER_FAILING: "The provider fails more or less often",
    Kind.CALLS_CHANGED: "Requests make other calls than they did",
    Kind.QUEUEING: "Requests wait inside the service for another time",
    Kind.CONSUMER_STALLING: "The service reads answers at another pace",
    Kind.ENVIRONMENT_CHANGED: "The service runs on other software or hardware",
    Kind.FIDELITY_CHANGED: "The agent records more or less than it did",
    Kind.UNEXPLAINED: "Something changed that has no name here",
}
# Where the first evidence tells the direction: what it is called when that grew, and when it fell.
DIRECTED: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.INDEX_DUPLICATED: (
        "Documents are in the index more than once",
        "Duplicates are gone from the index",
    ),
    Kind.CONTEXT_DROPPED: (
        "More of what is retrieved reaches the prompt",
        "Retrieved documents are missing from the prompt",
    ),
    Kind.OUTPUT_CUT: ("More answers are cut", "Fewer answers are cut"),
    Kind.NON_FINITE: ("NaN or infinity appeared inside a model", "NaN or infinity is gone from a model"),
    Kind.DEAD_UNITS: ("Units inside a model died", "Units inside a model revived"),
    Kind.CACHE_LOST: ("The provider's cache serves more of the prompts", "The provider's cache serves less"),
    Kind.PROVIDER_SLOWER: ("The provider got slower", "The provider got faster"),
    Kind.PROVIDER_LIMITED: ("The provider limits more calls", "The provider limits fewer calls"),
    Kind.PROVIDER_FAILING: ("Calls fail more often", "Calls fail less often"),
    Kind.CALLS_CHANGED: ("Requests make calls more often", "Requests make calls less often"),
    Kind.QUEUEING: ("Requests wait longer inside the service", "Requests wait less inside the service"),
    Kind.CONSUMER_STALLING: ("The service reads answers more slowly", "The service reads answers faster"),
}
