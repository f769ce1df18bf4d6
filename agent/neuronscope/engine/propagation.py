"""Which servers receive our trace context, and where nothing is observed at all.

`traceparent` goes to servers of the user's own (loopback and private addresses) by default, so that a
self-hosted model server joins the trace; a third party learns nothing unless the user names it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagate import get_global_textmap, inject
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from neuronscope.engine.current import attach, detach

R = TypeVar("R")
# Releases of OpenTelemetry's instrumentations look for the plain words, or for keys that the API makes
# unique; the SDK sets only the latter while it exports.
SUPPRESSING: Final = tuple(
    key
    for name in ("suppress_instrumentation", "suppress_http_instrumentation")
    for key in (name, getattr(otel_context, f"_{name.upper()}_KEY", None))
    if isinstance(key, str)
)
_SUPPRESSED: Final = dict.fromkeys(SUPPRESSING, True)


def unobserved(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call code of the service's own from ours (a sampler, a processor): what it calls is not observed."""
    token = attach(suppressed(otel_context.get_current()))
    try:
        return function(*args, **kwargs)
    finally:
        detach(token)


def suppressed(context: otel_context.Context) -> otel_context.Context:
    """The context, except that nobody observes what happens in it: our own work, and what it calls."""
    return otel_context.Context({**context, **_SUPPRESSED})


def trace_headers(identity: SpanContext, context: otel_context.Context) -> dict[str, str]:
    """The headers by which a server joins the trace of the span that `context` makes current.

    OpenTelemetry's default propagators are not asked when there is no baggage: they would write the same
    `traceparent` (and `tracestate`), at several times the cost.
    """
    headers: dict[str, str] = {}
    if _propagates_by_default() and not baggage.get_all(context):
        if identity.is_valid:
            trace_id, span_id, flags = identity.trace_id, identity.span_id, identity.trace_flags
            headers["traceparent"] = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
            if identity.trace_state:
                headers["tracestate"] = identity.trace_state.to_header()
        return headers
    inject(headers, context)
    return headers


def _propagates_by_default() -> bool:
    return _is_default(get_global_textmap())


@lru_cache(maxsize=4)
def _is_default(propagator: TextMapPropagator) -> bool:
    parts: object = getattr(propagator, "_propagators", None)
    kinds = {type(part) for part in cast("list[object]", parts)} if isinstance(parts, list) else set[type]()
    return kinds == {TraceContextTextMapPropagator, W3CBaggagePropagator}


def receives_context(host: str | None, allowed: Sequence[str]) -> bool:
    """May calls to `host` carry trace headers?  `allowed` is `Settings.propagate_to`."""
    return host is not None and _receives(host, allowed if isinstance(allowed, tuple) else tuple(allowed))


@lru_cache(maxsize=1024)
def _receives(host: str, allowed: tuple[str, ...]) -> bool:
    host = host.lower()
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
