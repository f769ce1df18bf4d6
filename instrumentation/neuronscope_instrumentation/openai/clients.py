"""Which server a client talks to: one for all of its calls."""

from __future__ import annotations

from typing import Any, Final

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.openai.peers import peer

_MAX: Final = 256
# By the identity of a client's URL, which is held, so that no other one gets the same.
KNOWN: Final[dict[int, tuple[Any, type, Peer]]] = {}


def peer_of(client: Any) -> Peer:
    """The server of a client's requests by path; worked out once for its URL and class."""
    base = getattr(client, "_base_url", None)
    known = KNOWN.get(id(base))
    if known is not None and known[0] is base and known[1] is type(client):
        return known[2]
    found = peer(client, "")
    if base is not None:
        if len(KNOWN) >= _MAX:
            KNOWN.clear()
        KNOWN[id(base)] = base, type(client), found
    return found
