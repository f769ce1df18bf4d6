"""What captures cost: predicted from what they cost before, by site and size."""

from __future__ import annotations

import math
from typing import Final

# A capture never seen is taken to cost this much; the first real ones correct it.
FIRST_NS: Final = 3_000.0
FIRST_NS_PER_BYTE: Final = 0.5
# One cold sample (an import, page faults) raises a prediction to this multiple of itself at most, two in a
# row are believed …
GROWTH: Final = 4.0
# … and every refusal lowers it by a little, so that sooner or later it is tried again.
DECAY: Final = 0.99
WEIGHT: Final = 0.2
_CLASSES: Final = 50
UNKNOWN: Final = [math.inf] * _CLASSES


class Costs:
    """Predicted nanoseconds of one kind of capture at one site, by size class.

    A size class is a power of two of bytes: a layer has few sizes (a prefill, a decoded token), so a
    table beats a line through all of them, and a prediction is one look-up.  A class without a sample
    borrows from the nearest one, scaled by size upwards and as it is downwards: too much rather than too
    little.  Not thread-safe: `Budget` locks.
    """

    __slots__ = ("_borrowed", "_last", "_seen", "table")

    def __init__(self) -> None:
        self.table: list[float] = [FIRST_NS + FIRST_NS_PER_BYTE * (1 << size) for size in range(_CLASSES)]
        self._seen = [0] * _CLASSES
        self._last = [0.0] * _CLASSES
        self._borrowed = False

    def predict(self, nbytes: int) -> float:
        """What a capture of `nbytes` will cost, in ns."""
        return self.table[nbytes.bit_length()]

    def known(self, nbytes: int) -> bool:
        """Has a capture of about this size been seen, here or where the costs are borrowed from?"""
        return self._borrowed or self._seen[nbytes.bit_length()] > 0

    def borrow(self, other: Costs) -> None:
        """Until there are samples of one's own, take another's predictions."""
        if not any(self._seen) and (other._borrowed or any(other._seen)):
            self.table[:] = other.table
            self._borrowed = True

    def learn(self, nbytes: int, spent_ns: float, samples: int = 1) -> None:
        """A capture of `nbytes` cost `spent_ns`; or a mean of several did, which needs less suspicion."""
        size = nbytes.bit_length()
        first = not any(self._seen)
        if first:
            self._borrowed = False
        self._seen[size] += 1
        estimate = self.table[size]
        agreed = min(spent_ns, self._last[size])  # two in a row are no accident
        self._last[size] = spent_ns
        if agreed > GROWTH * estimate:
            self.table[size] = agreed
        else:
            sample = min(spent_ns, GROWTH * samples * estimate)
            self.table[size] = estimate + max(WEIGHT, 1 / self._seen[size]) * (sample - estimate)
        if first or self._seen[size] <= 4:
            self._spread(size)

    def refuse(self, nbytes: int) -> None:
        """A capture of `nbytes` was not affordable at this prediction."""
        size = nbytes.bit_length()
        self.table[size] = max(FIRST_NS, self.table[size] * DECAY)

    def _spread(self, size: int) -> None:
        """Let classes without a sample of their own borrow from this one."""
        cost = self.table[size]
        for other in range(size + 1, _CLASSES):
            if self._seen[other]:
                break
            self.table[other] = cost * (1 << (other - size))
        for other in range(size - 1, -1, -1):
            if self._seen[other]:
                break
            self.table[other] = cost
