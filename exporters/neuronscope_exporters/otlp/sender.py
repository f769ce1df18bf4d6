"""The sender: one daemon thread that carries encoded requests to the collector.

The worker leaves requests in a queue bounded by bytes and goes on; it never waits for a network.  The
thread joins what has gathered into full requests, retries what may succeed later, counts what is lost,
and pushes metrics at their interval.  One turn of the thread is one attempt, so that neither signal waits
for the other's retries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from opentelemetry import context as otel_context

from neuronscope import native
from neuronscope.engine.guard import GUARD
from neuronscope.engine.propagation import suppressed
from neuronscope_exporters.otlp.backlog import Backlog, Limits, Retry
from neuronscope_exporters.otlp.requests import Payload
from neuronscope_exporters.otlp.transport import Reply, Transport

_log = logging.getLogger("neuronscope.exporters.otlp")

_FAULT_PAUSE_S: Final = 1.0
_SHORTEST_TIMEOUT_S: Final = 0.05
# What `shutdown` keeps of its time for itself after waiting for the thread.
_SHUTDOWN_RESERVE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the sender reports: ``lost(item, reason, n)`` and ``exported(item, n)``."""

    lost: Callable[[str, str, int], None]
    exported: Callable[[str, int], None]


class _Job(Enum):
    SPANS = auto()
    METRICS = auto()


class Sender:
    """Sends spans that are submitted, and metrics that it collects.

    `submit` never waits for the network.  The thread runs with instrumentation suppressed, so that our
    own requests make no spans.

    Args:
        spans: where spans go; None when traces are not exported.
        metrics: where metrics go; None when they are not exported.
        collect: makes the requests of one push of metrics.
    """

    def __init__(
        self,
        *,
        spans: Transport | None,
        metrics: Transport | None,
        collect: Callable[[], Iterable[Payload]],
        ledger: Ledger,
        limits: Limits,
    ) -> None:
        self._spans = spans
        self._metrics = metrics
        self._collect = collect
        self._ledger = ledger
        self._limits = limits
        self._told: set[tuple[str, str]] = set()
        # All of the following is guarded by this condition's lock, which is never held while anything
        # waits, sends or counts.
        self._changed = native.Condition()
        self._backlog = Backlog(limits)
        self._head: Payload | None = None  # the request being tried
        self._retry = Retry(limits)
        self._sending_since: float | None = None
        self._accepted = 0  # spans taken
        self._settled = 0  # spans delivered or lost since
        self._failed = 0  # items lost on the way, of either kind
        self._metrics_at = time.monotonic() + limits.metric_interval_s
        self._metrics_wanted = False
        self._pushes_begun = 0
        self._pushes_done = 0
        self._stop_at: float | None = None
        self._abandoned = False
        self._thread = native.Thread(self._run, "neuronscope-otlp")

    # --- called by the worker ------------------------------------------------------------------------

    def submit(self, payload: Payload) -> None:
        """Take a request of spans, or count it as lost when the queue is full."""
        with self._changed:
            reason = ""
            if self._stop_at is not None:
                reason = "shutdown"
            elif not self._backlog.add(payload):
                reason = "queue_full"
            else:
                self._accepted += payload.count
                self._changed.notify_all()
            since = self._sending_since
        if reason:
            self._lose("span", reason, payload.count)
        if since is not None and time.monotonic() - since > 2 * self._limits.timeout_s + 1:
            # Timeouts bound each read; a collector that drips its answer outlives them.
            self._abort()

    def flush(self, timeout_s: float) -> bool:
        """Send what was submitted so far, and metrics; True if all of it arrived in time."""
        with self._changed:
            if self._stop_at is not None:
                return self._settled >= self._accepted
            target, failed, pushes = self._accepted, self._failed, self._pushes_begun
            self._metrics_wanted = self._metrics is not None
            self._retry.hurry()
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._settled >= target and (self._metrics is None or self._pushes_done > pushes),
                timeout_s,
            )
            return done and self._failed == failed

    def shutdown(self, timeout_s: float) -> None:
        """Send what is left, then stop; returns within `timeout_s` whatever the collector does."""
        with self._changed:
            if self._stop_at is not None:
                return
            self._stop_at = time.monotonic() + timeout_s
            self._metrics_wanted = self._metrics is not None
            self._retry.hurry()
            self._changed.notify_all()
        ended = self._thread.join(max(0.0, timeout_s - _SHUTDOWN_RESERVE_S))
        with self._changed:
            self._abandoned = True
            left = self._backlog.clear() + (self._head.count if self._head is not None else 0)
            self._head = None
            self._settled = self._accepted
            self._changed.notify_all()
        if not ended:
            # A thread in the midst of foreign code is no good companion for an interpreter that ends.
            self._abort()
            self._thread.join(min(timeout_s, _SHUTDOWN_RESERVE_S))
        if left:
            self._lose("span", "shutdown", left)

    def _abort(self) -> None:
        for transport in (self._spans, self._metrics):
            if transport is not None:
                transport.abort()

    # --- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        otel_context.attach(suppressed(otel_context.get_current()))
        while True:
            going_on = GUARD.call("exporters.otlp", self._turn)
            if going_on is None:  # a fault of ours, which the guard has told
                self._give_up_head("internal")
                with self._changed:
                    self._changed.wait(_FAULT_PAUSE_S)
                    going_on = self._stop_at is None
            if not going_on:
                break
        for transport in (self._spans, self._metrics):
            if transport is not None:
                transport.close()

    def _turn(self) -> bool:
        """One attempt, at whatever is due next; False when there is nothing left to do."""
        job = self._next()
        if job is _Job.SPANS:
            self._try_head()
        elif job is _Job.METRICS:
            self._push_metrics()
        return job is not None

    def _next(self) -> _Job | None:
        with self._changed:
            while not self._abandoned:
                now = time.monotonic()
                if self._stop_at is not None and now >= self._stop_at:
                    return None
                if self._metrics is not None and now >= self._metrics_at:
                    return _Job.METRICS
                if self._head is None and self._backlog:
                    self._head = self._backlog.take()
                    self._retry.new_request(now)
                if self._head is not None and now >= self._retry.at:
                    self._retry.attempt()
                    return _Job.SPANS
                if self._head is None and self._metrics_wanted:
                    return _Job.METRICS
                if self._head is None and self._stop_at is not None:
                    return None
                self._changed.wait(self._longest_wait(now))
        return None

    def _longest_wait(self, now: float) -> float | None:
        wakes = [
            *([self._metrics_at] if self._metrics is not None else []),
            *([self._retry.at] if self._head is not None else []),
            *([self._stop_at] if self._stop_at is not None else []),
        ]
        return max(0.0, min(wakes) - now) if wakes else None

    def _try_head(self) -> None:
        head, transport = self._head, self._spans
        if head is None or transport is None:
            return
        reply = self._attempt(transport, head)
        if reply.delivered:
            self._settle(head, reply, reply.rejected)
            return
        self._tell("span", transport, reply)
        if reply.retryable and self._retry_later(reply):
            return
        self._settle(head, reply, head.count)
        if reply.unreachable and self._stop_at is not None:
            # The process wants to exit and nobody listens: the rest would only make it wait.
            self._give_up_queue(reply.reason)

    def _retry_later(self, reply: Reply) -> bool:
        with self._changed:
            return self._retry.later(reply, time.monotonic(), self._stop_at)

    def _settle(self, payload: Payload, reply: Reply, lost: int) -> None:
        """Account for the head, which was delivered but for `lost` of its spans."""
        with self._changed:
            if self._head is not payload:  # `shutdown` did not wait, and has counted it as lost
                return
            self._head = None
            if not reply.retryable:
                self._retry.answered()
        lost = min(lost, payload.count)
        if lost < payload.count:
            self._ledger.exported("span", payload.count - lost)
        if lost:
            self._lose("span", reply.reason, lost)
            if reply.delivered:
                self._tell("span", self._spans, reply)
        with self._changed:
            self._settled += payload.count
            self._failed += lost
            self._changed.notify_all()

    def _give_up_head(self, reason: str) -> None:
        head = self._head
        if head is not None:
            self._settle(head, Reply(reason=reason), head.count)

    def _give_up_queue(self, reason: str) -> None:
        with self._changed:
            count = self._backlog.clear()
        if count:
            self._lose("span", reason, count)
        with self._changed:
            self._settled += count
            self._failed += count
            self._changed.notify_all()

    def _push_metrics(self) -> None:
        """One push, tried once: the next one carries the same sums and more."""
        with self._changed:
            self._metrics_wanted = False
            self._metrics_at = time.monotonic() + self._limits.metric_interval_s
            self._pushes_begun += 1
            push = self._pushes_begun
        failed = 0
        transport = self._metrics
        if transport is not None:
            for payload in self._collect():
                reply = self._attempt(transport, payload)
                lost = min(reply.rejected, payload.count) if reply.delivered else payload.count
                if lost < payload.count:
                    self._ledger.exported("metric_point", payload.count - lost)
                if lost:
                    self._lose("metric_point", reply.reason, lost)
                    self._tell("metric_point", transport, reply)
                failed += lost
        with self._changed:
            self._pushes_done = push
            self._failed += failed
            self._changed.notify_all()

    def _attempt(self, transport: Transport, payload: Payload) -> Reply:
        with self._changed:
            self._sending_since = now = time.monotonic()
            timeout = self._limits.timeout_s
            if self._stop_at is not None:
                timeout = min(timeout, max(_SHORTEST_TIMEOUT_S, self._stop_at - now))
        try:
            return transport.send(payload.body, timeout)
        finally:
            with self._changed:
                self._sending_since = None

    def _lose(self, item: str, reason: str, count: int) -> None:
        self._ledger.lost(item, reason, count)

    def _tell(self, item: str, transport: Transport | None, reply: Reply) -> None:
        """Log a failure, once for each cause."""
        if transport is None or (item, reply.reason) in self._told:
            return
        self._told.add((item, reply.reason))
        again = reply.retryable and item == "span"
        outcome = "is tried again" if again else "is dropped and counted"
        _log.warning(
            "OTLP: %ss for %s: %s (%s); what fails so %s. Told once.",
            item.replace("_", " "),
            transport.target,
            reply.reason,
            reply.detail or "no detail",
            outcome,
        )
