"""The aggregator: metrics are aggregated once, here, and read by every metric exporter.

Three SDK histogram records cost 20 µs a call; one dictionary look-up and a bisection cost well under
one.  Only the worker writes (under a lock that no thread of the service takes), scrapes read a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from neuronscope import native
from neuronscope.engine import clock
from neuronscope.engine.cardinality import COUNTED, FREE_FORM, IDLE_S, OTHER, Cardinality, Labels
from neuronscope.engine.histogram import Histogram, fill, fill_known
from neuronscope.signals.names import SERIES, SERIES_DROPPED, SERIES_FOLDED, Instrument, Metric
from neuronscope.signals.records import MetricFamily, MetricPoint, MetricsSnapshot

__all__ = ["MAX_LABEL", "MAX_SERIES", "OTHER", "Aggregator", "Histogram", "Labels", "labels_of", "new_labels"]
MAX_SERIES: Final = 1_000
MAX_LABEL: Final = 200  # characters of a value
REVIEW_S: Final = 10.0

Series = TypeVar("Series")
Rows = list[Any]  # attribute, series, attribute, …
Counter = tuple[dict[Labels, float], Labels]
# A call's attributes, its duration, its (trace id, span id) if it is sampled, and when it ended.
Told = tuple[dict[str, Any], float, tuple[int, int] | None, int]
Retired = dict[Metric, dict[Labels, tuple[Series, int]]]  # series that grow no more, and since when


class Aggregator:
    """Cumulative metrics of this process.  Thread-safe.

    Values of free-form labels beyond those that `cardinality` admits are folded into ``other``.  A metric
    holds at most `MAX_SERIES` series that grow; further label sets are folded into one whose values are all
    ``other``; further gauges are left out.  What is folded is counted.  Non-finite values never enter.

    Args:
        now: the time of day in ns.
        cardinality: decides about values of labels; the usual limits if none is given.

    Attributes:
        generation: another number as soon as a series that `series` gave out may grow no more.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_histograms",
        "_lock",
        "_numbers",
        "_observers",
        "_retired_histograms",
        "_retired_numbers",
        "_review_at",
        "_start",
        "_values",
        "generation",
    )

    def __init__(self, now: Callable[[], int] = clock.now_ns, cardinality: Cardinality | None = None) -> None:
        self._clock = now
        self._values = cardinality or Cardinality()
        self.generation = 0
        self._retired_numbers: Retired[float] = {}
        self._retired_histograms: Retired[Histogram] = {}
        self._counts: dict[tuple[Metric, Labels], float] = {}  # at the last review
        self._lock = native.new_lock()
        self._start = now()
        self._review_at = self._start + int(REVIEW_S * 1e9)
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
                histogram.add(value, span, now)

    def series(self, metric: Metric, labels: Labels) -> tuple[Histogram, bool]:
        """The series of a histogram, to be filled by `fill`, and: is it that of these labels alone?

        That one may be kept while `generation` stays the same.  Any other stands for what is folded: it is to
        be asked for each time, so that each time is counted.
        """
        with self._lock:
            series = self._histograms.setdefault(metric, {})
            found = series.get(labels)
            if found is not None:
                return found, True
            return self._new_series(metric, series, labels), labels in series

    def fold(self, metric: Metric, labels: Labels) -> Labels:
        """What will be recorded under: for whoever records several metrics of a call, to ask once for all."""
        with self._lock:
            return self._admit(metric, {}, labels)

    def fill(self, values: Iterable[tuple[Histogram, float]], span: tuple[int, int] | None, now: int) -> None:
        """Record one value each in several series; `span` ended at `now`."""
        with self._lock:
            for histogram, value in values:
                histogram.add(value, span, now)

    def fill_known(
        self,
        known: dict[tuple[object, ...], Rows],
        labels: tuple[str, ...],
        call: Told,
    ) -> tuple[Rows | None, int] | None:
        """Record what a call tells in the series that are known by the values of these labels.

        What it returns is what `histogram.fill_known` does; `fill_rows` records the rest.
        """
        with self._lock:
            return fill_known(known, labels, *call)

    def fill_rows(
        self, rows: Rows, row: int, find: Callable[[int], tuple[Histogram | Counter, bool]], call: Told
    ) -> None:
        """Record what a call tells in the series of `rows`, from `row` on.

        Args:
            find: the series of a row that has none yet, as `series` tells it.
        """
        with self._lock:
            row = fill(rows, row, *call)
            while row >= 0:
                missing = row
                rows[missing + 1], own = find(missing)
                row = fill(rows, missing, *call)
                if not own:
                    rows[missing + 1] = None

    def counter(self, metric: Metric, labels: Labels) -> tuple[Counter, bool]:
        """A counter, to be counted up by `fill_known`; as `series` tells it."""
        with self._lock:
            counts = self._numbers.setdefault(metric, {})
            admitted = self._admit(metric, counts, labels)
            return (counts, admitted), admitted == labels

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
            series = self._numbers.setdefault(metric, {})
            if labels in series or len(series) < MAX_SERIES:
                series[labels] = value
            else:
                self._count_folded(metric)

    def before_collect(self, observer: Callable[[], None]) -> None:
        """Call `observer` before each snapshot: the place to set gauges."""
        self._observers.append(observer)

    def collect(self) -> MetricsSnapshot:
        """A consistent copy of everything."""
        for observer in tuple(self._observers):
            observer()
        with self._lock:
            now = self._clock()
            if now >= self._review_at:
                self._review(now)
            families = [
                MetricFamily(metric, [MetricPoint(*item) for item in self._all_numbers(metric).items()])
                for metric in self._numbers
            ]
            families += [
                MetricFamily(
                    metric,
                    [
                        *(MetricPoint(labels, h.value()) for labels, h in series.items()),
                        *(
                            MetricPoint(labels, h.value())
                            for labels, (h, _) in self._retired_histograms.get(metric, {}).items()
                        ),
                    ],
                )
                for metric, series in self._histograms.items()
            ]
        sizes = [MetricPoint((("metric", f.metric.name),), len(f.points)) for f in families]
        families.append(MetricFamily(SERIES, sizes))
        return MetricsSnapshot(families, self._start, now)

    def total(self, metric: Metric) -> float:
        """Sum of a metric's series (a histogram's: number of observations)."""
        with self._lock:
            if metric.instrument is Instrument.HISTOGRAM:
                gone = sum(h.count for h, _ in self._retired_histograms.get(metric, {}).values())
                return gone + sum(h.count for h in self._histograms.get(metric, {}).values())
            return sum(self._all_numbers(metric).values())

    def _all_numbers(self, metric: Metric) -> dict[Labels, float]:
        """Series that grow, and those that do not any more.

        A counter can be both for a moment: whoever looked it up before it was retired counts in it once more.
        """
        found = dict(self._numbers.get(metric, {}))
        for labels, (value, _) in self._retired_numbers.get(metric, {}).items():
            found[labels] = found.get(labels, 0) + value
        return found

    # --- how many series; the lock is held --------------------------------------------------------------
    def _admit(
        self, metric: Metric, series: dict[Labels, float] | dict[Labels, Histogram], labels: Labels
    ) -> Labels:
        """The labels to record under: the given ones, or with `other` for what has no series of its own."""
        if labels in series:
            return labels
        own = self._values.fold(metric, labels)
        if own not in series and len(series) >= MAX_SERIES:
            own = tuple((label, OTHER) for label, _ in labels)
        if own != labels:
            self._count_folded(metric)
            now = self._clock()
            if now >= self._review_at:
                self._review(now)
                return self._admit(metric, series, labels) if self._values.stands(labels) else own
        return own

    def _count_folded(self, metric: Metric, counter: Metric = SERIES_FOLDED, n: int = 1) -> None:
        counts, key = self._numbers.setdefault(counter, {}), (("metric", metric.name),)
        counts[key] = counts.get(key, 0) + n

    def _review(self, now: int) -> None:
        """Exchange values of labels, retire series of those that have lost their place, drop idle ones."""
        self._review_at = now + int(REVIEW_S * 1e9)
        if self._values.review(self._sightings(), now):
            self.generation += 1
            for metric, old in self._retired_numbers.items():
                series = self._numbers[metric]
                for labels in series.keys() & old.keys():  # see `_all_numbers`
                    old[labels] = old[labels][0] + series.pop(labels), now
            self._exchange(self._numbers, self._retired_numbers, now)
            self._exchange(self._histograms, self._retired_histograms, now)
        self._drop_idle(self._retired_numbers, now)
        self._drop_idle(self._retired_histograms, now)

    def _sightings(self) -> dict[str, dict[str, float]]:
        """How often each value of a label was seen since the last review."""
        seen: dict[str, dict[str, float]] = {}
        counts: dict[tuple[Metric, Labels], float] = {}
        for metric in COUNTED:
            series = self._histograms.get(metric, {})
            told: Iterable[tuple[Labels, float]] = [(labels, h.count) for labels, h in series.items()]
            for labels, count in told or self._numbers.get(metric, {}).items():
                counts[metric, labels] = count
                new = count - self._counts.get((metric, labels), 0)
                for key, value in labels if new else ():
                    if key in FREE_FORM:
                        values = seen.setdefault(key, {})
                        values[value] = values.get(value, 0) + new
        self._counts = counts
        return seen

    def _exchange(
        self, growing: dict[Metric, dict[Labels, Series]], retired: Retired[Series], now: int
    ) -> None:
        for metric, old in retired.items():
            for labels in [labels for labels in old if self._values.stands(labels)]:
                growing[metric][labels] = old.pop(labels)[0]
        for metric, series in growing.items():
            if metric.instrument is not Instrument.GAUGE:
                for labels in [labels for labels in series if not self._values.stands(labels)]:
                    retired.setdefault(metric, {})[labels] = series.pop(labels), now

    def _drop_idle(self, retired: Retired[Series], now: int) -> None:
        for metric, series in retired.items():
            idle = [labels for labels, (_, since) in series.items() if now - since >= IDLE_S * 1e9]
            for labels in idle:
                del series[labels]
            if idle:
                self._count_folded(metric, SERIES_DROPPED, len(idle))


def labels_of(metric: Metric, attributes: Mapping[str, object]) -> Labels:
    """The metric's labels out of a span's attributes; absent ones are left out."""
    values = (metric, *map(attributes.get, metric.labels))
    try:
        found = _LABELS.get(values)
    except TypeError:  # a label that is a list: cannot be looked up
        return new_labels(metric, attributes)
    if found is None:
        found = new_labels(metric, attributes)
        if len(_LABELS) >= MAX_SERIES:
            _LABELS.clear()  # most were seen once
        if all(len(value) < MAX_LABEL for _, value in found):
            _LABELS[values] = found
    return found


def new_labels(metric: Metric, attributes: Mapping[str, object]) -> Labels:
    """The same, of values that are not expected again."""
    return tuple((key, str(attributes[key])[:MAX_LABEL]) for key in metric.labels if key in attributes)


# Labels by metric and values: the same few combinations come with every span.
_LABELS: dict[tuple[object, ...], Labels] = {}
