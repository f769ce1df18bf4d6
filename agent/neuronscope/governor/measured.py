"""What captures really cost: they are switched off and on in alternating blocks, and the CPU compared.

The accounted figure adds up what our own clocks saw.  It cannot see what captures do to the service
behind its back: caches, memory, the GIL.  So now and then, for a few seconds at a time, the agent's
captures (never spans, tokens, errors or propagation) go off and on; the CPU time that the process needs
for a request is compared, pair by pair, and published with its 95 % interval.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from neuronscope.governor.intervals import Mean

MIN_PAIRS: Final = 6
MIN_REQUESTS: Final = 3  # that a block must have; how little they tell, the interval says
MAX_STRETCH: Final = 5  # so many times its length a block waits for them
SETTLE: Final = 0.15  # share of a block that is left out: requests of the block before end in it
TOLERANCE: Final = 0.01  # how far outside the interval the accounted figure may be


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one experiment, as shares of the work without captures.

    Attributes:
        estimate: mean over the pairs of blocks; None if there were too few.
        low: lower end of the 95 % interval.
        high: upper end.
        accounted: what the accounts say captures cost in the same blocks.
        pairs: pairs of blocks that were compared.
        reason: why there is no estimate.
    """

    estimate: float | None
    low: float
    high: float
    accounted: float
    pairs: int
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Is the accounted figure within the interval, give or take a point?"""
        return self.estimate is None or self.low - TOLERANCE <= self.accounted <= self.high + TOLERANCE

    def __str__(self) -> str:
        if self.estimate is None:
            return f"insufficient data ({self.reason})"
        return (
            f"{100 * self.estimate:.1f} % (95 %: {100 * self.low:.1f} to {100 * self.high:.1f}, "
            f"{self.pairs} pairs of blocks), accounted {100 * self.accounted:.1f} %"
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """What one block showed."""

    cpu_ns: float  # for a request
    captures_ns: float  # of these, by the accounts


class Experiment:
    """Runs the blocks.  Driven by `tick`, from the worker's thread after its queue is empty.

    Args:
        switch: ``switch(off)``: captures go off, or on again.
        drain: exports what is waiting, so that a block pays for its own records.
        captures_ns: accounted cost of the agent's captures so far.
        report: takes the result.
        block_s: length of a block.
        pairs: pairs of blocks of one experiment.
        first_s: seconds before the first experiment.
        rest_s: seconds between two.
        wanted: is another one wanted as soon as the first was?
        clock: monotonic nanoseconds.
        cpu: CPU time of the process in nanoseconds.

    Attributes:
        due: the clock's reading at which the next experiment begins.
    """

    def __init__(
        self,
        switch: Callable[[bool], None],
        drain: Callable[[], None],
        captures_ns: Callable[[], float],
        report: Callable[[Measured], None],
        *,
        block_s: float = 2.0,
        pairs: int = 10,
        first_s: float = 60.0,
        rest_s: float = 600.0,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu: Callable[[], int] = time.process_time_ns,
        rng: random.Random | None = None,
        wanted: Callable[[], bool] = bool,
    ) -> None:
        self._switch = switch
        self._drain = drain
        self._captures_ns = captures_ns
        self._report = report
        self._block_ns = int(block_s * 1e9)
        self._pairs = pairs
        self._rest_ns = int(rest_s * 1e9)
        self._clock = clock
        self._cpu = cpu
        self._rng = rng or random.Random()
        self._wanted = wanted
        self._soon_ns = int(first_s * 1e9)
        self.due = self._soon = clock() + self._soon_ns
        self._at_rest_captures = 0.0
        self._order: list[bool] = []  # of the blocks to come: off?
        self._off = False
        self._begun = 0
        self._settled = False
        self._start = (0, 0.0, 0)
        self._done: list[tuple[bool, _Block]] = []

    @property
    def running(self) -> bool:
        """Is an experiment under way?"""
        return self._begun > 0

    def tick(self, requests: int) -> None:
        """Look at the clock.

        Args:
            requests: how many requests have been finished in all.
        """
        now = self._clock()
        if not self._begun:
            if now >= self.due or (now >= self._soon and self._wanted()):
                self._begin(now)
            return
        if not self._settled:
            if now - self._begun >= SETTLE * self._block_ns:
                self._settled = True
                self._start = (self._cpu(), self._captures_ns(), requests)
            return
        if now - self._begun < self._block_ns:
            return
        served = requests - self._start[2]
        if served >= MIN_REQUESTS:
            self._end_block(served)
        elif now - self._begun > MAX_STRETCH * self._block_ns:
            self._finish("too few requests")

    def stop(self) -> None:
        """Switch captures on again, if an experiment is under way; it is given up."""
        if self._begun:
            self._begun = 0
            self._switch(False)

    def _begin(self, now: int) -> None:
        captures = self._captures_ns()
        if captures <= self._at_rest_captures:
            self._rest(now)  # nothing is captured: there is nothing to measure
            return
        self._done = []
        self._order = []
        for _ in range(self._pairs):  # a drift of the load must not favour one arm
            first = self._rng.random() < 0.5
            self._order += [first, not first]
        self._next_block()

    def _rest(self, now: int) -> None:
        self.due, self._soon = now + self._rest_ns, now + self._soon_ns

    def _next_block(self) -> None:
        off = self._order.pop(0)
        self._drain()
        if off is not self._off:
            self._off = off
            self._switch(off)
        self._begun = self._clock()
        self._settled = False

    def _end_block(self, served: int) -> None:
        self._drain()
        cpu = self._cpu() - self._start[0]
        captures = self._captures_ns() - self._start[1]
        self._done.append((self._off, _Block(cpu / served, captures / served)))
        if self._order:
            self._next_block()
        else:
            self._finish("")

    def _finish(self, reason: str) -> None:
        self._begun = 0
        if self._off:
            self._off = False
            self._switch(False)
        self._rest(self._clock())
        self._at_rest_captures = self._captures_ns()
        self._report(self._result(reason))

    def _result(self, reason: str) -> Measured:
        ratios, cpu, captures = Mean(), 0.0, 0.0
        for (one_off, one), (_, other) in zip(self._done[::2], self._done[1::2], strict=False):
            on, off = (other, one) if one_off else (one, other)
            if off.cpu_ns > 0:
                ratios.add(on.cpu_ns / off.cpu_ns - 1.0)
                cpu += off.cpu_ns
                # What is watched without any capture goes on in both, and is in neither difference.
                captures += on.captures_ns - off.captures_ns
        accounted = max(0.0, captures / cpu) if cpu > 0 else 0.0
        if ratios.n < MIN_PAIRS:
            return Measured(None, 0.0, 0.0, accounted, ratios.n, reason or "too few pairs of blocks")
        margin = ratios.margin()
        return Measured(ratios.mean, ratios.mean - margin, ratios.mean + margin, accounted, ratios.n)
