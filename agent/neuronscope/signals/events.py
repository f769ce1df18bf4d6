"""The events: named log records, and events on spans."""

from __future__ import annotations

from typing import Final

from neuronscope.signals.kinds import event

INFERENCE_DETAILS: Final = event(
    "gen_ai.client.inference.operation.details",
    5,
    "DEBUG",
    "A finished inference: the attributes of its span, content among them.",
)
OPERATION_EXCEPTION: Final = event(
    "gen_ai.client.operation.exception", 13, "WARN", "The exception that a GenAI call raised."
)
DRIFT: Final = event(
    "neuronscope.drift", 13, "WARN", "Retrieval is not as in its baseline: what changed, by which evidence."
)

# On the span of a batch, one for each of its queries: the attributes that the span of a single query has.
RETRIEVAL_QUERY: Final = "neuronscope.retrieval.query"
