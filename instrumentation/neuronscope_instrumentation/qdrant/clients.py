"""What is known of a Qdrant client without asking its server: its peer, and its collections' distances."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from neuronscope.instrumentation import Peer

MAX_LEARNED: Final = 4096  # collections whose distances are remembered, per client


@dataclass(frozen=True, slots=True)
class KnownClient:
    """One client's peer, and the distances of the collections that it created or looked up.

    Attributes:
        local: the engine of a client in local mode, else None.
        learned: names of distances by vector name (``""``: the only vector), by collection.
    """

    peer: Peer
    local: Any = None
    learned: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def learn(self, collection: str, vectors: Any) -> None:
        """Remember the distances of a collection; None forgets them."""
        if len(self.learned) >= MAX_LEARNED:
            self.learned.clear()
        self.learned[collection] = distances(vectors)


_known: Final[weakref.WeakKeyDictionary[Any, KnownClient]] = weakref.WeakKeyDictionary()


def known_client(instance: Any) -> KnownClient:
    """What is known of a client; the client is held weakly."""
    known = _known.get(instance)
    if known is None:
        engine = getattr(instance, "_client", None)
        local = engine if hasattr(engine, "collections") else None
        known = _known[instance] = KnownClient(_peer(engine), local)
    return known


def _peer(remote: Any) -> Peer:
    """Host and port of a remote client's REST or gRPC service; a local one has neither."""
    host = getattr(remote, "_host", None)
    if not isinstance(host, str):
        return Peer("qdrant")
    port = getattr(remote, "_grpc_port" if getattr(remote, "_prefer_grpc", False) else "_port", None)
    return Peer("qdrant", host, port if isinstance(port, int) else None)


def local_vectors(local: Any, collection: Any) -> Any:
    """The vector parameters of a collection of a local engine, else None."""
    found = local.collections.get(collection) or local.collections.get(local.aliases.get(collection))
    return None if found is None else found.config.vectors


def distance(vectors: Any, using: str | None) -> str | None:
    """``cosine``, ``dot``, ``euclid`` or ``manhattan``; None if unknown.

    Args:
        vectors: Qdrant's parameters of a collection's one vector, or of each named one, or names of
            distances in their place.
        using: the vector's name.
    """
    params: Any = vectors
    if isinstance(vectors, Mapping):
        params = cast(Mapping[str, Any], vectors).get(using or "")
    named = getattr(params, "distance", params)
    value = getattr(named, "value", named)
    return value.lower() if isinstance(value, str) else None


def distances(vectors: Any) -> dict[str, str]:
    """Vector parameters as names of distances, free of the caller's objects."""
    named = cast(Mapping[str, Any], vectors) if isinstance(vectors, Mapping) else {"": vectors}
    found = {name: distance(params, None) for name, params in named.items()}
    return {name: value for name, value in found.items() if value is not None}
