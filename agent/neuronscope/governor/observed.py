"""How much work was observed: what the budget is a share of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from neuronscope import compiled

Clock = Callable[[], int]


class IntervalsInPython:
    """The union of observed intervals: the twin of a compiled class, whose steps need no lock.

    Attributes:
        active: observed intervals that are open.
        since: when the first of them was opened.
        closed_ns: length of the union of the closed ones.
    """

    __slots__ = ("active", "closed_ns", "since")

    def __init__(self) -> None:
        self.active = 0
        self.since = 0
        self.closed_ns = 0

    def began(self, now: int) -> None:
        """An interval begins, by the clock's reading."""
        if self.active == 0:
            self.since = now
        self.active += 1

    def ended(self, now: int) -> None:
        """An interval ends."""
        self.active -= 1
        if self.active == 0:
            self.closed_ns += now - self.since


if TYPE_CHECKING:
    _Intervals = IntervalsInPython
else:
    _Intervals = compiled.choose("Intervals", IntervalsInPython)
IN_ONE_STEP: Final = compiled.find("Intervals") is not None


class Work(_Intervals):
    """The observed work of one budget.  Not thread-safe: `Budget` locks.

    Work is the smaller of the time in which anything was observed (a union: a thousand concurrent awaits
    are one second a second) and of the CPU time that the process used meanwhile, less what observation
    itself took.  A service that waits for a network does little work, and one whose captures take long
    does not earn by them.

    Args:
        clock: monotonic nanoseconds.
        cpu: CPU time of the process in nanoseconds; None: no bound (a fake clock).
    """

    __slots__ = ("_carry", "_cpu", "_read_cpu", "_read_spent", "_read_wall")

    def __init__(self, clock: Clock, cpu: Clock | None) -> None:
        super().__init__()
        self._cpu = time.process_time_ns if cpu is None and clock is time.perf_counter_ns else cpu
        self._read_wall = 0
        self._read_cpu = self._cpu() if self._cpu is not None else 0
        self._read_spent = 0.0
        self._carry = 0.0

    def wall(self, now: int) -> int:
        """Length of the union of the observed intervals so far."""
        return self.closed_ns + (now - self.since if self.active > 0 else 0)

    def done(self, now: int, spent_ns: float) -> float:
        """Work since the last reading.

        Args:
            spent_ns: what observation has taken in all.
        """
        wall = self.wall(now)
        work = float(wall - self._read_wall)
        self._read_wall = wall
        if self._cpu is not None:
            cpu = self._cpu()
            work = min(work, float(cpu - self._read_cpu))
            self._read_cpu = cpu
        self._carry += work - (spent_ns - self._read_spent)
        self._read_spent = spent_ns
        net, self._carry = max(0.0, self._carry), min(0.0, self._carry)
        return net

    def rebase(self, spent_ns: float) -> None:
        """What observation has taken is counted from another origin now."""
        self._read_spent = spent_ns
