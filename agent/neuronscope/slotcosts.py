"""What slots cost: they run before an observer's own clock starts, and are judged by what runs after them."""

from __future__ import annotations

from typing import Final

# The slot and its snapshot run before an observer's own clock starts.  In a hot loop they take 3 µs, after a
# forward that has emptied the caches ten times as much: so they are judged by what runs right after them.
SLOT_BY_HANDLING: Final = 0.6  # slot, beside an observer up to its decision
SLOT_ALONE: Final = 0.3  # of it, where no snapshot is made
SLOT_BY_LOOK: Final = 1.5  # slot, beside finding out whose forward it was
HANDLING_CLOCKED: Final = 8  # every so many captures the way to them is timed by itself: a reading is 2 µs
CLOCKED: Final = 32  # every so many refused runs the clock is read


class Slots:
    """What a slot costs in this process, as things are.

    Attributes:
        cost_ns: the running estimate.
    """

    __slots__ = ("cost_ns",)

    def __init__(self) -> None:
        self.cost_ns = 10_000.0

    def seen(self, cost_ns: float) -> None:
        """One more estimate.  From any thread: a lost update is no harm."""
        self.cost_ns += 0.05 * (min(cost_ns, 10 * self.cost_ns) - self.cost_ns)


SLOTS: Final = Slots()
