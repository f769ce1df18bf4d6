"""Times and ids that are the same in every run of a test."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from neuronscope.engine import clock, ids

# 2100-01-01: later than whatever the platform under test has noted by the real clock.
START_UNIX_NS: Final = 4_102_444_800 * 10**9


class FixedClock:
    """A clock that stands still between its readings.

    Attributes:
        now_unix_ns: what it shows.
        tick_ns: how far each reading moves it on.
    """

    def __init__(self, tick_s: float) -> None:
        self.now_unix_ns = START_UNIX_NS
        self.tick_ns = round(tick_s * 1e9)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_unix_ns += round(seconds * 1e9)

    def read(self) -> int:
        """The time; the next reading is later by one tick."""
        now = self.now_unix_ns
        self.now_unix_ns += self.tick_ns
        return now


class FixedIds:
    """Trace ids 1, 2, 3, …, and span ids 1, 2, 3, …, in the order in which spans begin."""

    def __init__(self) -> None:
        self._traces = itertools.count(1)
        self._spans = itertools.count(1)

    def bits(self, count: int) -> int:
        """In the place of so many random bits: a span id, a trace id, or both."""
        if count == 64:
            return next(self._spans)
        trace = next(self._traces)
        return trace if count == 128 else trace << 64 | next(self._spans)


@contextmanager
def fixed(tick_s: float = 0.001) -> Generator[FixedClock]:
    """Within the block, spans have the same times and ids in every run.

    ::

        with ns.testing.fixed() as clock:
            answer = service.ask("…")
            clock.advance(0.25)
            ...
        assert exporter.spans[0].span_id == 1

    Time begins at 2100-01-01T00:00:00Z, and each reading takes a tick; ids count up from 1.  It is the
    clock of spans, events, streams and metrics; what observation costs is measured by the real one.  With
    several threads the readings and ids come in the order in which the threads run, so use it with one, and
    with ``deferred=False`` where the order of log records matters.  For one block at a time in a process.

    Args:
        tick_s: seconds between two readings; 0: time passes by `FixedClock.advance` alone.
    """
    shown = FixedClock(tick_s)
    before = clock.wall_ns, clock.elapsed_ns
    clock.wall_ns = clock.elapsed_ns = shown.read
    ids.draw_from(FixedIds().bits)
    try:
        yield shown
    finally:
        clock.wall_ns, clock.elapsed_ns = before
        ids.draw_from(None)
