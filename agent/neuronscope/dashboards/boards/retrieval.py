"""Retrieval quality: scores, what is missing, drift, canaries, embedders."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from neuronscope.dashboards.promql import label_values, or_zero, share
from neuronscope.dashboards.sheet import SOURCE, Query, Sheet
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

# All series of retrieval have a collection; canaries and embedders have none.
_FOUND: Final = replace(SOURCE, matchers=(*SOURCE.matchers, 'db_collection_name=~"$collection"'))
_BY: Final = names.DB_COLLECTION
_LEGEND: Final = "{{db_collection_name}}"


def build(thresholds: Thresholds) -> str:
    """The dashboard as JSON."""
    sheet = Sheet(
        "retrieval",
        "Retrieval quality",
        "Is what is found as good as it was, and if not, why.",
        thresholds.links,
    )
    sheet.variable("collection", "Collection", label_values(names.RETRIEVALS, _BY, where='{job=~"$service"}'))
    sheet.variable(
        "canary", "Canaries", label_values(names.CANARY_OVERLAP, "canary", where='{job=~"$service"}')
    )
    _summary(sheet, thresholds)
    _scores(sheet)
    _drift(sheet)
    _canaries(sheet, thresholds)
    _embedders(sheet, thresholds)
    return sheet.build()


def _empty() -> str:
    return share(_FOUND.rate(names.RETRIEVALS_EMPTY), _FOUND.rate(names.RETRIEVALS))


def _summary(sheet: Sheet, thresholds: Thresholds) -> None:
    limits = thresholds.retrieval
    sheet.row("Now")
    sheet.stat("Queries", "Searches a second.", Query(_FOUND.rate(names.RETRIEVALS)), "reqps")
    sheet.stat(
        "Empty",
        "Share of searches that found nothing.",
        Query(_empty()),
        "percentunit",
        ((None, "green"), (1 - thresholds.slo.non_empty.objective, "red")),
        decimals=2,
    )
    sheet.stat(
        "Returned of asked", "Mean of hits over k.", Query(_FOUND.mean(names.RETURNED_SHARE)), "percentunit"
    )
    sheet.stat(
        "Findings",
        "What the agent says has changed, and still lasts.",
        Query(f"sum({_FOUND.value(names.DRIFT_ACTIVE, _BY, 'kind')}) or {_none()}"),
        "none",
        ((None, "green"), (1, "red")),
    )
    sheet.stat(
        "Canary overlap",
        "Of the worst canaries: hits found again.",
        Query(SOURCE.value(names.CANARY_OVERLAP, how="min")),
        "percentunit",
        ((None, "red"), (limits.canary_overlap, "green")),
    )
    sheet.stat(
        "Embedder",
        "Least cosine of probe texts' vectors with stored ones.",
        Query(SOURCE.value(names.EMBEDDER_COSINE, how="min")),
        "none",
        ((None, "red"), (limits.embedder_cosine, "green")),
        decimals=4,
    )


def _none() -> str:
    """Zero, for a service that has an agent."""
    return f"{SOURCE.value(names.OVERHEAD_BUDGET)} * 0"


def _scores(sheet: Sheet) -> None:
    sheet.row("Scores")
    sheet.heat(
        "Best scores",
        "Searches a second by their best score; more is better.",
        Query(_FOUND.buckets(names.TOP_SCORE)),
        "none",
    )
    sheet.lines(
        "Best and k-th score",
        "Medians; points are exemplars.",
        [
            Query(_FOUND.quantile(0.5, names.TOP_SCORE, _BY), f"best, {_LEGEND}", exemplars=True),
            Query(_FOUND.quantile(0.5, names.KTH_SCORE, _BY), f"k-th, {_LEGEND}"),
        ],
        "none",
        bottom=None,
    )
    sheet.lines(
        "Relative margin",
        "(best - k-th) / best: small when everything is equally far.",
        [Query(_FOUND.quantile(q, names.MARGIN, _BY), f"p{round(100 * q)}, {_LEGEND}") for q in (0.1, 0.5)],
        "none",
    )
    sheet.lines(
        "Empty",
        "Share of searches without any hit.",
        [Query(share(_FOUND.rate(names.RETRIEVALS_EMPTY, _BY), _FOUND.rate(names.RETRIEVALS, _BY)), _LEGEND)],
        "percentunit",
    )
    sheet.lines(
        "Returned of asked",
        "Mean of hits over k.",
        [Query(_FOUND.mean(names.RETURNED_SHARE, _BY), _LEGEND)],
        "percentunit",
        top=1,
    )
    sheet.lines(
        "Norm of query vectors",
        "Median. A jump is another embedder, or a missing normalisation.",
        [Query(_FOUND.quantile(0.5, names.QUERY_NORM_METRIC, _BY), _LEGEND)],
        "none",
    )
    sheet.lines(
        "Latency",
        "Of the store's calls, p95, by method.",
        [
            Query(
                _FOUND.quantile(0.95, names.DB_DURATION, _BY, names.DB_OPERATION),
                f"{_LEGEND} {{{{db_operation_name}}}}",
                exemplars=True,
            )
        ],
        "s",
    )
    sheet.lines(
        "Points written",
        "Or removed; by calls that tell.",
        [
            Query(
                _FOUND.rate(names.POINTS_WRITTEN, _BY, names.DB_OPERATION),
                f"{_LEGEND} {{{{db_operation_name}}}}",
            )
        ],
        "wps",
    )


def _drift(sheet: Sheet) -> None:
    sheet.row("Drift against the baseline")
    by = (_BY, "feature", "statistic")
    sheet.lines(
        "Statistics over their thresholds",
        "Above 1 a window differs more than chance allows; two in a row are a finding.",
        [
            Query(
                f"{_FOUND.value(names.DRIFT_STATISTIC, *by)} / "
                f"({_FOUND.value(names.DRIFT_THRESHOLD, *by)} > 0)",
                f"{{{{feature}}}} {{{{statistic}}}}, {_LEGEND}",
            )
        ],
        "none",
        limit=1,
    )
    sheet.states(
        "Findings",
        "Which lasted when.",
        [Query(_FOUND.value(names.DRIFT_ACTIVE, _BY, "kind"), f"{{{{kind}}}}, {_LEGEND}")],
        {"0": ("over", "green"), "1": ("lasts", "red")},
    )
    sheet.lines(
        "Distinct queries of the latest window",
        "Below 200 nothing is compared.",
        [Query(_FOUND.value(names.DRIFT_WINDOW, _BY), _LEGEND)],
        "none",
    )
    sheet.lines(
        "Windows compared",
        "In the last hour.",
        [Query(_FOUND.over("1h").increase(names.DRIFT_WINDOWS, _BY), _LEGEND)],
        "none",
    )


def _canaries(sheet: Sheet, thresholds: Thresholds) -> None:
    sheet.row("Canaries: the same queries, again and again")
    source = replace(SOURCE, matchers=(*SOURCE.matchers, 'canary=~"$canary"'))
    sheet.lines(
        "Overlap with stored hits",
        "Below its limit it is no accident.",
        [
            Query(source.value(names.CANARY_OVERLAP, "canary", how="min"), "{{canary}}"),
            Query(source.value(names.CANARY_LIMIT, "canary"), "limit of {{canary}}"),
        ],
        "percentunit",
        width=8,
        top=1,
        limit=thresholds.retrieval.canary_overlap,
    )
    sheet.lines(
        "Rank-biased overlap",
        "Weighs the first ranks most.",
        [Query(source.value(names.CANARY_RBO, "canary", how="min"), "{{canary}}")],
        "percentunit",
        width=8,
        top=1,
    )
    sheet.lines(
        "Replays",
        "In the last hour, by outcome.",
        [
            Query(
                source.over("1h").increase(names.CANARY_REPLAYS, "canary", "outcome"),
                "{{canary}}: {{outcome}}",
            )
        ],
        "none",
        width=8,
    )


def _embedders(sheet: Sheet, thresholds: Thresholds) -> None:
    limits = thresholds.retrieval
    sheet.row("Embedders and indexes")
    sheet.lines(
        "Embedders against their own past",
        "Least cosine of probe texts.",
        [Query(SOURCE.value(names.EMBEDDER_COSINE, "embedder", how="min"), "{{embedder}}")],
        "none",
        width=8,
        bottom=None,
        limit=limits.embedder_cosine,
    )
    sheet.lines(
        "Indexes against fresh vectors",
        "Median cosine; below: built by another embedder.",
        [Query(SOURCE.value(names.INDEX_COSINE, "index", how="min"), "{{index}}")],
        "none",
        width=8,
        bottom=None,
        limit=limits.index_cosine,
    )
    sheet.lines(
        "Embedders that query a collection",
        "More than one is a fault.",
        [Query(_FOUND.value(names.EMBEDDERS_SEEN, _BY), _LEGEND)],
        "none",
        width=8,
        limit=2,
    )
    sheet.table(
        "Fingerprints",
        "1: present, 0: an earlier one.",
        Query(SOURCE.value(names.EMBEDDER_INFO, "embedder", "fingerprint")),
        "none",
        {"embedder": "Embedder", "fingerprint": "Fingerprint", "Value": "Present"},
    )
    sheet.lines(
        "CPU of these checks",
        "Not in the overhead budget: they run beside requests.",
        [Query(or_zero(SOURCE.rate(names.CHECKS_CPU), SOURCE.value(names.OVERHEAD_BUDGET)), "CPU")],
        "percentunit",
    )
