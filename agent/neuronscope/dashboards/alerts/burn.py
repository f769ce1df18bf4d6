"""Objectives: error budgets that burn too fast, and objectives that nothing is measured of any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from neuronscope.dashboards.alerts.alert import DAY, HOUR, SERVICE, Alert, Board, percent
from neuronscope.dashboards.promql import JOB, Source
from neuronscope.dashboards.slo import BURNS, Burn, Sli, errors, events, slis
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

_SPANS: Final = {"1h": HOUR, "6h": 6 * HOUR, "3d": 3 * DAY}


@dataclass(frozen=True, slots=True)
class _About:
    """What the alert on an objective says."""

    name: str
    what: str
    checks: tuple[str, str, str]
    board: Board


_ABOUT: Final[Mapping[str, _About]] = {
    "availability": _About(
        "NeuronscopeAvailabilityBurn",
        "of requests end with a server error",
        (
            "Which route and error type: the panel “Errors by type” of the service dashboard.",
            "Is it the model provider? Failed calls by provider on the LLM dashboard; its status page.",
            "What changed: run the diff command below; look for a deployment at the time the errors began.",
        ),
        "service",
    ),
    "first_chunk": _About(
        "NeuronscopeFirstChunkBurn",
        "of streamed answers begin too late",
        (
            "Which stage grew: the stage waterfall of the service dashboard (search, queue, first chunk).",
            "Longer prompts or fewer cache hits? Input tokens and cached tokens on the LLM dashboard.",
            "One model or all: first chunk by model on the LLM dashboard; the provider's status page.",
        ),
        "llm",
    ),
    "retrieval": _About(
        "NeuronscopeRetrievalLatencyBurn",
        "of vector searches fail or take too long",
        (
            "Slow or failing: errors by type beside the latency of the search stage.",
            "One collection or all; is something written at the same time (points written)?",
            "The store itself: its CPU, memory, segments being optimised, and the network to it.",
        ),
        "retrieval",
    ),
    "non_empty": _About(
        "NeuronscopeEmptyRetrievalBurn",
        "of vector searches find nothing",
        (
            "Which collection: empty rate by collection on the retrieval dashboard.",
            "Do canaries find their hits? If so it is a filter, a namespace or a threshold on scores.",
            "Has the collection fewer points, or has a filter's field been renamed? `neuronscope diff` says.",
        ),
        "retrieval",
    ),
    "finite": _About(
        "NeuronscopeFiniteOutputsBurn",
        "of model calls have NaN or Inf in a layer",
        (
            "Which model, and the first layer: `neuronscope view RECORDINGS --last 5`, non-finite counts.",
            "Since when: a new driver, dtype, kernel, quantisation or set of weights?",
            "Do the same inputs repeat it: certain texts, or only in batches?",
        ),
        "model",
    ),
}


def alerts(thresholds: Thresholds) -> Iterator[Alert]:
    """Three for each objective, and one for all that have gone quiet."""
    for sli in slis(thresholds):
        for burn in BURNS:
            yield _burn(sli, burn, thresholds.low_traffic.events)
    yield _silent(thresholds.low_traffic.events)


def _burn(sli: Sli, burn: Burn, floor: int) -> Alert:
    about = _ABOUT[sli.key]
    # With a modest objective 14.4 times the budget is more than everything.
    most = min(round(burn.rate * sli.budget, 12), 0.95)
    chosen = f'{{slo="{sli.key}"}}'
    return Alert(
        name=about.name,
        severity="page" if burn.severity == "page" else "ticket",
        expr=(
            f"{errors(burn.long)}{chosen} > {most:g}\n"
            f"and {errors(burn.short)}{chosen} > {most:g}\n"
            f"and {events(burn.long)}{chosen} > {sli.enough(burn, floor)}"
        ),
        hold=burn.hold,
        summary=(
            f"{SERVICE}: {percent()} {about.what} (last {burn.long}; the objective allows "
            f"{100 * sli.budget:.4g} %), {burn.rate:g} times what its budget lasts for."
        ),
        checks=about.checks,
        board=about.board,
        span_s=_SPANS[burn.long],
        labels={"window": burn.long},
    )


def _silent(floor: int) -> Alert:
    """The twin of them all: nothing is measured, so nothing can be bad."""
    there = Source(keep=(JOB,)).value(names.OVERHEAD_BUDGET)
    return Alert(
        name="NeuronscopeObjectiveSilent",
        severity="ticket",
        expr=(
            f"(avg_over_time({events('1h')}[1d] offset 1h) > {floor}\n"
            f"unless {events('1h')} > 0)\n"
            f"and on ({JOB}) {there}"
        ),
        hold="30m",
        summary=(
            f"{SERVICE}: nothing has been measured for the objective {{{{ $labels.slo }}}} for an "
            "hour; before, it "
            "was {{ $value | humanize }} events an hour. Silence is not health."
        ),
        checks=(
            "Is there traffic at all: the request rate of the service dashboard.",
            "Are all libraries still observed: `neuronscope doctor` in the service's environment.",
            "Was an SDK upgraded, or an adapter switched off (NEURONSCOPE_DISABLE)?",
        ),
        board="service",
        span_s=6 * HOUR,
    )
