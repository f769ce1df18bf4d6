"""What one arm of a comparison costs beside the other, from blocks measured in pairs, with its uncertainty.

The mean, not the median: what happens rarely (an export, a burst of captures) is a cost as well.  A neighbour
on the machine that disturbs one block widens the interval, and does not go unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from time import monotonic
from typing import Final

from tests.benchmarks.figures import Figure, at_most

from neuronscope.governor import intervals

LEAST_PAIRS: Final = 4
TAIL: Final = 0.025  # of each side, beyond a 95 % interval
PRECISE: Final = 0.5  # points of the interval's half at which no more pairs are needed


@dataclass(frozen=True, slots=True)
class Excess:
    """By how many per cent one arm is above the other, with the ends of the 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2


def excess(arm: Sequence[float], base: Sequence[float]) -> Excess:
    """Ratio of the sums of paired measurements, less one."""
    value, half = intervals.excess(arm, base)
    return Excess(100 * value, 100 * (value - half), 100 * (value + half), len(arm))


def agreement(name: str, inside: Sequence[float] | None, truth: Excess) -> Figure:
    """How far the outside figure of captures lies beyond the interval that the agent itself has published."""
    outside = f"outside {truth.value:.1f} % (95 %: {truth.low:.1f} to {truth.high:.1f}, {truth.pairs} pairs)"
    if inside is None:
        return Figure(name, None, "%", at_most(1.0), note=f"the agent says: insufficient data; {outside}")
    estimate, low, high, accounted = inside
    return Figure(
        name,
        max(0.0, low - truth.value, truth.value - high),
        "%",
        at_most(1.0),
        note=(
            f"points by which captures on against captures off, outside, lie beyond the agent's own interval "
            f"(neuronscope.overhead.measured {estimate:.1f} %, {low:.1f} to {high:.1f}; accounted "
            f"{accounted:.1f} %); {outside}"
        ),
    )


def middle(samples: Sequence[float]) -> Excess:
    """Median of measured excesses, each of a pair, in per cent; its interval assumes nothing of how they lie.

    With fewer than six there is none that wide: then it is all that was seen.
    """
    ordered, n = sorted(samples), len(samples)
    rank, below = -1, 0.0  # so many smaller than the median, with no more than 2.5 %
    for smaller in range(n // 2):
        below += comb(n, smaller) / 2**n
        if below > TAIL:
            break
        rank = smaller
    low, high = ordered[max(rank, 0)], ordered[n - 1 - max(rank, 0)]
    return Excess(median(ordered), low, high, n)


def turns(most: int, limit_s: float, precise: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """Numbers of the turns: until it is precise enough, as many as asked for, or as go into the time.

    `LEAST_PAIRS` in any case.
    """
    started = monotonic()
    for turn in range(most):
        if turn >= LEAST_PAIRS and (monotonic() - started > limit_s or precise()):
            return
        yield turn
