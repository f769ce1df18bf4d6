"""What is known of an index without asking its server: its peer, its name, and how it scores."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.common.peers import peer_at

MAX_LEARNED: Final = 1024
# Pinecone's metrics as scores read; its Euclidean scores are squared distances.
METRICS: Final = {"cosine": "cosine", "dotproduct": "dot", "euclidean": "euclid_squared"}

_learned: Final[dict[str, str]] = {}


class KnownIndex(NamedTuple):
    """One index.

    Attributes:
        name: told by the host that Pinecone gave it; None for emulators and proxies.
    """

    host: str
    peer: Peer
    name: str | None


def known_index(instance: Any) -> KnownIndex:
    """What is known of the index behind a client, its documents, its HTTP client or hosted inference."""
    host = getattr(instance, "_host", None)
    if not isinstance(host, str):
        host = getattr(getattr(instance, "_config", None), "host", None)
    return _at(host if isinstance(host, str) else "")


@lru_cache(maxsize=256)
def _at(host: str) -> KnownIndex:
    address = host if "://" in host else f"https://{host}"
    label, _, domain = address.partition("://")[2].partition(".")
    name = label.rpartition("-")[0] if domain.endswith("pinecone.io") and domain.startswith("svc") else None
    return KnownIndex(host, peer_at(address, _pinecone) if host else Peer("pinecone"), name or None)


def _pinecone(_host: str) -> str:
    return "pinecone"


def learn_metric(host: str, metric: Any) -> None:
    """Remember how an index scores, as its statistics tell it."""
    if metric in METRICS:
        if len(_learned) >= MAX_LEARNED:
            _learned.clear()
        _learned[host] = METRICS[metric]


def forget_metrics() -> None:
    """Forget what was learned (tests)."""
    _learned.clear()


def learned_metric(host: str) -> str | None:
    """How an index scores, if a call that passed by has told it."""
    return _learned.get(host)
