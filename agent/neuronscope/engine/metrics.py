"""The aggregator: metrics are aggregated once, here, and read by every metric exporter.

Three SDK histogram records cost 20 µs a call; one dictionary look-up and a bisection cost well under
one.  Only the worker writes (under a lock that no thread of the service takes), scrapes read a copy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neuronscope import native
from neuronscope.engine import clock
from neuronscope.signals.names import SERIES_FOLDED, Instrument, Metric
from neuronscope.signals.records import (
    Exemplar,
    HistogramValue,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
)

Labels = tuple[tuple[str, str], ...]
MAX_SERIES = 1_000
OTHER = "other"


Sighting = tuple[float, int, int, int]  # an exemplar's value, time, trace and span, until somebody looks


@dataclass(slots=True)
class Histogram:
    """One series of a histogram; whoever changes it holds the aggregator's lock."""

    bounds: Sequence[float]
    counts: list[int]
    exemplars: list[Sighting | None]
    sum: float = 0.0
    count: int = 0

    def add(self, value: float, span: tuple[int, int] | None, now: int) -> None:
        """Count a finite value; `span` is (trace id, span id) of a *sampled* span, that ended now."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.sum += value
        self.count += 1
        if span is not None:
            self.exemplars[index] = (value, now, *span)

    def value(self) -> HistogramValue:
        """A copy for readers."""
        exemplars = tuple(None if seen is None else Exemplar(*seen) for seen in self.exemplars)
        return HistogramValue(tuple(self.counts), self.sum, self.count, exemplars)


class Aggregator:
    """Cumulative metrics of this process.  Thread-safe.

    A metric holds at most `MAX_SERIES` series; further label sets are folded into one whose values are
    all ``other``, and counted.  Non-finite values never enter.
    """

    __slots__ = ("_clock", "_histograms", "_lock", "_numbers", "_observers", "_start")

    def __init__(self, now: Callable[[], int] = clock.now_ns) -> None:
        self._clock = now
        self._lock = native.new_lock()
        self._start = now()
        self._numbers: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {}
        self._observers: list[Callable[[], None]] = []

    def observe(
        self, metric: Metric, value: float, labels: Labels = (), span: tuple[int, int] | None = None
    ) -> None:
        """Record a value in a histogram; `span` is (trace id, span id) of a *sampled* span."""
        self.observe_all(metric, (value,), labels, span)

    def observe_all(
        self,
        metric: Metric,
        values: Iterable[float],
        labels: Labels = (),
        span: tuple[int, int] | None = None,
    ) -> None:
        """Record several values of one series at once."""
        with self._lock:
            series = self._histograms.get(metric)
            if series is None:
                series = self._histograms[metric] = {}
            histogram = series.get(labels) or self._new_series(metric, series, labels)
            now = self._clock() if span is not None else 0
            for value in values:
                if math.isfinite(value):
                    histogram.add(value, span, now)

    def series(self, metric: Metric, labels: Labels) -> Histogram | None:
        """The series of a histogram, to be kept and filled by `fill`; None if the metric has too many."""
        with self._lock:
            series = self._histograms.setdefault(metric, {})
            found = series.get(labels)
            if found is None and len(series) < MAX_SERIES:
                found = self._new_series(metric, series, labels)
            return found

    def folded(self, metric: Metric, labels: Labels) -> Histogram:
        """The series that stands for all that a metric has no room for; counts that one was folded."""
        with self._lock:
            return self._new_series(metric, self._histograms.setdefault(metric, {}), labels)

    def fill(self, values: Iterable[tuple[Histogram, float]], span: tuple[int, int] | None, now: int) -> None:
        """Record one value each in several series; `span` ended at `now`."""
        with self._lock:
            for histogram, value in values:
                if math.isfinite(value):
                    histogram.add(value, span, now)

    def _new_series(self, metric: Metric, series: dict[Labels, Histogram], labels: Labels) -> Histogram:
        labels = self._admit(metric, series, labels)
        histogram = series.get(labels)
        if histogram is None:
            size = len(metric.buckets) + 1
            histogram = series[labels] = Histogram(metric.buckets, [0] * size, [None] * size)
        return histogram

    def add(self, metric: Metric, value: float = 1, labels: Labels = ()) -> None:
        """Add to a counter."""
        if not math.isfinite(value):
            return
        with self._lock:
            series = self._numbers.setdefault(metric, {})
            labels = self._admit(metric, series, labels)
            series[labels] = series.get(labels, 0) + value

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        if not math.isfinite(value):
            return
        with self._lock:
            self._numbers.setdefault(metric, {})[labels] = value

    def before_collect(self, observer: Callable[[], None]) -> None:
        """Call `observer` before each snapshot: the place to set gauges."""
        self._observers.append(observer)

    def collect(self) -> MetricsSnapshot:
        """A consistent copy of everything."""
        for observer in tuple(self._observers):
            observer()
        with self._lock:
            families = [
                MetricFamily(metric, [MetricPoint(labels, value) for labels, value in series.items()])
                for metric, series in self._numbers.items()
            ]
            families += [
                MetricFamily(metric, [MetricPoint(labels, h.value()) for labels, h in series.items()])
                for metric, series in self._histograms.items()
            ]
        return MetricsSnapshot(families, self._start, self._clock())

    def total(self, metric: Metric) -> float:
        """Sum of a metric's series (a histogram's: number of observations)."""
        with self._lock:
            if metric.instrument is Instrument.HISTOGRAM:
                return sum(h.count for h in self._histograms.get(metric, {}).values())
            return sum(self._numbers.get(metric, {}).values())

    def _admit(
        self, metric: Metric, series: dict[Labels, float] | dict[Labels, Histogram], labels: Labels
    ) -> Labels:
        """The labels to record under: the given ones, or the fold once the metric is full."""
        if labels in series or len(series) < MAX_SERIES:
            return labels
        folded = self._numbers.setdefault(SERIES_FOLDED, {})
        key = (("metric", metric.name),)
        folded[key] = folded.get(key, 0) + 1
        return tuple((label, OTHER) for label, _ in labels)


def labels_of(metric: Metric, attributes: Mapping[str, object]) -> Labels:
    """The metric's labels out of a span's attributes; absent ones are left out."""
    values = (metric, *map(attributes.get, metric.labels))
    try:
        found = _LABELS.get(values)
    except TypeError:  # a label that is a list: cannot be looked up
        return _labels(metric, attributes)
    if found is None:
        found = _labels(metric, attributes)
        if len(_LABELS) < MAX_SERIES:
            _LABELS[values] = found
    return found


def _labels(metric: Metric, attributes: Mapping[str, object]) -> Labels:
    return tuple((key, str(attributes[key])) for key in metric.labels if key in attributes)


# Labels by metric and values: the same few combinations come with every span.
_LABELS: dict[tuple[object, ...], Labels] = {}
