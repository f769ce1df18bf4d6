"""Service overview: what is promised, what is kept, and in which stage time goes."""

from __future__ import annotations

from typing import Final

from neuronscope.dashboards.promql import JOB, or_zero, share
from neuronscope.dashboards.sheet import COMMANDS, SOURCE, Query, Sheet, Steps
from neuronscope.dashboards.slo import BURNS, OBJECTIVE, Sli, errors, slis
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

_SERVICE: Final = 'job=~"$service"'
_AGENTS: Final = SOURCE.value(names.OVERHEAD_BUDGET)
_COMMANDS: Final = """
The recordings lie where `NEURONSCOPE_NSZ` says (variable `recordings`).

What changed, compared with the same time a day before:

```sh
neuronscope diff ${recordings} \\
  --before $((${__from:date:seconds} - 86400))..$((${__to:date:seconds} - 86400)) \\
  --after ${__from:date:seconds}..${__to:date:seconds}
```

The trace of an exemplar (its id is in the variable `Trace`):

```sh
neuronscope view ${recordings} --trace ${trace}
```
"""


def build(thresholds: Thresholds) -> str:
    """The dashboard as JSON."""
    sheet = Sheet(
        "service", "Service overview", "Objectives, traffic, and the stages of a request.", thresholds.links
    )
    sheet.text_variable("trace", "Trace")
    _objectives(sheet, thresholds)
    _traffic(sheet)
    _stages(sheet)
    sheet.row("From here to the recording")
    sheet.text("Commands", _COMMANDS, height=10, number=COMMANDS)
    return sheet.build()


def _objectives(sheet: Sheet, thresholds: Thresholds) -> None:
    found = slis(thresholds)
    sheet.row("Objectives")
    for sli in found:
        sheet.stat(
            sli.title,
            f"Share of good events of the last hour; the objective is {100 * sli.objective:.6g} %.",
            Query(f"1 - max({_recorded(errors('1h'), sli)})"),
            "percentunit",
            (((None, "red")), (sli.objective, "green")),
            decimals=2,
        )
    sheet.stat(
        "Services",
        "Services whose agent is heard of.",
        Query(f"count(count by ({JOB}) ({_AGENTS_BY_JOB}))"),
        "none",
        (((None, "red")), (1, "green")),
    )
    for sli in found:
        sheet.stat(
            f"Budget left: {_SHORT[sli.key]}",
            "Share of the error budget of the last 30 days that is not spent; of the worst service chosen.",
            Query(f"1 - max({_recorded(errors('30d'), sli)}) / {sli.budget!r}"),
            "percentunit",
            _BUDGET,
            decimals=0,
        )
    sheet.stat(
        "Firing alerts",
        "Of NeuronScope's rules.",
        Query('count(ALERTS{alertname=~"Neuronscope.+",alertstate="firing"}) or vector(0)'),
        "none",
        (((None, "green")), (1, "red")),
    )
    for burn in BURNS[:2]:
        sheet.lines(
            f"Burn rate, {burn.long}",
            f"How many times faster than it may the budget is spent. A page at {burn.rate:g}, if the last "
            f"{burn.short} agree.",
            [
                Query(
                    f"max by (slo) ({errors(burn.long)}{{{_SERVICE}}}) / on (slo) (1 - {OBJECTIVE})",
                    "{{slo}}",
                )
            ],
            "none",
            limit=burn.rate,
        )


_AGENTS_BY_JOB: Final = SOURCE.value(names.OVERHEAD_BUDGET, JOB)
_BUDGET: Final[Steps] = ((None, "red"), (0.1, "orange"), (0.5, "green"))
_SHORT: Final = {
    "availability": "availability",
    "first_chunk": "first chunk",
    "retrieval": "retrieval",
    "non_empty": "non-empty",
    "finite": "finite",
}


def _recorded(series: str, sli: Sli) -> str:
    return f'{series}{{{_SERVICE},slo="{sli.key}"}}'


def _traffic(sheet: Sheet) -> None:
    sheet.row("Traffic")
    duration = names.HTTP_DURATION
    sheet.lines(
        "Requests",
        "By route.",
        [Query(SOURCE.rate(duration, names.HTTP_ROUTE), "{{http_route}}")],
        "reqps",
        width=8,
        stacked=True,
    )
    server_errors = SOURCE.rate(
        duration, names.HTTP_RESPONSE_STATUS_CODE, names.ERROR_TYPE, where={names.ERROR_TYPE: '!=""'}
    )
    sheet.lines(
        "Errors by type",
        "Requests that ended with an error, by status and type.",
        [
            Query(
                or_zero(server_errors, SOURCE.rate(duration)), "{{http_response_status_code}} {{error_type}}"
            )
        ],
        "reqps",
        width=8,
        stacked=True,
    )
    sheet.lines(
        "Latency",
        "Of requests. Points are exemplars: each leads to its trace.",
        [
            Query(SOURCE.quantile(q, duration), f"p{round(100 * q)}", exemplars=True)
            for q in (0.5, 0.95, 0.99)
        ],
        "s",
        width=8,
    )
    sheet.heat(
        "Latency of all requests", "Requests a second, by duration.", Query(SOURCE.buckets(duration)), "s"
    )
    failed = SOURCE.rate(names.OPERATION_DURATION, where={names.ERROR_TYPE: '!=""'})
    sheet.lines(
        "Failed calls of models",
        "Share of calls, all providers.",
        [Query(share(failed, SOURCE.rate(names.OPERATION_DURATION)), "failed")],
        "percentunit",
    )


def _stages(sheet: Sheet) -> None:
    sheet.row("Stages of a request")
    stage = names.STAGE_DURATION
    for q in (0.5, 0.95):
        sheet.bars(
            f"Waterfall, p{round(100 * q)}",
            "Embed, search, rerank, queue, first chunk or prefill, decode; `generate` is the whole "
            "call of a model.",
            [Query(SOURCE.quantile(q, stage, "stage"), "{{stage}}")],
            "s",
            height=9,
        )
    sheet.lines(
        "Stages over time, p95",
        "Points are exemplars.",
        [Query(SOURCE.quantile(0.95, stage, "stage"), "{{stage}}", exemplars=True)],
        "s",
    )
    sheet.lines(
        "Stages a request",
        "How often a stage runs for each HTTP request: a loop shows here.",
        [
            Query(
                f"{SOURCE.rate(stage, 'stage')} / ignoring (stage) group_left () "
                f"({SOURCE.rate(names.HTTP_DURATION)} > 0)",
                "{{stage}}",
            )
        ],
        "none",
    )
