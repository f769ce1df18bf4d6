"""Which servers receive our trace context.

`traceparent` goes to servers of the user's own (loopback and private addresses) by default, so that a
self-hosted model server joins the trace; a third party learns nothing unless the user names it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache


def receives_context(host: str | None, allowed: Sequence[str]) -> bool:
    """May calls to `host` carry trace headers?  `allowed` is `Settings.propagate_to`."""
    return host is not None and _receives(host.lower(), tuple(allowed))


@lru_cache(maxsize=1024)
def _receives(host: str, allowed: tuple[str, ...]) -> bool:
    if "all" in allowed or host in allowed:
        return True
    kind = _kind(host)
    return kind in allowed if kind else False


def _kind(host: str) -> str | None:
    """loopback, private, or None for a public host."""
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        # Names without a dot resolve only inside the user's own network (compose, Kubernetes).
        internal = "." not in host or host.endswith((".local", ".internal", ".svc", ".lan"))
        return "private" if internal else None
    if address.is_loopback:
        return "loopback"
    return "private" if address.is_private else None
