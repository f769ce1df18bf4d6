"""The engine at the end of a call: the span is ended once, and handed to the worker.

In the service's threads, as its beginning is (`engine.calls`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from neuronscope.engine import clock
from neuronscope.engine.filling import set_attributes
from neuronscope.engine.finish import query_events, read_attributes
from neuronscope.engine.guard import GUARD
from neuronscope.engine.intake import SPAN_BYTES
from neuronscope.engine.others import add_missing
from neuronscope.engine.provider import takes_in
from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine.content import ContentPolicy
    from neuronscope.engine.invocation import Invocation
    from neuronscope.engine.provider import Pipeline
    from neuronscope.engine.span import LightSpan
    from neuronscope.engine.worker import Worker
    from neuronscope.governor import Budget

UNTIMED_NS: Final = 1_000  # of a call's own cost: the wrapper's frames and the hand-over to the worker
WEIGHED_EVERY: Final = 16  # calls, of whose texts one is weighed
LARGE_TEXTS: Final = 16_384  # bytes; what is less is in `SPAN_BYTES`, about


class Endings:
    """The part of the engine that ends spans; its attributes are the engine's.

    Attributes:
        _begun: when the engine started; what began earlier was told to another budget.
        _not_before: spans that began earlier are those of the process we were forked from.
    """

    budget: Budget
    _policy: ContentPolicy
    _pipeline: Pipeline
    _worker: Worker | None
    _begun: int
    _not_before: int
    _text_bytes = 0
    _unweighed = 0

    def count_lost(self, item: str, reason: str, n: int) -> None:
        """The engine's."""
        raise NotImplementedError

    def discard(self, span: LightSpan) -> None:
        """Forget a span whose call was never made."""
        if span.end_time is None:
            span.end_time = clock.wall_ns()
            self.budget.leave()

    def finish(self, span: LightSpan, end_ns: int | None = None) -> None:
        """End a span, once, and hand it to the worker.

        Args:
            end_ns: when it ended, if that was earlier.
        """
        if span.end_time is not None:
            return
        if span.layer is not None and not span.layer.stands():
            self.discard(span)
            return
        started = time.perf_counter_ns()
        span.end_time = end_ns or clock.wall_ns()
        if span.start_time < self._not_before:
            return  # the parent process ends it, and has it
        if span.foreign is not None:
            GUARD.always("foreign.finish", self._finish_foreign, span)
        if span.start_time >= self._begun:
            self.budget.ended(started)
        span.hot_ns += time.perf_counter_ns() - started + UNTIMED_NS
        if span.shared and takes_in(span.foreign):
            return  # it comes to us when they end it
        self.hand_over(span)

    def hand_over(self, span: LightSpan) -> None:
        """Queue a span that has ended for the worker, with about what it holds."""
        worker = self._worker
        if worker is None:
            self.count_lost("span", "stopped", 1)
            return
        call, policy = span.call, self._policy
        if call is None:
            worker.put(span, SPAN_BYTES)
        elif policy.content or call.result.__class__ is bytes or call.snapshot.endpoint.size:
            worker.put(span, SPAN_BYTES + (GUARD.always("sizes", call.held_bytes, policy.content) or 0))
        elif policy.keeps_texts:
            self._unweighed -= 1
            if self._unweighed < 0:
                self._weigh(call)
            worker.put(span, SPAN_BYTES + self._text_bytes)
        else:
            worker.put(span, SPAN_BYTES)

    def _weigh(self, call: Invocation) -> None:
        """About how much a call's texts hold until their structure is read: one of some stands for all."""
        self._unweighed = WEIGHED_EVERY
        held = GUARD.always("sizes", call.held_bytes, True) or 0
        self._text_bytes = held if held > LARGE_TEXTS else 0

    def _finish_foreign(self, span: LightSpan) -> None:
        """The service's own pipeline gets its span now: filled, and ended in order."""
        foreign = span.foreign
        assert foreign is not None
        if span.model_call is not None:
            span.own = {**(span.own or {}), **span.model_call.attributes()}
        policy = self._policy
        masked = policy.apply(read_attributes(span, policy.content_on_spans, policy.max_length))
        span.masked = masked
        if span.inner is not None:
            span.adopt(span.inner.get_span_context())  # another instrumentor's stands for the call
        elif span.shared:
            add_missing(foreign, masked)
        else:
            set_attributes(foreign, masked, span.own or {})
            if names.ERROR_TYPE in masked:
                foreign.set_status(trace.StatusCode.ERROR)
            if span.call is not None and span.call.searches:
                for event in query_events(span):
                    foreign.add_event(event.name, policy.apply(event.attributes), event.time_unix_ns)
            self._pipeline.end_foreign(foreign, span.end_time)
