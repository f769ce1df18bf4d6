"""Runs a piece of code observed and not observed: what spans it makes, and that it makes no difference."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.signals.records import SpanRecord

__all__ = ["canary_free", "mentions", "observe", "observe_async", "outcome"]


def observe(adapter: str, call: Callable[[], Any], **settings: Any) -> tuple[Any, list[SpanRecord]]:
    """The call's result, and the adapter's spans in the order in which they began."""
    ns.Platform(**settings)
    ns.instrument(adapter)
    with ns.Scope("test") as scope:
        result = call()
    return result, _spans(adapter, scope)


def observe_async(
    adapter: str, call: Callable[[], Awaitable[Any]], **settings: Any
) -> tuple[Any, list[SpanRecord]]:
    """The same for a coroutine function, in a loop of its own."""

    async def main() -> Any:
        return await call()

    return observe(adapter, lambda: asyncio.run(main()), **settings)


def _spans(adapter: str, scope: ns.Scope) -> list[SpanRecord]:
    spans = [span for span in scope.artifact.telemetry.spans if span.library == f"neuronscope.{adapter}"]
    return sorted(spans, key=lambda span: span.start_unix_ns)


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives, or what it raises: comparable."""
    try:
        return "returned", call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same without us
        return "raised", (type(error), str(error))


def canary_free(spans: list[SpanRecord], *canaries: str) -> bool:
    """Is none of the canaries in anything that was recorded?"""
    ENGINE.drain()
    told = repr(spans) + repr(ENGINE.metrics.collect())
    assert platform.installations(), "nothing was observed"
    return not any(mentions(told, canary) for canary in canaries)


def mentions(told: str, canary: str) -> bool:
    """Is it in there?  A number as a whole only: a duration may begin with the same digits."""
    whole = rf"(?<![\d.]){re.escape(canary)}(?!\d)" if canary[0].isdigit() else re.escape(canary)
    return re.search(whole, told) is not None
