"""How much slower or faster everything in the process got: what is not a provider's doing, nor a queue's.

A busy machine slows different work differently: what sleeps least, most; and it stretches the slow quarter
more than the middle.  So this is an interval, from the least to the most that any of the process's own work
changed, by its median and its upper quartile.  A provider is blamed only for what lies beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from neuronscope.diagnosis.comparing.case import Case, groups, ratio
from neuronscope.diagnosis.comparing.columns import Columns, Floats, finite

FEW: Final = 10
LEAST_S: Final = 1e-3  # added to all times: twice a tenth of a millisecond is no slower machine


@dataclass(frozen=True, slots=True)
class Pace:
    """Times as slow as before: from `least` to `most`; both 1 where nothing is known."""

    least: float = 1.0
    most: float = 1.0

    def beyond(self, before: float, after: float) -> float:
        """How many times as slow, or as fast, something got beyond the process: 1 or less for not at all."""
        if min(before, after) <= 0:
            return math.inf if before != after else 1.0
        return after / before / self.most if after > before else before / after * self.least

    def towards(self, before: float, after: float) -> float:
        """What the process did in the direction in which something else went: times as slow."""
        return self.most if after > before else self.least

    @property
    def told(self) -> bool:
        """Is it worth a word?"""
        return max(ratio(self.least, 1), ratio(self.most, 1)) > 1.2


def pace_of(case: Case) -> Pace:
    """Of models in the process, and of what the service does between its calls; else of its searches."""
    known: Pace | None = case.memo.get("pace")
    if known is None:
        ratios = list(_own(case)) or list(_searches(case))
        known = case.memo["pace"] = Pace(min([1.0, *ratios]), max([1.0, *ratios]))
    return known


def _own(case: Case) -> Iterator[float]:
    labels = ("operation", "model", "in_process", "route")
    for (_, _, in_process, _), before, after in groups(case, lambda side: side.calls, labels, FEW):
        if in_process:
            yield from _ratios(
                case.before.calls.number("duration")[before], case.after.calls.number("duration")[after]
            )
    for _, before, after in groups(case, lambda side: side.requests, ("route",), FEW):
        yield from _ratios(_between(case.before)[before], _between(case.after)[after])


def _between(side: Columns) -> Floats:
    """Seconds of each request between its calls and after them; before the first one it may be in a queue."""
    wait = side.requests.number("wait")
    return side.requests.number("own") - np.where(np.isfinite(wait), wait, 0.0)


def _searches(case: Case) -> Iterator[float]:
    for _, before, after in groups(case, lambda side: side.searches, ("store", "collection"), FEW):
        yield from _ratios(
            case.before.searches.number("duration")[before], case.after.searches.number("duration")[after]
        )


def _ratios(before: Floats, after: Floats) -> Iterator[float]:
    left, right = finite(before), finite(after)
    if min(left.size, right.size) >= FEW:
        for share in (0.5, 0.75):
            yield (float(np.quantile(right, share)) + LEAST_S) / (float(np.quantile(left, share)) + LEAST_S)
