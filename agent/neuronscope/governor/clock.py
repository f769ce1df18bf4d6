"""CPU time of the running thread, without the collections of cyclic garbage that fell into it.

A full collection walks every object of the service, for a quarter of a second where frameworks are loaded.
It starts in whichever line happens to allocate next, often one of ours.  Charged to a capture it would spend
the budget of a minute on one layer, and be learned as that layer's price.  So the accounts leave it out; the
measured overhead, which compares whole requests, has its share of it.
"""

from __future__ import annotations

import gc
import time
from threading import get_ident
from typing import Any, Final

FULL: Final = 2  # generation of a full collection; the younger ones take microseconds


class Collections:
    """Counts the time of full collections, by thread."""

    __slots__ = ("_by_thread", "_started", "_watching")

    def __init__(self) -> None:
        self._by_thread: dict[int, int] = {}
        self._started = 0
        self._watching = False

    def watch(self) -> None:
        """Begin to count; again does nothing."""
        if not self._watching:
            self._watching = True
            gc.callbacks.append(self._collecting)

    def cpu_ns(self) -> int:
        """CPU time of this thread in nanoseconds, without full collections."""
        if not self._by_thread:
            return time.thread_time_ns()
        return time.thread_time_ns() - self._by_thread.get(get_ident(), 0)

    def _collecting(self, phase: str, facts: dict[str, Any]) -> None:
        # Only one thread collects at a time, and it holds the GIL from start to stop.
        if facts["generation"] != FULL:
            return
        if phase == "start":
            self._started = time.thread_time_ns()
        else:
            thread = get_ident()
            if len(self._by_thread) > MOST_THREADS:
                self._by_thread.clear()
            self._by_thread[thread] = self._by_thread.get(thread, 0) + time.thread_time_ns() - self._started


MOST_THREADS: Final = 1024  # of a service that starts one for each request
COLLECTIONS: Final = Collections()
cpu_ns: Final = COLLECTIONS.cpu_ns
