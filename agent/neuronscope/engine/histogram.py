"""One series of a histogram: counts by bucket, with the last span seen in each."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neuronscope import compiled
from neuronscope.signals.records import Exemplar, HistogramValue

Sighting = tuple[float, int, int, int]  # an exemplar's value, time, trace and span, until somebody looks


class SeriesInPython:
    """The twin of the compiled series; whoever changes it holds the aggregator's lock.

    Attributes:
        bounds: upper ends of the buckets, ascending; the last bucket has none.
        counts: one for each bucket.
        exemplars: the last sighting in each bucket.
        sum: of all values.
        count: of them.
    """

    __slots__ = ("bounds", "count", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float], counts: list[int], exemplars: list[Sighting | None]) -> None:
        self.bounds = bounds
        self.counts = counts
        self.exemplars = exemplars
        self.sum = 0.0
        self.count = 0

    def add(self, value: float, span: tuple[int, int] | None, now: int) -> None:
        """Count a value, if it is finite.

        Args:
            span: (trace id, span id) of a *sampled* span, that ended now.
        """
        if not math.isfinite(value):
            return
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.sum += value
        self.count += 1
        if span is not None:
            self.exemplars[index] = (value, now, *span)


if TYPE_CHECKING:
    _Series = SeriesInPython
else:
    _Series: Any = compiled.choose("Series", SeriesInPython)


class Histogram(_Series):
    """One series of a histogram; whoever changes it holds the aggregator's lock."""

    __slots__ = ()

    def value(self) -> HistogramValue:
        """A copy for readers."""
        exemplars = tuple(None if seen is None else Exemplar(*seen) for seen in self.exemplars)
        return HistogramValue(tuple(self.counts), self.sum, self.count, exemplars)
