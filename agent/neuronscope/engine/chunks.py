"""What is noted of each chunk of a stream: the chunk, when it came, and how long the service kept it.

The one thing that is done for every chunk, hence in one call, and compiled.
"""

from __future__ import annotations

import time
from array import array
from typing import Any, Final

from neuronscope import compiled
from neuronscope.engine import clock

# Chunks kept before they go to the worker.
HAND_OVER_EVERY: Final = 32
# Of so many chunks one is timed until the service asks for the next.
TIMED_EVERY: Final = 4


class ChunksInPython:
    """What passed through a stream, and when.  For the stream's thread.

    Attributes:
        kept: chunks that are not with the worker yet.
        count: how many there were.
        held_ns: for how long the service kept the chunks that are timed.
        waits: no chunk with content has come yet.
        last: when the last one came, in ns.
    """

    __slots__ = ("_times", "held_ns", "kept", "waits")

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self._times = array("q")
        self.held_ns = 0
        self.waits = True

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self._times)

    @property
    def last(self) -> int:
        """When the last one came."""
        return self._times[-1] if self._times else 0

    def take(self, chunk: object) -> bool | None:
        """Note a chunk on its way to the service.

        Returns:
            True: somebody has to look at it, or at those so far.  False: say when the next is `asked` for.
        """
        self._times.append(clock.elapsed_ns())
        self.kept.append(chunk)
        if self.waits or len(self.kept) >= HAND_OVER_EVERY:
            return True
        return None if len(self._times) % TIMED_EVERY else False

    def asked(self) -> None:
        """The service asks for the next chunk."""
        if self._times and not len(self._times) % TIMED_EVERY:
            self.held_ns += clock.elapsed_ns() - self._times[-1]

    def hand_over(self) -> list[Any]:
        """The chunks so far, which are let go of."""
        kept, self.kept = self.kept, []
        return kept

    def times(self) -> bytes:
        """When each came, as bytes of 64-bit numbers of this machine."""
        return self._times.tobytes()


_Compiled: Final[type[ChunksInPython]] = compiled.choose("Chunks", ChunksInPython)
# The compiled one reads the clock by itself: it must be the same.
_SAME_CLOCK: Final = time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"


def new_chunks() -> ChunksInPython:
    """For a stream that begins."""
    return _Compiled() if _SAME_CLOCK and clock.elapsed_ns is time.perf_counter_ns else ChunksInPython()
