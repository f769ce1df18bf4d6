"""The sender: one daemon thread that carries encoded requests to the collector.

The worker leaves requests in a queue bounded by bytes and goes on; it never waits for a network.  The
thread joins what has gathered into full requests, retries what may succeed later, counts what is lost,
and pushes metrics at their interval.  Each signal has a lane of its own, and one turn of the thread is one
attempt, so that no signal waits for another's retries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from opentelemetry import context as otel_context

from neuronscope import native
from neuronscope.engine.guard import GUARD
from neuronscope.engine.propagation import suppressed
from neuronscope_exporters.otlp.backlog import Limits
from neuronscope_exporters.otlp.endpoints import METRICS
from neuronscope_exporters.otlp.lane import Lane
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


class Sender:
    """Sends spans and logs that are submitted, and metrics that it collects.

    `submit` never waits for the network.  The thread runs with instrumentation suppressed, so that our
    own requests make no spans.

    Args:
        transports: where each item goes (``"span"``, ``"log"``, ``"metric_point"``); what is not among them
            is not exported.
        collect: makes the requests of one push of metrics.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        *,
        collect: Callable[[], Iterable[Payload]],
        ledger: Ledger,
        limits: Limits,
    ) -> None:
        self._transports = tuple(transports.values())
        self._metrics = transports.get(METRICS.item)
        self._collect = collect
        self._ledger = ledger
        self._limits = limits
        self._longest_timeout_s = max([limits.timeout_s, *limits.timeouts.values()])
        self._told: set[tuple[str, str]] = set()
        # All of the following is guarded by this condition's lock, which is never held while anything
        # waits, sends or counts.
        self._changed = native.Condition()
        self._lanes = {
            item: Lane(item, transport, limits)
            for item, transport in transports.items()
            if item != METRICS.item
        }
        self._trying: Lane | None = None
        self._sending_since: float | None = None
        self._failed = 0  # items lost on the way, of any kind
        self._metrics_at = time.monotonic() + limits.metric_interval_s
        self._metrics_wanted = False
        self._pushes_begun = 0
        self._pushes_done = 0
        self._stop_at: float | None = None
        self._abandoned = False
        self._thread = native.Thread(self._run, "neuronscope-otlp")

    # --- called by the worker ------------------------------------------------------------------------

    def submit(self, item: str, payload: Payload) -> None:
        """Take a request of one of the signals, or count it as lost when the queue is full."""
        with self._changed:
            reason = ""
            if self._stop_at is not None:
                reason = "shutdown"
            elif not self._lanes[item].add(payload):
                reason = "queue_full"
            else:
                self._changed.notify_all()
            since = self._sending_since
        if reason:
            self._lose(item, reason, payload.count)
        if since is not None and time.monotonic() - since > 2 * self._longest_timeout_s + 1:
            # Timeouts bound each read; a collector that drips its answer outlives them.
            self._abort()

    def flush(self, timeout_s: float) -> bool:
        """Send what was submitted so far, and metrics; True if all of it arrived in time."""
        with self._changed:
            if self._stop_at is not None:
                return all(lane.settled >= lane.accepted for lane in self._lanes.values())
            targets = [(lane, lane.accepted) for lane in self._lanes.values()]
            failed, pushes = self._failed, self._pushes_begun
            self._hurry()
            done = self._changed.wait_for(
                lambda: (
                    all(lane.settled >= target for lane, target in targets)
                    and (self._metrics is None or self._pushes_done > pushes)
                ),
                timeout_s,
            )
            return done and self._failed == failed

    def shutdown(self, timeout_s: float) -> None:
        """Send what is left, then stop; returns within `timeout_s` whatever the collector does."""
        with self._changed:
            if self._stop_at is not None:
                return
            self._stop_at = time.monotonic() + timeout_s
            self._hurry()
        ended = self._thread.join(max(0.0, timeout_s - _SHUTDOWN_RESERVE_S))
        with self._changed:
            self._abandoned = True
            left = {item: lane.forget() for item, lane in self._lanes.items()}
            self._changed.notify_all()
        if not ended:
            # A thread in the midst of foreign code is no good companion for an interpreter that ends.
            self._abort()
            self._thread.join(min(timeout_s, _SHUTDOWN_RESERVE_S))
        for item, count in left.items():
            if count:
                self._lose(item, "shutdown", count)

    def _hurry(self) -> None:
        """Somebody waits for everything to be sent."""
        self._metrics_wanted = self._metrics is not None
        for lane in self._lanes.values():
            lane.retry.hurry()
        self._changed.notify_all()

    def _abort(self) -> None:
        for transport in self._transports:
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
        for transport in self._transports:
            transport.close()

    def _turn(self) -> bool:
        """One attempt, at whatever is due next; False when there is nothing left to do."""
        job = self._next()
        if job is not None:
            job()
        return job is not None

    def _next(self) -> Callable[[], None] | None:
        lanes = self._lanes.values()
        with self._changed:
            while not self._abandoned:
                now = time.monotonic()
                if self._stop_at is not None and now >= self._stop_at:
                    return None
                if self._metrics is not None and now >= self._metrics_at:
                    return self._push_metrics
                for lane in lanes:
                    lane.advance(now)
                due = [lane for lane in lanes if lane.due(now)]
                if due:  # by turns: a lane that is always busy must not keep the other waiting
                    self._trying = min(due, key=lambda lane: lane.tried_at)
                    self._trying.attempt(now)
                    return partial(self._try_head, self._trying)
                if all(lane.head is None for lane in lanes):
                    if self._metrics_wanted:
                        return self._push_metrics
                    if self._stop_at is not None:
                        return None
                self._changed.wait(self._longest_wait(now))
        return None

    def _longest_wait(self, now: float) -> float | None:
        wakes = [lane.retry.at for lane in self._lanes.values() if lane.head is not None]
        if self._metrics is not None:
            wakes.append(self._metrics_at)
        if self._stop_at is not None:
            wakes.append(self._stop_at)
        return max(0.0, min(wakes) - now) if wakes else None

    def _try_head(self, lane: Lane) -> None:
        head = lane.head
        if head is None:  # given up by `shutdown` meanwhile
            return
        reply = self._attempt(lane.item, lane.transport, head)
        if reply.delivered:
            self._settle(lane, head, reply, reply.rejected)
            return
        self._tell(lane.item, lane.transport, reply)
        if reply.retryable and self._retry_later(lane, reply):
            return
        self._settle(lane, head, reply, head.count)
        if reply.unreachable and self._stop_at is not None:
            # The process wants to exit and nobody listens: the rest would only make it wait.
            self._give_up_queue(lane, reply.reason)

    def _retry_later(self, lane: Lane, reply: Reply) -> bool:
        with self._changed:
            return lane.retry.later(reply, time.monotonic(), self._stop_at)

    def _settle(self, lane: Lane, payload: Payload, reply: Reply, lost: int) -> None:
        """Account for the head, which was delivered but for `lost` of its items."""
        with self._changed:
            if lane.head is not payload:  # `shutdown` did not wait, and has counted it as lost
                return
            lane.head = None
            if not reply.retryable:
                lane.retry.answered()
        lost = min(lost, payload.count)
        if lost < payload.count:
            self._ledger.exported(lane.item, payload.count - lost)
        if lost:
            self._lose(lane.item, reply.reason, lost)
            if reply.delivered:
                self._tell(lane.item, lane.transport, reply)
        with self._changed:
            lane.settled += payload.count
            self._failed += lost
            self._changed.notify_all()

    def _give_up_head(self, reason: str) -> None:
        lane, self._trying = self._trying, None
        if lane is not None and lane.head is not None:
            self._settle(lane, lane.head, Reply(reason=reason), lane.head.count)

    def _give_up_queue(self, lane: Lane, reason: str) -> None:
        with self._changed:
            count = lane.forget_waiting()
        if count:
            self._lose(lane.item, reason, count)
        with self._changed:
            lane.settled += count
            self._failed += count
            self._changed.notify_all()

    def _push_metrics(self) -> None:
        """One push, tried once: the next one carries the same sums and more."""
        item = METRICS.item
        with self._changed:
            self._trying = None
            self._metrics_wanted = False
            self._metrics_at = time.monotonic() + self._limits.metric_interval_s
            self._pushes_begun += 1
            push = self._pushes_begun
        failed = 0
        transport = self._metrics
        if transport is not None:
            for payload in self._collect():
                reply = self._attempt(item, transport, payload)
                lost = min(reply.rejected, payload.count) if reply.delivered else payload.count
                if lost < payload.count:
                    self._ledger.exported(item, payload.count - lost)
                if lost:
                    self._lose(item, reply.reason, lost)
                    self._tell(item, transport, reply)
                failed += lost
        with self._changed:
            self._pushes_done = push
            self._failed += failed
            self._changed.notify_all()

    def _attempt(self, item: str, transport: Transport, payload: Payload) -> Reply:
        with self._changed:
            self._sending_since = now = time.monotonic()
            timeout = self._limits.timeout_of(item)
            if self._stop_at is not None:
                timeout = min(timeout, max(_SHORTEST_TIMEOUT_S, self._stop_at - now))
        try:
            return transport.send(payload.body, timeout)
        finally:
            with self._changed:
                self._sending_since = None

    def _lose(self, item: str, reason: str, count: int) -> None:
        self._ledger.lost(item, reason, count)

    def _tell(self, item: str, transport: Transport, reply: Reply) -> None:
        """Log a failure, once for each cause."""
        if (item, reply.reason) in self._told:
            return
        self._told.add((item, reply.reason))
        again = reply.retryable and item != METRICS.item
        outcome = "is tried again" if again else "is dropped and counted"
        _log.warning(
            "OTLP: %ss for %s: %s (%s); what fails so %s. Told once.",
            item.replace("_", " "),
            transport.target,
            reply.reason,
            reply.detail or "no detail",
            outcome,
        )
