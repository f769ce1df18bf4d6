"""Who is called, told by host: one SDK reaches many providers, and many providers speak one protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from neuronscope.instrumentation import Peer

_PORTS: Final = {"https": 443, "http": 80}
Provider = Callable[[str], str]
_MAX_BASES: Final = 256
_BASES: Final[dict[int, tuple[Any, Peer]]] = {}  # by identity; held, so that no other URL gets the same


def peer(base_url: Any, url: str, provider: Provider) -> Peer:
    """The server of a request; an absolute `url` overrides the client's `base_url`.

    Args:
        base_url: an httpx URL: host in lower case, port None if it is the scheme's default.
        url: the request's own.
        provider: OpenTelemetry's name of the provider behind a host.
    """
    if "://" in url:
        return peer_at(url.partition("?")[0], provider)
    # The properties of such a URL take a microsecond to read, and a client's is one object for all its calls.
    known = _BASES.get(id(base_url))
    if known is not None and known[0] is base_url:
        return known[1]
    found = _peer(base_url.host, base_url.port, base_url.scheme, provider)
    if len(_BASES) >= _MAX_BASES:
        _BASES.clear()
    _BASES[id(base_url)] = base_url, found
    return found


@lru_cache(maxsize=256)
def peer_at(address: str, provider: Provider) -> Peer:
    """The server at an address given as text."""
    parts = urlsplit(address)
    return _peer(parts.hostname or "", parts.port, parts.scheme, provider)


@lru_cache(maxsize=256)
def _peer(host: str, port: int | None, scheme: str, provider: Provider) -> Peer:
    return Peer(provider(host), host or None, port or _PORTS.get(scheme))
