"""Simulated queries, and how often the statistics of drift are wrong about them.

python -m tests.faults.simulated       # the tables of docs/explanation/retrieval-drift.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.drift import PlaceWindows
from neuronscope.diagnosis.samples import Collector, Queries, QuerySample, Series

SERIES = Series("qdrant", "docs", "cosine", 10)


def queries(
    random: np.random.Generator,
    n: int,
    *,
    shift: float = 0.0,
    turn: float = 0.0,
    empty: float = 0.0,
    filtered: float = 0.5,
    series: Series = SERIES,
) -> Iterator[QuerySample]:
    """Queries as a service has them: scores like a beta distribution, directions around a mean.

    Args:
        shift: of the scores, in their standard deviations.
        turn: how far the mean direction is turned.
        empty: share of queries that find nothing.
    """
    mean = 0.5 * np.cos(np.arange(64) * (1 + turn))
    for number in range(n):
        nothing = bool(random.random() < empty)
        top = float(random.beta(8, 3) + 0.12 * shift)
        bits = np.packbits(mean + random.normal(size=64) > 0)
        yield QuerySample(
            series=series,
            top_score=None if nothing else top,
            kth_score=None if nothing else 0.6 * top,
            margin=None if nothing else float(random.beta(2, 5)),
            norm=1.0,
            returned=0 if nothing else series.k,
            filtered=bool(random.random() < filtered),
            fingerprint=bits.tobytes().hex(),
            embedder=None,
            trace_id=number + 1,
        )


def sample_of(random: np.random.Generator, n: int, **changes: Any) -> Queries:
    collector = Collector()
    for query in queries(random, n, **changes):
        collector.add(query)
    return collector.queries()[SERIES]


@dataclass
class Rates:
    """Shares of windows.

    Attributes:
        suspicious: in which some statistic exceeds its threshold.
        confirmed: in which one does for the second time in a row.
        by_statistic: the first, one by one.
    """

    suspicious: float
    confirmed: float
    by_statistic: Counter[str] = field(default_factory=Counter[str])


def false_alarms(*, references: int, windows: int, size: int, m: int = 1_000, **change: Any) -> Rates:
    """Compare windows with references drawn from the same users, or with a change."""
    random = np.random.default_rng([references, windows, size, m])
    total = suspicious = confirmed = 0
    by_statistic: Counter[str] = Counter()
    for _ in range(references):
        baseline = Baseline({SERIES: sample_of(random, m)})
        place = PlaceWindows("qdrant", "docs", baseline, size, 3_600.0)
        for query in queries(random, 2 * windows * size, **change):  # a few are alike
            report = place.add(query, 0.0)
            if report is None:
                continue
            total += 1
            suspicious += bool(report.suspected)
            confirmed += bool(report.drifted)
            by_statistic.update({f"{test.statistic} of {test.feature}" for test in report.suspected})
            if total % windows == 0:
                break
    return Rates(suspicious / total, confirmed / total, by_statistic)


def main() -> None:
    """Print rates without a change, then how many windows confirm changes of several sizes."""
    print("without a change: size of the window, suspicious, confirmed, by statistic")
    for size in (200, 300, 500, 1_000):
        found = false_alarms(references=100, windows=10, size=size)
        print(f"{size:6} {found.suspicious:8.2%} {found.confirmed:8.2%}  {dict(found.by_statistic)}")
    print("with a change: what, size of the window, confirmed (of windows after the first)")
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("scores by 0.25 sd", {"shift": 0.25}),
        ("scores by 0.5 sd", {"shift": 0.5}),
        ("scores by 1 sd", {"shift": 1.0}),
        ("directions", {"turn": 0.01}),
        ("5 % more empty", {"empty": 0.05}),
        ("10 % more empty", {"empty": 0.10}),
    )
    for name, change in changes:
        for size in (200, 300, 500):
            found = false_alarms(references=20, windows=5, size=size, **change)
            print(f"{name:20} {size:6} {min(1.0, found.confirmed * 5 / 4):8.1%}")


if __name__ == "__main__":
    main()
