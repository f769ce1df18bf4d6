"""Calls of models: errors and cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neuronscope.dashboards.alerts.alert import DAY, HOUR, SERVICE, Alert, label, percent
from neuronscope.dashboards.promql import JOB, Source, equal, ratio, share
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

_SOURCE: Final = Source(keep=(JOB,))


def alerts(thresholds: Thresholds) -> Iterator[Alert]:
    """All of them."""
    yield _errors(thresholds)
    yield from _cost(thresholds)


def _errors(thresholds: Thresholds) -> Alert:
    ten = _SOURCE.over("10m")
    by = names.PROVIDER_NAME
    calls = ten.rate(names.OPERATION_DURATION, by)
    failed = ten.rate(names.OPERATION_DURATION, by, where={names.ERROR_TYPE: '!=""'})
    return Alert(
        name="NeuronscopeLlmErrors",
        severity="ticket",
        expr=(
            f"{share(failed, calls)} > {thresholds.llm.error_share:g}\n"
            f"and {ten.increase(names.OPERATION_DURATION, by)} > {thresholds.low_traffic.events}"
        ),
        hold="10m",
        summary=f"{SERVICE}: {percent()} of calls to {label(by)} fail.",
        checks=(
            "Which error: errors by type on the LLM dashboard. RateLimitError and timeouts are the "
            "provider's.",
            "One model or all of the provider's; its status page.",
            "A new key, model name or SDK version? The diff command compares with the same hour yesterday.",
        ),
        board="llm",
        variables={names.PROVIDER_NAME: "provider"},
    )


def _cost(thresholds: Thresholds) -> Iterator[Alert]:
    limits = thresholds.cost
    day, hour = _SOURCE.over("1d"), _SOURCE.over("1h")
    checks = (
        "Which model: dollars by model on the LLM dashboard, and tokens by type beside it.",
        "More calls, longer prompts or fewer cache hits? Each has its panel; the diff command says which.",
        "A loop: one route or agent that calls again and again? Requests by route, calls per request.",
    )
    yield Alert(
        name="NeuronscopeCostHigh",
        severity="ticket",
        expr=f"{day.increase(names.COST_TOTAL)} > {limits.usd_per_day:g}",
        hold="15m",
        summary=(
            f"{SERVICE}: $ {{{{ $value | humanize }}}} within a day; the limit is $ {limits.usd_per_day:g}."
        ),
        checks=checks,
        board="llm",
        span_s=DAY,
    )
    spent = hour.increase(names.COST_TOTAL)
    usual = f"{day.increase(names.COST_TOTAL, offset='1h')} / 24"
    yield Alert(
        name="NeuronscopeCostSpike",
        severity="page",
        expr=(
            f"{spent} > {limits.spike:g} * {usual}\n"
            f"and {spent} > {limits.spike_floor_usd:g}\n"
            # Without a day of history, the mean hour of it is too small.
            f"and on ({JOB}) {_SOURCE.sum_at(names.COST_TOTAL, '1d')}"
        ),
        hold="5m",
        summary=(
            f"{SERVICE}: $ {{{{ $value | humanize }}}} within an hour, more than {limits.spike:g} "
            "times the mean hour "
            "of the day before."
        ),
        checks=checks,
        board="llm",
    )
    calls = hour.increase(names.TOKEN_USAGE, names.REQUEST_MODEL, where={names.TOKEN_TYPE: equal("input")})
    unpriced = hour.appeared(names.UNPRICED, names.REQUEST_MODEL)
    yield Alert(
        name="NeuronscopeUnpriced",
        severity="ticket",
        expr=f"{ratio(unpriced, calls)} > {limits.unpriced_share:g}",
        hold="1h",
        summary=(
            f"{SERVICE}: {percent()} of calls of {label(names.REQUEST_MODEL)} have no known price: "
            "cost is too low."
        ),
        checks=(
            "What would it be billed by: `neuronscope prices MODEL --provider PROVIDER`.",
            "Put the model's price into a table of your own and name it by NEURONSCOPE_PRICES.",
            "A self-hosted model costs no tokens: give it a price of 0, so that this is no alert.",
        ),
        board="llm",
        span_s=6 * HOUR,
    )
