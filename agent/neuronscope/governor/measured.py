"""What captures really cost: they are switched off and on in alternating blocks, and the CPU compared.

The accounted figure adds up what our own clocks saw.  It cannot see what captures do to the service
behind its back: caches, memory, the GIL.  So now and then, for a few seconds at a time, the agent's
captures (never spans, tokens, errors or propagation) go off and on; the CPU time that the process needs
for a request is compared, pair by pair, and published with its 95 % interval.

A block begins and ends in the middle of requests: of four threads each has one under way.  So a request
counts by the share of its duration that lies in the block; of those that end in it there would be too few or
too many.  And before the captures are switched, and after that, as much time is left out as requests take:
one that goes on through both arms would count for either as if it had been as slow in the other, and hide
what captures cost.  Requests that take longer than two blocks are not counted; if they are many, that is
"insufficient data".
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from neuronscope.governor.intervals import excess

MIN_PAIRS: Final = 6
MIN_REQUESTS: Final = 3  # that a block must have; how little they tell, the interval says
MAX_STRETCH: Final = 5  # so many times its length a block waits for them
LONGEST: Final = 2  # so many blocks a request that is counted may take …
UNCOUNTED: Final = 0.2  # … and that share of the requests' time may be of longer ones
TOO_LONG: Final = "requests take longer than blocks"
CLOCK_SET: Final = 0.01  # a share of a block by which the wall clock may be off
SETTLE: Final = 0.15  # share of a block that is left out: requests of the block before end in it
TOLERANCE: Final = 0.01  # how far outside the interval the accounted figure may be


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one experiment, as shares of the work without captures.

    Attributes:
        estimate: CPU time of a request with captures over that without, less one; None: too few blocks.
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


@dataclass(slots=True)
class _Block:
    """What one block showed.

    Attributes:
        off: captures were off.
        start: by the wall clock, as spans are.
        end: the same.
        requests: that lay in it, by their shares.
        ended: requests that ended in it.
        cpu: CPU time of the process.
        captures: of that, by the accounts.
    """

    off: bool
    start: int
    end: float = math.inf
    requests: float = 0.0
    ended: int = 0
    cpu: float = 0.0
    captures: float = 0.0

    @property
    def measured(self) -> bool:
        """Was it ended, and did anything go on in it?"""
        return self.requests > 0 and self.cpu > 0

    def take(self, start: int, end: int) -> None:
        """A request went on from `start` to `end`."""
        within = min(end, self.end) - max(start, self.start)
        if start >= end:
            self.requests += self.start <= end < self.end
        elif within > 0:
            self.requests += within / (end - start)
        self.ended += self.start <= end < self.end


@dataclass(slots=True)
class _Durations:
    """How long requests take, of late.

    Attributes:
        longest: of those that are counted, in ns.
        counted: their sum.
        squared: the sum of their squares.
        uncounted: the sum of those that took longer than `most`.
    """

    most: int
    longest: int = 0
    counted: float = 0.0
    squared: float = 0.0
    uncounted: float = 0.0

    def take(self, took: int) -> bool:
        """A request took so long; is it counted?"""
        if took > self.most:
            self.uncounted += took
            return False
        self.counted += took
        self.squared += took * took
        self.longest = max(self.longest, took)
        return True

    @property
    def too_long(self) -> bool:
        """Is too much of the time that of requests that are not counted?"""
        return self.uncounted > UNCOUNTED * (self.counted + self.uncounted)

    @property
    def under_way(self) -> float:
        """How long requests take that are under way at some moment: longer ones are so more often."""
        return min(self.longest, 2 * self.squared / self.counted) if self.counted > 0 else 0.0


class Experiment:
    """Runs the blocks.  Driven by `tick` and `served`, from the worker's thread.

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
        wall: the clock that requests are told by.
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
        wall: Callable[[], int] = time.time_ns,
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
        self._wall = wall
        self._cpu = cpu
        self._rng = rng or random.Random()
        self._wanted = wanted
        self._soon_ns = int(first_s * 1e9)
        self.due = self._soon = clock() + self._soon_ns
        self._at_rest_captures = 0.0
        self._order: list[bool] = []  # of the blocks to come: off?
        self._off = False
        self._begun = 0
        self._block: _Block | None = None  # that is being measured
        self._start = (0, 0.0, 0)
        self._blocks: list[_Block] = []
        self._closed = 0  # when it ended
        self._took = _Durations(LONGEST * self._block_ns)

    @property
    def running(self) -> bool:
        """Is an experiment under way?"""
        return self._begun > 0

    def served(self, start_ns: int, end_ns: int) -> None:
        """A request has been finished; when, by the wall clock."""
        if not self._took.take(end_ns - start_ns) or not self._begun:
            return
        for block in reversed(self._blocks):
            if block.end <= start_ns:
                return
            block.take(start_ns, end_ns)

    def tick(self) -> None:
        """Look at the clock: after the queue has been emptied, so that all that ended has been told."""
        now = self._clock()
        if not self._begun:
            if now >= self.due or (now >= self._soon and self._wanted()):
                self._begin(now)
            return
        block = self._block
        if block is None:
            if now - self._begun >= max(SETTLE * self._block_ns, self._took.under_way):
                self._start_block(now)
        elif block.end < math.inf:
            if now - self._closed < self._took.under_way:
                return
            if self._order:
                self._next()
            else:
                self._end()
        elif now - self._start[2] < self._block_ns:
            return
        elif block.ended >= MIN_REQUESTS:
            self._end_block(block)
        elif now - self._start[2] > MAX_STRETCH * self._block_ns:
            self._finish("too few requests")

    def stop(self) -> None:
        """Switch captures on again, if an experiment is under way; it is given up."""
        if self._begun:
            self._begun = 0
            self._be(False)

    def _begin(self, now: int) -> None:
        captures = self._captures_ns()
        if captures <= self._at_rest_captures:
            self._rest(now)  # nothing is captured: there is nothing to measure
            return
        self._blocks = []
        if self._took.too_long:
            self._finish(TOO_LONG)
            return
        self._order = []
        for _ in range(self._pairs):  # a drift of the load must not favour one arm
            first = self._rng.random() < 0.5
            self._order += [first, not first]
        self._next()

    def _rest(self, now: int) -> None:
        self.due, self._soon = now + self._rest_ns, now + self._soon_ns

    def _be(self, off: bool) -> None:
        if off is not self._off:
            self._off = off
            self._switch(off)

    def _next(self) -> None:
        self._drain()
        self._be(self._order[0])
        self._block = None
        self._begun = self._clock()

    def _start_block(self, now: int) -> None:
        self._block = _Block(self._order.pop(0), self._wall())
        self._blocks.append(self._block)
        self._start = (self._cpu(), self._captures_ns(), now)

    def _end_block(self, block: _Block) -> None:
        self._drain()
        block.end = self._wall()
        block.cpu = self._cpu() - self._start[0]
        block.captures = self._captures_ns() - self._start[1]
        self._closed = self._clock()
        took = self._closed - self._start[2]
        if abs(block.end - block.start - took) > CLOCK_SET * took:
            block.requests = 0.0
            block.end = block.start
            self._finish("the clock was set")

    def _end(self) -> None:
        if self._took.too_long:
            self._blocks.clear()
            self._finish(TOO_LONG)
        else:
            self._finish("")

    def _finish(self, reason: str) -> None:
        self._begun = 0
        self._block = None
        self._be(False)
        self._rest(self._clock())
        self._at_rest_captures = self._captures_ns()
        self._took = _Durations(LONGEST * self._block_ns)
        self._report(self._result(reason))

    def _result(self, reason: str) -> Measured:
        pairs = [
            (other, one) if one.off else (one, other)
            for one, other in zip(self._blocks[::2], self._blocks[1::2], strict=False)
            if one.measured and other.measured
        ]
        cpu = sum(off.cpu / off.requests for _, off in pairs)
        # What is watched without any capture goes on in both, and is in neither difference.
        captures = sum(on.captures / on.requests - off.captures / off.requests for on, off in pairs)
        accounted = max(0.0, captures / cpu) if cpu > 0 else 0.0
        if len(pairs) < MIN_PAIRS:
            return Measured(None, 0.0, 0.0, accounted, len(pairs), reason or "too few pairs of blocks")
        estimate, margin = excess(
            [on.cpu / on.requests for on, _ in pairs], [off.cpu / off.requests for _, off in pairs]
        )
        return Measured(estimate, estimate - margin, estimate + margin, accounted, len(pairs))
