"""The current span: carried into other threads, and taken out where it would be left behind."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope.instrumentation import ClientIntegration, HandOff, Kind

if TYPE_CHECKING:
    from neuronscope.engine.span import LightSpan

P = ParamSpec("P")
R = TypeVar("R")

# Opt-in (`Settings.propagate_threads`).  All ways into a thread pool end in this method: `map` of the pool,
# `run_in_executor` of an event loop, `asyncio.to_thread`.
EXECUTORS: Final = ClientIntegration(
    name="executors",
    requires="python>=3.11",
    kind=Kind.FRAMEWORK,
    handoffs=(HandOff("concurrent.futures.thread:ThreadPoolExecutor.submit", "fn"),),
)


def propagate(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, to be called in another thread with the context of now: current span, scope, baggage.

    ::

        with ns.Scope("request"):
            thread = threading.Thread(target=ns.propagate(work))
            future = pool.submit(ns.propagate(work), argument)

    The result may be called any number of times, also at once.  Coroutine functions need none of this:
    a task has the context in which it was made.
    """
    context = contextvars.copy_context()

    def with_context(*args: P.args, **kwargs: P.kwargs) -> R:
        # A copy, since a context can be entered only once at a time.
        return context.copy().run(function, *args, **kwargs)

    # Callables of any kind come here; not all have a name.
    named = [name for name in functools.WRAPPER_ASSIGNMENTS if hasattr(function, name)]
    return functools.update_wrapper(with_context, function, assigned=named, updated=())


def take_out(
    span: LightSpan, current: otel_context.Context, token: contextvars.Token[otel_context.Context]
) -> None:
    """Put the span that was current before in the place of one that ends, if that is current here."""
    here = trace.get_current_span(current)
    if here is span or (span.foreign is not None and here is span.foreign):
        before = token.old_value
        outer = (
            trace.get_current_span(before) if isinstance(before, otel_context.Context) else trace.INVALID_SPAN
        )
        otel_context.attach(trace.set_span_in_context(outer, current))
