"""What Weaviate's objects know of themselves without asking the server: peer, collection, tenant, distance.

A collection hands its work to objects of its own (`collection.query`, `collection.data`), which keep its name
under one attribute or another, and share the client's connection.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.common.peers import peer_at

MAX_LEARNED: Final = 1024
# Weaviate's distances as scores read.
METRICS: Final = {
    "cosine": "cosine_distance",
    "dot": "dot_negative",
    "l2-squared": "euclid_squared",
    "manhattan": "manhattan",
    "hamming": "hamming",
}
_TENANTS: Final = ("_BaseExecutor__tenant", "_tenant", "_ConfigCollectionExecutor__tenant")
_learned: Final[dict[tuple[str, str], str]] = {}


class Place(NamedTuple):
    """Where a call goes.

    Attributes:
        url: of the server.
    """

    url: str
    peer: Peer
    collection: str | None
    tenant: str | None


def place_of(instance: Any) -> Place:
    """The collection that an object works for."""
    url = getattr(getattr(instance, "_connection", None), "url", None)
    name = getattr(instance, "_name", None) or getattr(instance, "name", None)
    tenant = next((told for key in _TENANTS if (told := getattr(instance, key, None)) is not None), None)
    return Place(str(url), peer_of(url), name if isinstance(name, str) else None, tenant)


def peer_of(url: Any) -> Peer:
    """The server at a connection's URL."""
    return peer_at(url, _weaviate) if isinstance(url, str) else Peer("weaviate")


def _weaviate(_host: str) -> str:
    return "weaviate"


def learn_metric(url: str, collection: str, distance: Any) -> None:
    """Remember a collection's distance, as its configuration tells it."""
    metric = METRICS.get(str(getattr(distance, "value", distance)))
    if metric is not None:
        if len(_learned) >= MAX_LEARNED:
            _learned.clear()
        _learned[url, collection] = metric


def learned_metric(url: str, collection: str | None) -> str | None:
    """How distances of a collection read, if its configuration has passed by."""
    return _learned.get((url, collection or ""))


def forget_metrics() -> None:
    """Forget what was learned (tests)."""
    _learned.clear()
