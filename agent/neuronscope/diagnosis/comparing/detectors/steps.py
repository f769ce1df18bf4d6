"""The detector of what requests do: whether they search, embed or ask a model, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from neuronscope.diagnosis.comparing.case import TESTED, Case, cause, groups, one_minus, ratio
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask
from neuronscope.diagnosis.comparing.detectors.calling import WRITERS
from neuronscope.diagnosis.comparing.result import Cause
from neuronscope.diagnosis.kinds import Kind

SHARE: Final = 0.15  # of a route's requests
TIMES: Final = 1.5  # calls a request, mean
DISTANCE: Final = 0.25
_WORDS: Final = {"search": "search", "embed": "embed something", "write": "ask a model"}


def calls_changed(case: Case) -> Iterator[Cause]:
    """Requests of a route that search, embed or ask a model, and did not; or do it more, or less, often."""
    made = [_made(side) for side in case.sides]
    for (route,), before, after in groups(case, lambda side: side.requests, ("route",), 10):
        for what, verb in _WORDS.items():
            counts = [
                np.array([each[what, trace] for trace in side.requests.rows(mask, "trace")], np.float64)
                for each, side, mask in zip(made, case.sides, (before, after), strict=True)
            ]
            if any(each.any() for each in counts):
                yield from _changed(case, route, verb, (counts[0], counts[1]), (before, after))


def _changed(
    case: Case, route: str, verb: str, counts: tuple[Floats, Floats], masks: tuple[Mask, Mask]
) -> Iterator[Cause]:
    some = counts[0] > 0, counts[1] > 0
    share = case.share_of(f"requests to {route} that {verb}", *some)
    if share is None:
        return
    odd = share.effect >= SHARE
    fewer = float(share.after or 0) < float(share.before or 0)
    # Examples of what changed: with the call where it was usual, without it where it is no more.
    with_call, without = (0, 1) if fewer else (1, 0)
    traces = [side.requests.rows(mask, "trace") for side, mask in zip(case.sides, masks, strict=True)]
    shown = list(traces)
    if odd:
        shown[with_call] = _where(traces[with_call], some[with_call])
        shown[without] = _where(traces[without], ~some[without])
        yield cause(
            Kind.CALLS_CHANGED,
            route,
            f"{share.after:.0%} of the requests to {route} {verb}; it was {share.before:.0%}.",
            [share],
            TESTED,
            (shown[0], shown[1]),
        )
        return
    if not (some[0].any() and some[1].any()):
        return
    each = counts[0][some[0]], counts[1][some[1]]
    means = float(each[0].mean()), float(each[1].mean())
    test = case.shift(f"times that a request to {route} does {verb}", *each)
    if test is not None and test.effect >= DISTANCE and ratio(*means) >= TIMES:
        yield cause(
            Kind.CALLS_CHANGED,
            route,
            f"Requests to {route} that {verb} do so {means[1]:.3g} times on average; it was {means[0]:.3g}.",
            [test],
            TESTED,
            (_where(traces[0], some[0]), _where(traces[1], some[1])),
            effect=one_minus(ratio(*means)),
        )


def _made(side: Columns) -> Counter[tuple[str, str]]:
    """How often each trace made each kind of call."""
    found = Counter(("search", trace) for trace in side.searches.labels("trace"))
    for trace, operation in zip(side.calls.labels("trace"), side.calls.labels("operation"), strict=True):
        if operation in WRITERS:
            found["write", trace] += 1
        elif operation == "embeddings":
            found["embed", trace] += 1
    return found


def _where(traces: list[str], mask: Mask) -> list[str]:
    return [traces[row] for row in np.flatnonzero(mask)]


DETECTORS = (calls_changed,)
