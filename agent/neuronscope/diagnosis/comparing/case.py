"""Two sides put beside each other: the tests that detectors make, all counted.

Every statistical test goes through a `Case`, whether it finds something or not: what is believed in the end
is decided over all of them together (Benjamini and Hochberg, false discovery rate 0.01), and only beyond a
floor of effect, since large samples find every difference.  Plain facts, a model's name, are no tests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from neuronscope.diagnosis import statistics as st
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask, Table, finite
from neuronscope.diagnosis.comparing.pairs import Pairs
from neuronscope.diagnosis.comparing.result import Cause, Evidence, Plot, Power, Shape
from neuronscope.diagnosis.kinds import Kind

RATE: Final = 0.01  # false discoveries among what is believed
FEW: Final = 20  # values below which a side says nothing about a distribution
MAX_TRACES: Final = 5
MAX_VALUES: Final = 5_000
MAX_GROUPS: Final = 32
_BINS: Final = 24
CLEAR: Final = 0.95  # of a distance of two mixtures: no test is needed
Group: TypeAlias = tuple[Any, Mask, Mask]  # labels, rows before, rows after
FACT, PAIRED, TESTED, POSSIBLE = 0.99, 0.97, 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Mixed:
    """How often each label was on the two sides.

    Attributes:
        before, after: shares.
    """

    before: dict[Any, float]
    after: dict[Any, float]
    n_before: int
    n_after: int
    p: float

    @property
    def distance(self) -> float:
        """Of the two distributions, 0 to 1."""
        labels = {*self.before, *self.after}
        return sum(abs(self.before.get(label, 0.0) - self.after.get(label, 0.0)) for label in labels) / 2

    @property
    def usual(self) -> tuple[Any, Any]:
        """The most frequent label before, and after."""
        return max(self.before, key=self.before.__getitem__), max(self.after, key=self.after.__getitem__)

    @property
    def switched(self) -> bool:
        """Is one side's usual label hardly ever the other's?"""
        first, second = self.usual
        return first != second and self.after.get(first, 0.0) < 0.5 * self.before[first]


@dataclass
class Case:
    """Both sides, what is paired, and the tests made so far.  For one thread.

    Attributes:
        grouped, memo: what several detectors ask for.
    """

    before: Columns
    after: Columns
    pairs: Pairs
    p_values: list[float] = field(default_factory=list[float])
    power: dict[str, Power] = field(default_factory=dict[str, Power])
    grouped: dict[tuple[Any, ...], list[Group]] = field(default_factory=dict[tuple[Any, ...], "list[Group]"])

    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def sides(self) -> tuple[Columns, Columns]:
        """Both."""
        return self.before, self.after

    # --- tests ---------------------------------------------------------------------------------------
    def shift(
        self, what: str, before: Floats, after: Floats, unit: str = "", *, plot: bool = True
    ) -> Evidence | None:
        """Are two samples of one number alike?  By Kolmogorov and Smirnov; None where too few are known."""
        left, right = _some(finite(before)), _some(finite(after))
        m, n = left.size, right.size
        self._note_power(what, "ks", m, n)
        if min(m, n) < FEW:
            return None
        distance = st.ks(left, right)
        p = st.ks_p_value(distance, m, n)
        self.p_values.append(p)
        return Evidence(
            what,
            float(np.median(left)),
            float(np.median(right)),
            distance,
            "ks",
            unit,
            m,
            n,
            p,
            histogram(what, left, right, unit) if plot and distance > 0.05 else None,
        )

    def share(self, what: str, bad: tuple[int, int], of: tuple[int, int]) -> Evidence | None:
        """Are two shares alike?  None where a side is empty."""
        m, n = of
        self._note_power(what, "share", m, n)
        if min(m, n) < 5:
            return None
        some = min(max(bad[0], 0), m), min(max(bad[1], 0), n)  # a stranger's numbers need not agree
        p = st.share_p_value(some[1], n, some[0], m)
        self.p_values.append(p)
        before, after = float(some[0] / m), float(some[1] / n)
        bars = Plot(Shape.BARS, what, (before,), (after,), labels=("share",), unit="1")
        return Evidence(what, before, after, abs(after - before), "share", "1", m, n, p, bars)

    def pairs_that(self, what: str, n: int, differ: int, expected: float) -> Evidence | None:
        """Do more of `n` pairs differ than so many that do so by themselves?"""
        self._note_power(what, "share", n, n)
        if n < 5:
            return None
        p = st.binomial_p_value(differ, n, expected / n)
        self.p_values.append(p)
        before, after = expected / n, differ / n
        bars = Plot(Shape.BARS, what, (before,), (after,), labels=("share",), unit="1")
        return Evidence(what, before, after, abs(after - before), "pairs", "1", n, n, p, bars)

    def share_of(self, what: str, before: Mask, after: Mask) -> Evidence | None:
        """The same for two columns of yes and no."""
        return self.share(what, (int(before.sum()), int(after.sum())), (int(before.size), int(after.size)))

    def mix(self, what: str, before: Iterable[Hashable], after: Iterable[Hashable]) -> Mixed | None:
        """Are labels as frequent on both sides?  None where a side has none."""
        counts = Counter(before), Counter(after)
        m, n = counts[0].total(), counts[1].total()
        self._note_power(what, "share", m, n)
        if not m or not n:
            return None
        labels = {*counts[0], *counts[1]}
        if len(labels) < 2:
            p = 1.0
        else:
            moved = sorted(labels, key=lambda label: -abs(counts[1][label] / n - counts[0][label] / m))[:3]
            least = min(st.share_p_value(counts[1][label], n, counts[0][label], m) for label in moved)
            p = min(1.0, least * len(labels))  # Bonferroni's, within one test
        self.p_values.append(p)
        return Mixed(
            {label: count / m for label, count in counts[0].items()},
            {label: count / n for label, count in counts[1].items()},
            m,
            n,
            p,
        )

    def _note_power(self, what: str, statistic: str, m: int, n: int) -> None:
        if min(m, n) < FEW or what in self.power:
            return
        # Nine of ten, at the p that the rate leaves to a single finding among some fifty tests.
        if statistic == "ks":
            size = st.ks_critical(m, n, 2e-4) + 0.64 * math.sqrt((m + n) / (m * n))
        else:
            size = (3.72 + 1.28) * math.sqrt(0.25 * (m + n) / (m * n))
        self.power[what] = Power(what, min(1.0, size), statistic, m, n)

    def believed(self, evidence: Evidence, accepted: float) -> bool:
        """Is this a fact, or a test that all tests together allow to believe?"""
        return evidence.p is None or evidence.p <= accepted

    def accepted(self) -> float:
        """The largest p that is believed: Benjamini and Hochberg's."""
        ordered = sorted(self.p_values)
        allowed = [p for rank, p in enumerate(ordered, 1) if p <= RATE * rank / len(ordered)]
        return max(allowed, default=0.0)


# --- small helpers of detectors ----------------------------------------------------------------------------
def fact(what: str, mixed: Mixed, text: Callable[[Any], str] = str) -> Evidence:
    """The usual label of each side, as evidence that needs no test once it is clear-cut."""
    first, second = mixed.usual
    labels = sorted({*mixed.before, *mixed.after}, key=lambda label: -mixed.before.get(label, 0.0))[:8]
    plot = Plot(
        Shape.BARS,
        what,
        tuple(mixed.before.get(label, 0.0) for label in labels),
        tuple(mixed.after.get(label, 0.0) for label in labels),
        labels=tuple(text(label)[:60] for label in labels),
        unit="1",
    )
    clear = mixed.distance > CLEAR
    return Evidence(
        what,
        text(first) or None,
        text(second) or None,
        mixed.distance,
        "fact" if clear else "share",
        "",
        mixed.n_before,
        mixed.n_after,
        None if clear and min(mixed.n_before, mixed.n_after) >= 3 else mixed.p,
        plot,
    )


def cause(
    kind: Kind,
    subject: str,
    summary: str,
    evidence: Sequence[Evidence | None],
    confidence: float,
    traces: tuple[Iterable[str], Iterable[str]] = ((), ()),
    effect: float | None = None,
) -> Cause:
    """A cause; the first evidence decides whether it is believed."""
    told = tuple(item for item in evidence if item is not None)
    if told[0].statistic in {"fact", "share"} and told[0].effect > CLEAR:
        confidence = max(confidence, FACT)  # all of one kind before and of another after
    return Cause(
        kind,
        subject,
        summary,
        told[0].effect if effect is None else effect,
        confidence,
        told,
        examples(traces[0]),
        examples(traces[1]),
    )


def examples(traces: Iterable[str]) -> tuple[str, ...]:
    """A few different traces."""
    found: dict[str, None] = {}
    for trace in traces:
        if trace:
            found[trace] = None
        if len(found) >= MAX_TRACES:
            break
    return tuple(found)


def groups(
    case: Case, table: Callable[[Columns], Table], labels: Sequence[str], least: int = 3
) -> list[Group]:
    """Rows that have the same labels on both sides, at least so many, the largest groups first."""
    name = (id(table(case.before)), *labels)
    found = case.grouped.get(name)
    if found is None:
        rows = [_rows_by(table(side), labels) for side in case.sides]
        both = sorted(
            {*rows[0]} & {*rows[1]}, key=lambda key: (-min(len(rows[0][key]), len(rows[1][key])), str(key))
        )
        sizes = [len(table(side)) for side in case.sides]
        found = case.grouped[name] = [
            (key, _mask(rows[0][key], sizes[0]), _mask(rows[1][key], sizes[1])) for key in both[:MAX_GROUPS]
        ]
    return [group for group in found if min(group[1].sum(), group[2].sum()) >= least]


def _rows_by(table: Table, labels: Sequence[str]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for row, key in enumerate(zip(*(table.labels(name) for name in labels), strict=True)):
        found.setdefault(key, []).append(row)
    return found


def _mask(rows: list[int], size: int) -> Mask:
    mask = np.zeros(size, np.bool_)
    mask[rows] = True
    return mask


def histogram(title: str, before: Floats, after: Floats, unit: str) -> Plot:
    """Two samples in bins that hold both but for a thousandth at each end."""
    together = np.concatenate((before, after))
    low, high = np.quantile(together, (0.001, 0.999))
    if not high > low:
        low, high = low - 0.5, low + 0.5
    edges: Floats = np.asarray(np.linspace(low, high, _BINS + 1), np.float64)
    heights: list[tuple[float, ...]] = []
    for values in (before, after):
        counts: Floats = np.asarray(np.histogram(np.clip(values, low, high), edges)[0], np.float64)
        heights.append(tuple((counts / values.size).round(5).tolist()))
    return Plot(Shape.HISTOGRAM, title, heights[0], heights[1], tuple(edges.tolist()), unit=unit)


def _some(values: Floats) -> Floats:
    """Sorted, and no more than make thresholds sharper."""
    if values.size > MAX_VALUES:
        values = values[:: math.ceil(values.size / MAX_VALUES)]
    return np.sort(values)


def ratio(before: float, after: float) -> float:
    """How many times as large the larger is."""
    low, high = sorted((abs(before), abs(after)))
    return high / low if low > 0 else math.inf if high > 0 else 1.0


def one_minus(value: float) -> float:
    """For effects that are ratios: 0 for equal, towards 1 for large ones."""
    return 1.0 - 1.0 / value if value > 0 else 1.0
