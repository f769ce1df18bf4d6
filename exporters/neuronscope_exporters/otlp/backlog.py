"""What waits to be sent, and when it may be tried: the sender's state, without its thread.

Plain values; whoever shares them between threads holds a lock.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronscope_exporters.otlp.requests import MAX_BYTES, MAX_RECORDS, Payload
from neuronscope_exporters.otlp.transport import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the sender.

    Attributes:
        queue_bytes: what may wait; beyond it new requests are refused and counted.
        timeout_s: of one attempt; `timeouts` are those of signals that have their own, by item.
        retry_for_s: how long one request may block those behind it; a request that crashes the
            collector must not do so for ever.
        first_backoff_s: the longest delay before the first retry; doubled with each failure.
        longest_backoff_s: what it's doubled up to.
        metric_interval_s: between pushes of metrics.
    """

    queue_bytes: int = 32 << 20
    timeout_s: float = 10.0
    retry_for_s: float = 300.0
    first_backoff_s: float = 0.5
    longest_backoff_s: float = 10.0
    metric_interval_s: float = 15.0
    timeouts: Mapping[str, float] = field(default_factory=dict[str, float])

    def timeout_of(self, item: str) -> float:
        """Seconds that one attempt of this signal may take."""
        return self.timeouts.get(item, self.timeout_s)


class Backlog:
    """Requests in the order they came, bounded by bytes."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.queue_bytes
        self._waiting: deque[Payload] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, payload: Payload) -> bool:
        """Take a request; False when there is no room for it."""
        if self._bytes + len(payload.body) > self._limit:
            return False
        self._waiting.append(payload)
        self._bytes += len(payload.body)
        return True

    def take(self) -> Payload:
        """The oldest requests as one: protobuf messages are joined by joining their bytes."""
        bodies: list[bytes] = []
        size, count = 0, 0
        while self._waiting:
            payload = self._waiting[0]
            if bodies and (size + len(payload.body) > MAX_BYTES or count + payload.count > MAX_RECORDS):
                break
            self._waiting.popleft()
            bodies.append(payload.body)
            size += len(payload.body)
            count += payload.count
        self._bytes -= size
        return Payload(b"".join(bodies) if len(bodies) > 1 else bodies[0], count)

    def clear(self) -> int:
        """Forget everything; returns how many items that were."""
        count = sum(payload.count for payload in self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return count


class Retry:
    """When the request at the head may be tried: exponential backoff with jitter, and the collector's wishes.

    Attributes:
        at: the moment of the next attempt (0: at once), on the caller's monotonic clock.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.at = 0.0
        self._first_try_at = 0.0
        self._failures = 0  # in a row, over requests: a new request is no reason to hurry a dead collector
        self._throttled = False  # `at` is the collector's wish, not our backoff
        self._hurried = False

    def new_request(self, now: float) -> None:
        """Another request is at the head."""
        self._first_try_at = now

    def attempt(self) -> None:
        """An attempt begins."""
        self._hurried = False

    def answered(self) -> None:
        """The collector has spoken for good, whatever it said."""
        self._failures, self.at, self._throttled = 0, 0.0, False

    def hurry(self) -> None:
        """Somebody waits: skip our backoff once, though never a delay that the collector asked for."""
        self._hurried = True
        if not self._throttled:
            self.at = 0.0

    def later(self, reply: Reply, now: float, stop_at: float | None) -> bool:
        """Put the next attempt off; False when the request has had its time, or the process exits."""
        limits = self._limits
        self._failures += 1
        if reply.retry_after_s is not None:
            delay = reply.retry_after_s
        elif self._hurried:  # while the attempt was under way
            delay = 0.0
        else:
            longest = min(limits.longest_backoff_s, limits.first_backoff_s * 2 ** min(self._failures - 1, 16))
            # A fleet that lost its collector must not come back in step.
            delay = longest * random.uniform(0.5, 1.0)
        self._throttled = reply.retry_after_s is not None
        self.at = now + delay
        if stop_at is not None:
            # An exit waits for one more attempt, no longer: a first failure may be a passing one.
            return (self._failures == 1 or not reply.unreachable) and self.at < stop_at
        return self.at - self._first_try_at <= limits.retry_for_s
