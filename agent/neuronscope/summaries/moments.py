"""Moments: statistics of parts of an array that add up to those of the whole."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from neuronscope.signals.tensors import TensorSummary


@dataclass(slots=True)
class Moments:
    """Statistics that merge: over the finite elements, but for the counts.

    Attributes:
        finite: number of finite elements.
        squares: sum of squared deviations from `mean`.
        energy: sum of squares.
    """

    count: int = 0
    finite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    energy: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    zeros: int = 0
    nans: int = 0
    infs: int = 0

    @classmethod
    def of(cls, summary: TensorSummary) -> Moments:
        """The moments that a summary was made from, to within rounding."""
        finite = summary.count - summary.nan_count - summary.inf_count
        if not finite:
            return cls(count=summary.count, nans=summary.nan_count, infs=summary.inf_count)
        return cls(
            summary.count, finite, summary.mean, summary.std * summary.std * finite, summary.l2 * summary.l2,
            summary.min, summary.max, summary.zero_count, summary.nan_count, summary.inf_count,
        )  # fmt: skip

    def merge(self, other: Moments) -> Moments:
        """Add another part's moments (Chan, Golub and LeVeque's update)."""
        total = self.finite + other.finite
        if other.finite:
            delta = other.mean - self.mean
            share = other.finite / total
            self.mean += delta * share
            self.squares += other.squares + delta * delta * self.finite * share
        self.count += other.count
        self.finite = total
        self.energy += other.energy
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.zeros += other.zeros
        self.nans += other.nans
        self.infs += other.infs
        return self

    def summary(self) -> TensorSummary:
        """The moments as the platform's value."""
        finite = self.finite
        if not finite:
            nan = math.nan
            return TensorSummary(self.count, nan, nan, nan, nan, nan, nan, self.zeros, self.nans, self.infs)
        low, high = self.low, self.high
        return TensorSummary(
            self.count,
            self.mean,
            math.sqrt(max(0.0, self.squares) / finite),
            math.sqrt(self.energy),
            low,
            high,
            max(-low, high),
            self.zeros,
            self.nans,
            self.infs,
        )


def merge_summaries(summaries: Iterable[TensorSummary]) -> TensorSummary:
    """The summary of all parts together: of the ranks of one layer, of steps, of files.

    Exact but for rounding.  Counts and extremes of sampled summaries are exact, too; their other
    statistics are weighted by the elements they stand for, and the fraction told is the mean one.
    """
    total = Moments()
    read = 0.0
    for summary in summaries:
        total.merge(Moments.of(summary))
        read += summary.sampled_fraction * summary.count
    merged = total.summary()
    fraction = read / total.count if total.count else 1.0
    return merged if fraction == 1.0 else replace(merged, sampled_fraction=fraction)
