"""Another instrumentor on the same call: one span a call, and its tokens counted once.

Frameworks, other agents and some SDKs make spans of their own for a call that we observe too.  If theirs
is around ours, we add what we know to it instead of making one; if it is inside ours and reaches us, it is
left out, and its children become ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from neuronscope.instrumentation import Operation, Snapshot
from neuronscope.signals import names

# What instrumentations of other makes call our operations: attribute -> value -> operation.
_WORDS: Final[Mapping[str, Mapping[object, Operation]]] = {
    names.OPERATION_NAME: {operation.value: operation for operation in Operation},
    "llm.request.type": {
        "chat": Operation.CHAT,
        "completion": Operation.TEXT_COMPLETION,
        "embedding": Operation.EMBEDDINGS,
    },
    "openinference.span.kind": {
        "LLM": Operation.CHAT,
        "EMBEDDING": Operation.EMBEDDINGS,
        "RETRIEVER": Operation.RETRIEVAL,
        "RERANKER": Operation.RERANK,
    },
}
_MODELS: Final = (names.REQUEST_MODEL, "llm.model_name", "embedding.model_name")
_SYSTEMS: Final = (names.DB_SYSTEM, "db.system")
_MAX_LEFT_OUT: Final = 1024


def is_same_call(span: Any, snapshot: Snapshot) -> bool:
    """Is `span` somebody else's span for the call that `snapshot` describes?

    A client's span with the same operation, and the same model as far as both name one.  A framework's
    span around several calls (an agent, a chain, a retriever with its own embedding) is none.
    """
    found: object = getattr(span, "attributes", None)
    if not isinstance(found, Mapping):
        return False
    attributes = cast("Mapping[str, Any]", found)
    if not _is_client(span, attributes):
        return False
    if _operation(attributes) is not snapshot.endpoint.operation:
        return any(attributes.get(key) == snapshot.peer.provider for key in _SYSTEMS)
    models = [attributes[key] for key in _MODELS if attributes.get(key)]
    return not models or not snapshot.target or snapshot.target in models


def add_missing(span: Any, attributes: Mapping[str, Any]) -> None:
    """Add to a span of others what it does not have yet; nothing once it has ended."""
    if span.is_recording():
        has = span.attributes
        span.set_attributes({key: value for key, value in attributes.items() if key not in has})


def _is_client(span: Any, attributes: Mapping[str, Any]) -> bool:
    scope = getattr(getattr(span, "instrumentation_scope", None), "name", "") or ""
    if scope.startswith("neuronscope."):
        return False
    return getattr(span, "kind", None) is SpanKind.CLIENT or "openinference.span.kind" in attributes


def _operation(attributes: Mapping[str, Any]) -> Operation | None:
    for key, words in _WORDS.items():
        if (word := attributes.get(key)) in words:
            return words[word]
    return None


class LeftOut:
    """Spans of others that stand for a call of ours: who their children belong to.  Bounded."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}

    def add(self, theirs: trace.SpanContext, ours: trace.SpanContext) -> None:
        """Leave out `theirs`, in favour of `ours`."""
        self._ours[theirs.span_id] = ours.span_id
        if len(self._ours) > _MAX_LEFT_OUT:
            self._ours.pop(next(iter(self._ours)), None)

    def __contains__(self, span_id: int | None) -> bool:
        return span_id in self._ours

    def parent(self, span_id: int | None) -> int | None:
        """The id of our span if `span_id` is left out, else itself."""
        return span_id if span_id is None else self._ours.get(span_id, span_id)
