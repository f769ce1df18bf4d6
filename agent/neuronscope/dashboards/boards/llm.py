"""Calls of models: latency, tokens, cost, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from neuronscope.dashboards.promql import equal, label_values, or_zero, share
from neuronscope.dashboards.sheet import SOURCE, Query, Sheet
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

_CALLS: Final = replace(
    SOURCE,
    matchers=(*SOURCE.matchers, 'gen_ai_provider_name=~"$provider"', 'gen_ai_request_model=~"$model"'),
)
_MODEL: Final = names.REQUEST_MODEL
_LEGEND: Final = "{{gen_ai_request_model}}"
_DURATION: Final = names.OPERATION_DURATION


def build(thresholds: Thresholds) -> str:
    """The dashboard as JSON."""
    sheet = Sheet(
        "llm", "Model calls", "Latency, tokens, cost and errors of calls of models.", thresholds.links
    )
    of_service = '{job=~"$service"}'
    sheet.variable("provider", "Provider", label_values(_DURATION, names.PROVIDER_NAME, where=of_service))
    sheet.variable("model", "Model", label_values(_DURATION, _MODEL, where=of_service))
    _summary(sheet, thresholds)
    _latency(sheet, thresholds)
    _tokens(sheet)
    _cost(sheet)
    _tenants(sheet)
    return sheet.build()


def _failed(*by: str) -> str:
    return share(_CALLS.rate(_DURATION, *by, where={names.ERROR_TYPE: '!=""'}), _CALLS.rate(_DURATION, *by))


def _spent(window: str, *by: str) -> str:
    """Dollars; nothing has been spent where all calls are free or have no price."""
    source = _CALLS.over(window)
    return or_zero(source.increase(names.COST_TOTAL, *by), source.increase(_DURATION, *by))


def _summary(sheet: Sheet, thresholds: Thresholds) -> None:
    sheet.row("Now")
    sheet.stat("Calls", "A second.", Query(_CALLS.rate(_DURATION)), "reqps")
    sheet.stat(
        "Failed",
        "Share of calls.",
        Query(_failed()),
        "percentunit",
        ((None, "green"), (thresholds.llm.error_share, "red")),
        decimals=2,
    )
    sheet.stat(
        "First chunk, p95",
        "Of streamed answers.",
        Query(_CALLS.quantile(0.95, names.FIRST_CHUNK)),
        "s",
        ((None, "green"), (thresholds.slo.first_chunk.seconds, "red")),
        decimals=2,
    )
    sheet.stat("Tokens", "A second, in and out.", Query(_CALLS.total(names.TOKEN_USAGE)), "none")
    sheet.stat(
        "Dollars, last hour", "Calls whose price is known.", Query(_spent("1h")), "currencyUSD", decimals=2
    )
    sheet.stat(
        "Dollars, last day",
        "Calls whose price is known.",
        Query(_spent("1d")),
        "currencyUSD",
        ((None, "green"), (thresholds.cost.usd_per_day, "red")),
        decimals=2,
    )


def _latency(sheet: Sheet, thresholds: Thresholds) -> None:
    sheet.row("Latency")
    sheet.lines(
        "First chunk",
        "Of streamed answers, by model. Points are exemplars.",
        [
            Query(
                _CALLS.quantile(q, names.FIRST_CHUNK, _MODEL), f"p{round(100 * q)}, {_LEGEND}", exemplars=True
            )
            for q in (0.5, 0.95)
        ],
        "s",
        limit=thresholds.slo.first_chunk.seconds,
    )
    sheet.lines(
        "Gaps between chunks",
        "By model.",
        [
            Query(_CALLS.quantile(q, names.PER_CHUNK, _MODEL), f"p{round(100 * q)}, {_LEGEND}")
            for q in (0.5, 0.95)
        ],
        "s",
    )
    sheet.lines(
        "Whole calls",
        "By model and operation. Points are exemplars.",
        [
            Query(
                _CALLS.quantile(q, _DURATION, _MODEL, names.OPERATION_NAME),
                f"p{round(100 * q)}, {_LEGEND} {{{{gen_ai_operation_name}}}}",
                exemplars=True,
            )
            for q in (0.5, 0.95)
        ],
        "s",
    )
    sheet.heat("All calls", "Calls a second, by duration.", Query(_CALLS.buckets(_DURATION)), "s")
    sheet.lines(
        "Calls",
        "By model and operation.",
        [
            Query(
                _CALLS.rate(_DURATION, _MODEL, names.OPERATION_NAME),
                f"{_LEGEND} {{{{gen_ai_operation_name}}}}",
            )
        ],
        "reqps",
        stacked=True,
    )
    sheet.lines(
        "Errors by type",
        "Calls that failed.",
        [
            Query(
                or_zero(
                    _CALLS.rate(
                        _DURATION, names.PROVIDER_NAME, names.ERROR_TYPE, where={names.ERROR_TYPE: '!=""'}
                    ),
                    _CALLS.rate(_DURATION),
                ),
                "{{gen_ai_provider_name}} {{error_type}}",
            )
        ],
        "reqps",
        stacked=True,
    )


def _tokens(sheet: Sheet) -> None:
    sheet.row("Tokens")
    sheet.lines(
        "Tokens",
        "A second, by type.",
        [Query(_CALLS.total(names.TOKEN_USAGE, names.TOKEN_TYPE), "{{gen_ai_token_type}}")],
        "none",
        width=8,
        stacked=True,
    )
    for kind in ("input", "output"):
        where = {names.TOKEN_TYPE: equal(kind)}
        sheet.lines(
            f"{kind.title()} tokens of a call",
            "By model.",
            [
                Query(
                    _CALLS.quantile(q, names.TOKEN_USAGE, _MODEL, where=where),
                    f"p{round(100 * q)}, {_LEGEND}",
                )
                for q in (0.5, 0.95)
            ],
            "none",
            width=8,
        )


def _cost(sheet: Sheet) -> None:
    sheet.row("Cost")
    sheet.lines(
        "Dollars an hour",
        "By model; calls whose price is known.",
        [
            Query(
                f"3600 * ({or_zero(_CALLS.rate(names.COST_TOTAL, _MODEL), _CALLS.rate(_DURATION, _MODEL))})",
                _LEGEND,
            )
        ],
        "currencyUSD",
        stacked=True,
    )
    sheet.table(
        "Dollars in the time shown",
        "By provider and model.",
        Query(_spent("$__range", names.PROVIDER_NAME, _MODEL)),
        "currencyUSD",
        {"gen_ai_provider_name": "Provider", "gen_ai_request_model": "Model", "Value": "US dollars"},
        width=6,
    )
    sheet.lines(
        "Calls without a known price",
        "Their cost is in none of these figures.",
        [Query(or_zero(_CALLS.rate(names.UNPRICED, _MODEL), _CALLS.rate(_DURATION, _MODEL)), _LEGEND)],
        "reqps",
        width=6,
    )


def _tenants(sheet: Sheet) -> None:
    sheet.row("Tenants: the most frequent, and all others together")
    legend = "{{neuronscope_tenant}}"
    sheet.lines(
        "Calls",
        "A second.",
        [Query(SOURCE.rate(names.TENANT_CALLS, names.TENANT), legend)],
        "reqps",
        width=8,
        stacked=True,
    )
    sheet.lines(
        "Tokens",
        "A second.",
        [Query(SOURCE.rate(names.TENANT_TOKENS, names.TENANT), legend)],
        "none",
        width=8,
        stacked=True,
    )
    sheet.lines(
        "Dollars an hour",
        "Of calls whose price is known.",
        [Query(f"3600 * {SOURCE.rate(names.TENANT_COST, names.TENANT)}", legend)],
        "currencyUSD",
        width=8,
        stacked=True,
    )
