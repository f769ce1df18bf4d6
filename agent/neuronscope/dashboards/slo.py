"""Objectives as recording rules: for each service and objective the share of bad events, by window.

Source of windows and burn rates: Google, "The Site Reliability Workbook", ch. 5, multiwindow multi-burn-rate
alerts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuronscope.dashboards.promql import JOB, Source, equal, like, share
from neuronscope.dashboards.thresholds import Latency, Objective, Thresholds
from neuronscope.signals import names

OBJECTIVE: Final = "neuronscope:slo_objective:ratio"
SHORT: Final = ("5m", "30m", "1h", "6h")
LONG: Final = ("3d", "30d")
COUNTED: Final = ("1h", "6h", "3d")  # windows whose events are counted, for the guard of low traffic


@dataclass(frozen=True, slots=True)
class Burn:
    """One of the three alerts on an objective: both windows burn `rate` times as fast as may be."""

    severity: str
    long: str
    short: str
    rate: float
    hold: str


BURNS: Final = (
    Burn("page", "1h", "5m", 14.4, "2m"),
    Burn("page", "6h", "30m", 6, "15m"),
    Burn("ticket", "3d", "6h", 1, "1h"),
)


@dataclass(frozen=True, slots=True)
class Sli:
    """What an objective counts.

    Attributes:
        key: the objective's name in the thresholds file, and the label `slo`.
        title: for tiles.
        events: rate of all events, given a source.
        bad: rate of bad ones.
    """

    key: str
    title: str
    objective: float
    events: Callable[[Source], str]
    bad: Callable[[Source], str]

    @property
    def budget(self) -> float:
        """The share of events that may be bad."""
        return round(1 - self.objective, 12)

    def enough(self, burn: Burn, floor: int) -> int:
        """Events in the long window from which on one bad event alone cannot fire, nor two do so narrowly."""
        return max(floor, math.ceil(2 / (burn.rate * self.budget)))


def slis(thresholds: Thresholds) -> tuple[Sli, ...]:
    """The five objectives."""
    slo = thresholds.slo

    def sli(
        key: str,
        title: str,
        objective: Objective,
        events: Callable[[Source], str],
        bad: Callable[[Source], str],
    ) -> Sli:
        return Sli(key, title, objective.objective, events, bad)

    def slow(stage: str, latency: Latency) -> tuple[Callable[[Source], str], Callable[[Source], str]]:
        where = {"stage": equal(stage)}
        good = {**where, names.ERROR_TYPE: equal("")}

        def events(source: Source) -> str:
            return source.rate(names.STAGE_DURATION, where=where)

        def bad(source: Source) -> str:
            return f"{events(source)} - {source.within(names.STAGE_DURATION, latency.seconds, where=good)}"

        # Where no event was good, there is no series of good ones.
        return events, lambda source: f"{bad(source)} or {events(source)}"

    first, search = slow("first_chunk", slo.first_chunk), slow("search", slo.retrieval)
    return (
        sli(
            "availability",
            "Requests without a server error",
            slo.availability,
            lambda source: source.rate(names.HTTP_DURATION),
            lambda source: source.rate(
                names.HTTP_DURATION, where={names.HTTP_RESPONSE_STATUS_CODE: like("5..")}
            ),
        ),
        sli("first_chunk", f"First chunk within {slo.first_chunk.seconds:g} s", slo.first_chunk, *first),
        sli("retrieval", f"Retrieval within {slo.retrieval.seconds:g} s", slo.retrieval, *search),
        sli(
            "non_empty",
            "Retrieval that finds something",
            slo.non_empty,
            lambda source: source.rate(names.RETRIEVALS),
            lambda source: source.rate(names.RETRIEVALS_EMPTY),
        ),
        sli(
            "finite",
            "Model calls without NaN or Inf",
            slo.finite,
            lambda source: source.rate(names.MODEL_CALLS),
            lambda source: source.rate(names.MODEL_CALLS, where={"outcome": equal("non_finite")}),
        ),
    )


def errors(window: str) -> str:
    """The recorded share of bad events."""
    return f"neuronscope:slo_errors:ratio_rate{window}"


def events(window: str) -> str:
    """The recorded number of events."""
    return f"neuronscope:slo_events:increase{window}"


def groups(thresholds: Thresholds) -> list[Mapping[str, Any]]:
    """The groups of recording rules."""
    found = slis(thresholds)
    source = Source(keep=(JOB,))
    quick = [_rule(OBJECTIVE, f"vector({sli.objective!r})", sli) for sli in found]
    quick += [
        _rule(errors(window), _share(sli, source.over(window)), sli) for sli in found for window in SHORT
    ]
    quick += [_rule(events("1h"), _count(sli, source, "1h"), sli) for sli in found]
    slow = [
        _rule(events(window), _count(sli, source, window), sli) for sli in found for window in COUNTED[1:]
    ]
    slow += [_rule(errors(window), _share(sli, source.over(window)), sli) for sli in found for window in LONG]
    return [
        {"name": "neuronscope-slo", "interval": "30s", "rules": quick},
        # Days of samples are read for these: now and then is enough.
        {"name": "neuronscope-slo-long", "interval": "5m", "rules": slow},
    ]


def _share(sli: Sli, source: Source) -> str:
    return share(f"({sli.bad(source)})", sli.events(source))


def _count(sli: Sli, source: Source, window: str) -> str:
    return f"{sli.events(source.over(window))} * {_SECONDS[window]}"


_SECONDS: Final = {"1h": 3_600, "6h": 21_600, "3d": 259_200}


def _rule(record: str, expr: str, sli: Sli) -> Mapping[str, Any]:
    return {"record": record, "expr": expr, "labels": {"slo": sli.key}}
