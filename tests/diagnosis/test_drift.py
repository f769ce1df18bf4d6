"""Windows against a baseline: what counts, from how many queries on, and how often it counts by accident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.faults.simulated import SERIES, false_alarms, queries, sample_of

from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.drift import PlaceWindows, Test, WindowReport, compare
from neuronscope.diagnosis.samples import QuerySample

REFERENCE = sample_of(np.random.default_rng(0), 1_000)
BASELINE = Baseline({SERIES: REFERENCE})


def exceeded(tests: list[Test]) -> set[str]:
    return {test.feature for test in tests if test.exceeded}


@pytest.mark.parametrize(
    ("change", "features"),
    [
        ({}, set[str]()),
        ({"shift": 0.8}, {"top_score", "kth_score"}),
        ({"turn": 0.02}, {"direction"}),
        ({"empty": 0.2}, {"empty", "filtered_empty", "unfiltered_empty"}),
        ({"filtered": 0.2}, {"filtered"}),
    ],
    ids=["nothing", "scores", "directions", "empty results", "filters"],
)
def test_each_change_is_seen_where_it_is(change: dict[str, Any], features: set[str]) -> None:
    """By the tests of its own feature, and by no other."""
    assert exceeded(compare(REFERENCE, sample_of(np.random.default_rng(1), 500, **change))) == features


def test_too_few_queries_say_nothing() -> None:
    """199 queries, or a reference of 199, are no evidence."""
    random = np.random.default_rng(2)
    few, enough = sample_of(random, 199, shift=3), sample_of(random, 200, shift=3)
    assert compare(REFERENCE, few) == []
    assert exceeded(compare(REFERENCE, enough))
    assert compare(sample_of(random, 199), enough) == []


def test_the_distance_of_wasserstein_alarms_only_in_large_samples() -> None:
    """It is reported always; below 500 its noise is as large as what it would be asked to see."""
    random = np.random.default_rng(3)
    found = {n: compare(REFERENCE, sample_of(random, n, shift=1)) for n in (300, 600)}
    thresholds = {
        n: {test.threshold for test in tests if test.statistic == "wasserstein"} for n, tests in found.items()
    }
    assert thresholds == {300: {np.inf}, 600: {0.25}}


def windows(samples: Iterator[QuerySample], size: int = 300, **more: Any) -> list[WindowReport]:
    place = PlaceWindows("qdrant", "docs", more.pop("baseline", BASELINE), size, 3_600.0)
    return [report for query in samples if (report := place.add(query, 0.0)) is not None]


def test_it_takes_two_windows_in_a_row() -> None:
    """The first makes suspicious, the second confirms; a good one in between begins anew."""
    random = np.random.default_rng(4)

    def traffic() -> Iterator[QuerySample]:
        for shift in (1.0, 0.0, 1.0, 1.0):
            yield from queries(random, 300, shift=shift)

    reports = windows(traffic())
    assert [bool(report.suspected) for report in reports] == [True, False, True, True]
    assert [bool(report.drifted) for report in reports] == [False, False, False, True]


def test_a_window_is_of_distinct_queries() -> None:
    """One user who reloads a page is no change of all users."""
    random = np.random.default_rng(5)
    same = next(queries(random, 1))
    assert windows(iter([same] * 5_000)) == []


def test_a_quiet_service_is_compared_by_the_clock() -> None:
    """After an hour 200 queries are enough; fewer wait on."""
    place = PlaceWindows("qdrant", "docs", BASELINE, 500, 3_600.0)
    found = [
        place.add(query, now=20.0 * number)
        for number, query in enumerate(queries(np.random.default_rng(6), 400))
    ]
    assert [number for number, report in enumerate(found) if report is not None] == [199, 399]


def test_another_way_of_searching_is_told() -> None:
    """Other k: the baseline has no such series, twice in a row."""
    random = np.random.default_rng(7)
    fewer = SERIES._replace(k=5)
    first, second = windows(queries(random, 600, series=fewer))
    assert (first.unknown, first.unknown_confirmed) == ([fewer], False)
    assert (second.unknown, second.unknown_confirmed) == ([fewer], True)
    (unknown_collection,) = windows(queries(random, 300, series=fewer), baseline=Baseline())
    assert unknown_collection.unknown == []


def test_a_metric_that_the_client_has_not_learned_yet_is_no_change() -> None:
    """A remote store's client knows it only after it looked at the collection; cosines read the same."""
    random = np.random.default_rng(10)
    unlearned = SERIES._replace(metric="")
    reports = windows(queries(random, 600, series=unlearned))
    assert [report.unknown for report in reports] == [[], []]
    assert all(report.tests for report in reports)
    euclid = SERIES._replace(metric="euclid")
    distances = Baseline({euclid: replace(REFERENCE, series=euclid)})
    (report,) = windows(queries(random, 300, series=unlearned), baseline=distances)
    assert report.unknown == []
    assert report.tests == [], "distances as they are do not compare with what was made of them"


def test_the_worst_queries_are_kept_as_examples() -> None:
    """Those that found nothing, then the lowest scores."""
    random = np.random.default_rng(8)
    (report,) = windows(queries(random, 300, empty=0.01))
    assert 0 < len(report.traces) <= 5


def test_false_alarms_are_rare() -> None:
    """Windows without a change, with forty references; `tests.faults.simulated` makes many more."""
    found = false_alarms(references=40, windows=5, size=300)
    assert found.suspicious <= 0.06, "by one of ten statistics"
    assert found.confirmed <= 0.01, "two in a row"
