"""What is known of a Milvus client without asking its server: peer, database, metrics of its indexes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from neuronscope.instrumentation import Peer

MAX_LEARNED: Final = 4096  # collections whose metrics are remembered, per client
# Milvus leaves the root of a Euclidean distance away.
METRICS: Final = {
    "COSINE": "cosine",
    "IP": "dot",
    "L2": "euclid_squared",
    "HAMMING": "hamming",
    "JACCARD": "jaccard",
    "BM25": "bm25",
}


@dataclass(frozen=True, slots=True)
class KnownClient:
    """One client's peer and database, and the metrics of indexes that it created or looked up.

    Attributes:
        learned: Milvus's names of metrics by field, by collection.
    """

    peer: Peer
    database: str | None = None
    learned: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def learn(self, collection: str, metrics: Mapping[str, str]) -> None:
        """Remember metrics of a collection's fields."""
        if len(self.learned) >= MAX_LEARNED:
            self.learned.clear()
        self.learned.setdefault(collection, {}).update(metrics)

    def metric(self, collection: str | None, vector_field: str | None) -> str | None:
        """How a field's scores read; a collection with one index needs no name of a field."""
        metrics = self.learned.get(collection or "", {})
        if vector_field:
            return METRICS.get(metrics.get(vector_field, ""))
        return METRICS.get(next(iter(metrics.values()))) if len(metrics) == 1 else None


_known: Final[weakref.WeakKeyDictionary[Any, KnownClient]] = weakref.WeakKeyDictionary()


def known_client(client: Any) -> KnownClient:
    """What is known of a client or an ORM collection, which is held weakly."""
    known = _known.get(client)
    if known is None:
        config = getattr(client, "_config", None)
        database = getattr(config, "db_name", None)
        known = _known[client] = KnownClient(_peer(getattr(config, "address", None)), database or None)
    return known


def _peer(address: Any) -> Peer:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return Peer("milvus", host, int(port)) if host and port.isdigit() else Peer("milvus")


def index_metrics(index_params: Any) -> dict[str, str]:
    """Metrics by field of `IndexParams`, or of one index as a dictionary."""
    if isinstance(index_params, Mapping):
        told = cast("Mapping[str, Any]", index_params)
        named = told.get("field_name"), told.get("metric_type")
        return {named[0]: named[1]} if isinstance(named[0], str) and isinstance(named[1], str) else {}
    found: dict[str, str] = {}
    for index in cast("Iterable[Any]", index_params if isinstance(index_params, list) else ()):
        metric = getattr(index, "_configs", {}).get("metric_type")
        if isinstance(metric, str):
            found[str(index.field_name)] = metric
    return found
