"""One signal on its way to the collector: the requests that wait, the one being tried, and their account."""

from __future__ import annotations

from neuronscope_exporters.otlp.backlog import Backlog, Limits, Retry
from neuronscope_exporters.otlp.requests import Payload
from neuronscope_exporters.otlp.transport import Transport


class Lane:
    """The sender's state for one signal; a lane's retries keep no other lane waiting.

    Plain values; whoever shares them between threads holds a lock.

    Attributes:
        item: what the requests hold, as losses are counted.
        head: the request being tried.
        retry: when it may be tried again.
        tried_at: when this lane last had its turn.
        accepted: items taken; `settled` of them have been delivered or lost since.
    """

    def __init__(self, item: str, transport: Transport, limits: Limits) -> None:
        self.item = item
        self.transport = transport
        self.head: Payload | None = None
        self.retry = Retry(limits)
        self.tried_at = 0.0
        self.accepted = 0
        self.settled = 0
        self._backlog = Backlog(limits)

    def add(self, payload: Payload) -> bool:
        """Take a request; False when there is no room for it."""
        if not self._backlog.add(payload):
            return False
        self.accepted += payload.count
        return True

    def advance(self, now: float) -> None:
        """When nothing is being tried, whatever waits comes to the head."""
        if self.head is None and self._backlog:
            self.head = self._backlog.take()
            self.retry.new_request(now)

    def due(self, now: float) -> bool:
        """May the head be tried now?"""
        return self.head is not None and now >= self.retry.at

    def attempt(self, now: float) -> None:
        """An attempt begins."""
        self.tried_at = now
        self.retry.attempt()

    def forget_waiting(self) -> int:
        """Give up what waits behind the head; returns how many items that were."""
        return self._backlog.clear()

    def forget(self) -> int:
        """Give up everything; returns how many items that were."""
        left = self._backlog.clear() + (self.head.count if self.head is not None else 0)
        self.head = None
        self.settled = self.accepted
        return left
