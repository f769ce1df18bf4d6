"""One series of a histogram: counts by bucket, with the last span seen in each."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

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


def fill_in_python(
    rows: list[Any],
    start: int,
    attributes: dict[str, Any],
    seconds: float,
    span: tuple[int, int] | None,
    now: int,
) -> int:
    """Record what a call tells in several series; whoever calls holds the aggregator's lock.

    Args:
        rows: attribute, series, attribute, …; for the attribute None the value is `seconds`.  What is no
            number is left out.  A counter is a dictionary and the labels to count under.
        start: where to begin.

    Returns:
        The first row without a series whose value is told: it has to be found first.  -1: all are recorded.
    """
    for row in range(start, len(rows), 2):
        key, series = rows[row], rows[row + 1]
        value = seconds if key is None else attributes.get(key)
        if isinstance(value, int | float):
            if series is None:
                return row
            if not isinstance(series, tuple):
                series.add(value, span, now)
            elif math.isfinite(value):
                counts, labels = cast("tuple[dict[Any, float], Any]", series)
                counts[labels] = counts.get(labels, 0) + value
    return -1


def fill_known_in_python(
    known: dict[tuple[object, ...], list[Any]],
    labels: tuple[str, ...],
    attributes: dict[str, Any],
    seconds: float,
    span: tuple[int, int] | None,
    now: int,
) -> tuple[list[Any] | None, int] | None:
    """`fill` in the rows that are known by the values of these labels.

    Returns:
        None: all is recorded.  Else the rows, None if there are none yet, and from which one on it is not.
    """
    try:
        rows = known.get(tuple(map(attributes.get, labels)))
    except TypeError:  # a label that is a list
        rows = None
    if rows is None:
        return None, 0
    row = fill_in_python(rows, 0, attributes, seconds, span, now)
    return None if row < 0 else (rows, row)


fill: Final = compiled.choose("fill", fill_in_python)
fill_known: Final = compiled.choose("fill_known", fill_known_in_python)
