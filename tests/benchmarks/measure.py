"""Measuring inside one process: thread CPU time, medians, interleaved comparison.  Standard library only:
it also runs in the peers' environments."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of `n` samples."""

    median: float
    low: float
    high: float
    n: int

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.n)


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    n = len(ordered)
    return Spread(statistics.median(ordered), ordered[n // 4], ordered[3 * n // 4], n)


def loop_us(call: Call, n: int) -> float:
    """Thread CPU time of a call in a hot loop, in µs."""
    repeat = range(n)
    start = time.thread_time_ns()
    for _ in repeat:
        call()
    return (time.thread_time_ns() - start) / n / 1e3


def median_us(call: Call, n: int) -> float:
    """Median thread CPU time of single calls, in µs: for calls long enough to be timed one by one."""
    clock, times = time.thread_time_ns, list[int]()
    for _ in range(n):
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.median(times) / 1e3


@dataclass(frozen=True, slots=True)
class Switch:
    """Puts an instrumentation in place (`on`) and takes it away (`off`), in no time."""

    on: Callable[[], None]
    off: Callable[[], None]


def compare(switch: Switch, call: Call, n: int, turn: int, *, hot: bool) -> tuple[float, float]:
    """One round: thread CPU time of `call` without and with the instrumentation, in µs.

    Args:
        turn: number of the round; every other one measures in the opposite order.
        hot: time the loop as a whole; else each call by itself.
    """
    times: dict[str, float] = {}
    measure = loop_us if hot else median_us
    for side in ("off", "on") if turn % 2 == 0 else ("on", "off"):
        (switch.on if side == "on" else switch.off)()
        gc.collect()
        for _ in range(3):
            call()
        times[side] = measure(call, n)
    return times["off"], times["on"]
