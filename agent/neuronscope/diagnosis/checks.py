"""Checks that ask store and embedder themselves: outside of requests, one at a time, never in a hurry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from opentelemetry import context as otel_context

from neuronscope import native
from neuronscope.engine.guard import GUARD
from neuronscope.engine.propagation import suppressed

FIRST_S: Final = 1.0  # after which a new check is made for the first time: the service is starting
PAUSE_S: Final = 0.002  # between two queries or texts of a check: others come first
LEAST_S: Final = 5.0  # between two checks that were asked for out of turn


@dataclass
class _Check:
    run: Callable[[], None]
    every_s: float
    due: float
    last: float = float("-inf")


class Checks:
    """Runs checks when they are due, or when something looks suspicious.  Thread-safe.

    Nothing that a check calls is observed: it runs in a suppressed context, and no exception leaves it.

    Args:
        threaded: False runs checks only when asked for, in the thread that asks.
        on_cpu: told the CPU time in ns that a check took.
    """

    def __init__(
        self,
        *,
        threaded: bool,
        on_cpu: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threaded = threaded
        self._on_cpu = on_cpu
        self._clock = clock
        self._condition = native.Condition()
        self._checks: dict[str, _Check] = {}
        self._pid = 0
        self._stopped = False

    def add(self, name: str, every_s: float, run: Callable[[], None]) -> None:
        """Run a check soon, and then every so many seconds; another one of the same name is replaced."""
        with self._condition:
            self._checks[name] = _Check(run, every_s, self._clock() + FIRST_S)
            self._condition.notify_all()
        self.ensure_thread()

    def remove(self, name: str) -> None:
        """Run a check no more."""
        with self._condition:
            self._checks.pop(name, None)

    def __len__(self) -> int:
        return len(self._checks)

    def request(self, *, at_once: bool = False) -> None:
        """Run all checks out of turn, unless they have just been run."""
        if not self._threaded:
            self.run_all()
            return
        now = self._clock()
        with self._condition:
            for check in self._checks.values():
                if at_once or now - check.last >= LEAST_S:
                    check.due = now
            self._condition.notify_all()
        self.ensure_thread()

    def run_all(self) -> None:
        """Run all checks now, in this thread."""
        for check in tuple(self._checks.values()):
            self._run(check)

    def stop(self) -> None:
        """Begin no further check."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def ensure_thread(self) -> None:
        """Start the thread, if there is none in this process yet."""
        if not self._threaded or self._pid == os.getpid() or self._stopped or not self._checks:
            return
        with self._condition:
            if self._pid == os.getpid():
                return
            self._pid = os.getpid()
            try:
                native.Thread(self._loop, "neuronscope-checks")
            except RuntimeError:  # the interpreter ends, or the system has no thread left
                self._pid = 0

    def _loop(self) -> None:
        pid = self._pid
        while not self._stopped and pid == os.getpid():
            check = self._next()
            if check is not None:
                self._run(check)

    def _next(self) -> _Check | None:
        """The check that is due, after waiting for it a while."""
        with self._condition:
            now = self._clock()
            first = min(self._checks.values(), key=lambda check: check.due, default=None)
            if first is not None and first.due <= now:
                return first
            self._condition.wait(min(60.0, first.due - now) if first is not None else 60.0)
        return None

    def _run(self, check: _Check) -> None:
        before = time.thread_time_ns()
        token = otel_context.attach(suppressed(otel_context.get_current()))
        try:
            GUARD.contain("checks", check.run)
        finally:
            otel_context.detach(token)
            check.last = self._clock()
            check.due = check.last + check.every_s
            self._on_cpu(time.thread_time_ns() - before)


def pause() -> None:
    """Let others go first, between two steps of a check."""
    native.sleep(PAUSE_S)
