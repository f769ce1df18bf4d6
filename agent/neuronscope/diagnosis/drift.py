"""Is a window of queries like the baseline?  Statistics with thresholds, and the rule of two windows.

`compare` is symmetrical in kind: both sides are samples of queries, from a file or live.  Thresholds and
sample sizes: docs/explanation/retrieval-drift.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from neuronscope.diagnosis import statistics as st
from neuronscope.diagnosis.baseline import Baseline, merged
from neuronscope.diagnosis.samples import Collector, Queries, QuerySample, Series

MIN_WINDOW: Final = 200  # distinct queries below which nothing is said
MIN_REFERENCE: Final = 200
ALPHA: Final = 0.01
KS_EFFECT: Final = 0.10  # large samples find every difference; smaller ones are nobody's concern
PSI_WARN: Final = 0.10
W1_ALERT: Final = 0.25
W1_FINE: Final = 0.10
SHARE_ALPHA: Final = 0.001
SHARE_EFFECT: Final = 0.05
UNKNOWN_SERIES: Final = 0.30  # share of a window in series that the baseline has not
MAX_TRACES: Final = 5

# Shares of queries, and of which: all of them, those with a filter, those without.
SHARES: Final = (
    ("empty", "n"),
    ("short", "n"),
    ("filtered", "n"),
    ("filtered_empty", "filtered"),
    ("unfiltered_empty", "unfiltered"),
)


@dataclass(frozen=True, slots=True)
class Test:
    """One statistic of one feature: its value, and from where on it counts.

    Attributes:
        feature: top_score, kth_score, margin, norm, direction, or a share: empty, short, filtered, …
        statistic: psi, ks, wasserstein, centroid or share.
        threshold: infinite where the samples are too small for this statistic.
        m, n: sizes of reference and window.
        before, after: medians of the feature, or the shares: what people read first.
    """

    __test__ = False  # not pytest's

    series: Series
    feature: str
    statistic: str
    value: float
    threshold: float
    m: int
    n: int
    before: float = math.nan
    after: float = math.nan

    @property
    def exceeded(self) -> bool:
        """Does it count?"""
        return self.value > self.threshold

    @property
    def key(self) -> tuple[Series, str, str]:
        """What the next window's test of the same thing is found by."""
        return self.series, self.feature, self.statistic


def compare(reference: Queries, window: Queries) -> list[Test]:
    """All tests of a window against its reference; none if one of them is too small."""
    if reference.n < MIN_REFERENCE or window.n < MIN_WINDOW:
        return []
    tests: list[Test] = []
    for feature, values in window.values.items():
        known = reference.values.get(feature)
        if known is not None and known.size >= MIN_REFERENCE and values.size >= MIN_WINDOW:
            tests += _of_feature(reference.series, feature, known, values)
    if len(reference.fingerprints) >= MIN_REFERENCE and len(window.fingerprints) >= MIN_WINDOW:
        tests.append(_of_directions(reference, window))
    tests += _of_shares(reference, window)
    return tests


def _of_feature(series: Series, feature: str, reference: st.Sample, window: st.Sample) -> Iterator[Test]:
    m, n = reference.size, window.size
    before, after = float(reference[m // 2]), float(window[n // 2])
    bins = st.bin_edges(reference).size + 1
    measured = (
        ("psi", st.psi(reference, window), st.psi_threshold(m, n, PSI_WARN, bins)),
        ("ks", st.ks(reference, window), max(KS_EFFECT, st.ks_critical(m, n, ALPHA))),
        ("wasserstein", st.relative_wasserstein(reference, window), _w1_threshold(m, n)),
    )
    for statistic, value, threshold in measured:
        yield Test(series, feature, statistic, value, threshold, m, n, before, after)


def _w1_threshold(m: int, n: int) -> float:
    if n < 500:
        return math.inf
    return W1_FINE if n >= 1000 and m >= 5000 else W1_ALERT


def _of_directions(reference: Queries, window: Queries) -> Test:
    n = len(window.fingerprints)
    return Test(
        reference.series,
        "direction",
        "centroid",
        st.centroid_shift(reference.directions, window.directions),
        _centroid_threshold(reference.fingerprints, 50 * math.ceil(n / 50)),
        len(reference.fingerprints),
        n,
    )


@lru_cache(maxsize=64)
def _centroid_threshold(fingerprints: tuple[str, ...], n: int) -> float:
    from neuronscope.diagnosis.samples import directions

    return st.centroid_threshold(directions(fingerprints), n)


def _of_shares(reference: Queries, window: Queries) -> Iterator[Test]:
    """Shares of queries: beyond chance (p below 0.001) and by at least five points of a hundred."""
    for name, whole in SHARES:
        whole_before, whole_after = getattr(reference, whole), getattr(window, whole)
        if whole_before < MIN_REFERENCE or whole_after < MIN_WINDOW:
            continue
        bad_before, bad_after = getattr(reference, name), getattr(window, name)
        p = st.share_p_value(bad_after, whole_after, bad_before, whole_before)
        before, after = bad_before / whole_before, bad_after / whole_after
        threshold = SHARE_EFFECT if p < SHARE_ALPHA else math.inf
        yield Test(
            reference.series,
            name,
            "share",
            abs(after - before),
            threshold,
            whole_before,
            whole_after,
            before,
            after,
        )


@dataclass(frozen=True)
class WindowReport:
    """What a window of one collection says.

    Attributes:
        tests: all that were made.
        drifted: those that exceed their threshold for the second window in a row.
        suspected: those that exceed it in this one.
        unknown: metric and k of series that hold much of the window and are not in the baseline.
        traces: the window's worst queries, to look at.
    """

    store: str
    collection: str
    n: int
    tests: Sequence[Test] = ()
    drifted: Sequence[Test] = ()
    suspected: Sequence[Test] = ()
    unknown: Sequence[Series] = ()
    unknown_confirmed: bool = False
    traces: Sequence[int] = ()
    embedders: frozenset[str] = frozenset()

    def of(self, *features: str) -> list[Test]:
        """Confirmed tests of these features."""
        return [test for test in self.drifted if test.feature in features]


@dataclass
class PlaceWindows:
    """The windows of one collection, one after the other.  For one thread.

    Args:
        size: distinct queries of a window.
        longest_s: after which a window of at least `MIN_WINDOW` is closed all the same.
    """

    store: str
    collection: str
    baseline: Baseline
    size: int
    longest_s: float
    _collector: Collector = field(init=False)
    _since: float | None = None
    _exceeded: frozenset[tuple[Series, str, str]] = frozenset()
    _unknown: frozenset[Series] = frozenset()

    def __post_init__(self) -> None:
        self._collector = Collector(self.size)

    def add(self, query: QuerySample, now: float) -> WindowReport | None:
        """Take a query; the report, if it was the window's last."""
        if self._since is None:
            self._since = now
        self._collector.add(query)
        distinct = self._collector.distinct()
        if distinct < self.size and (distinct < MIN_WINDOW or now - self._since < self.longest_s):
            return None
        return self._close()

    def _close(self) -> WindowReport:
        windows = self._collector.queries()
        worst = _worst(self._collector.kept())
        self._collector, self._since = Collector(self.size), None
        tests = [
            test
            for series, window in windows.items()
            if (reference := self.baseline.reference(series)) is not None
            for test in compare(reference, window)
        ]
        suspected = [test for test in tests if test.exceeded]
        drifted = [test for test in suspected if test.key in self._exceeded]
        unknown = self._unknown_series(windows)
        confirmed = bool(unknown) and frozenset(unknown) == self._unknown
        self._exceeded = frozenset(test.key for test in suspected)
        self._unknown = frozenset(unknown)
        embedders = frozenset(name for window in windows.values() for name in window.embedders)
        n = sum(window.n for window in windows.values())
        return WindowReport(
            *(self.store, self.collection, n, tests, drifted, suspected, unknown, confirmed, worst, embedders)
        )

    def _unknown_series(self, windows: dict[Series, Queries]) -> list[Series]:
        known, _ = merged(self.baseline.within(self.store, self.collection))
        if known < MIN_REFERENCE:
            return []  # the baseline does not know the collection at all
        total = sum(window.n for window in windows.values())
        return [
            series
            for series, window in windows.items()
            if not self.baseline.knows(series) and window.n >= UNKNOWN_SERIES * total
        ]


def _worst(queries: Iterable[QuerySample]) -> tuple[int, ...]:
    """Traces of the queries that found nothing, then of those whose best score is lowest."""
    ranked = sorted(queries, key=lambda query: (not query.empty, query.top_score or 0.0))
    return tuple(dict.fromkeys(query.trace_id for query in ranked[:MAX_TRACES]))
