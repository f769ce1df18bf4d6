"""What a Chroma collection or client knows of itself without asking its server."""

from __future__ import annotations

from typing import Any, Final

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.common.fields import field, text
from neuronscope_instrumentation.common.peers import peer_at

EMBEDDED: Final = Peer("chroma")
# Chroma tells distances: squared ones, and one minus the similarity.
METRICS: Final = {"l2": "euclid_squared", "cosine": "cosine_distance", "ip": "dot_distance"}
_DEFAULTS: Final = ("default_tenant", "default_database")


def peer_of(instance: Any) -> Peer:
    """The server of a collection or a client; an embedded store has none."""
    api = getattr(instance, "_client", None) or getattr(instance, "_server", None)
    address = getattr(api, "_api_url", None)
    return peer_at(address, _chroma) if isinstance(address, str) else EMBEDDED


def _chroma(_host: str) -> str:
    return "chroma"


def namespace_of(place: Any) -> str | None:
    """The database of a collection's model or a client, behind its tenant unless that is the usual one."""
    tenant, database = text(field(place, "tenant")), text(field(place, "database"))
    if tenant in (None, _DEFAULTS[0]):
        return database
    return f"{tenant}|{database}"


def metric_of(model: Any) -> str | None:
    """How a collection's scores read, by its configuration, schema or older metadata."""
    configuration = field(model, "configuration_json")
    for index in ("hnsw", "spann"):
        space = field(field(configuration, index), "space")
        if space is not None:
            return METRICS.get(str(getattr(space, "value", space)))
    return METRICS.get(str(field(field(model, "metadata"), "hnsw:space")))
