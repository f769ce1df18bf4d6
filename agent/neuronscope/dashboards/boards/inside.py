"""Model internals: what layers give, how near they are to overflowing, which units are silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from neuronscope.dashboards.promql import equal, label_values, or_zero, share
from neuronscope.dashboards.sheet import SOURCE, Query, Sheet
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

_MODELS: Final = replace(SOURCE, matchers=(*SOURCE.matchers, 'neuronscope_model_name=~"$model"'))
_MODEL: Final = names.MODEL_NAME
_LEGEND: Final = "{{neuronscope_model_name}}"
_LAYER: Final = "{{layer}}"


def build(thresholds: Thresholds) -> str:
    """The dashboard as JSON."""
    sheet = Sheet(
        "model",
        "Model internals",
        "Layers of the models that run in the service's own processes.",
        thresholds.links,
    )
    sheet.variable("model", "Model", label_values(names.MODEL_CALLS, _MODEL, where='{job=~"$service"}'))
    _summary(sheet, thresholds)
    _layers(sheet, thresholds)
    _calls(sheet)
    return sheet.build()


def _non_finite_share(*by: str) -> str:
    where = {"outcome": equal("non_finite")}
    return share(_MODELS.rate(names.MODEL_CALLS, *by, where=where), _MODELS.rate(names.MODEL_CALLS, *by))


def _summary(sheet: Sheet, thresholds: Thresholds) -> None:
    limits = thresholds.numeric
    sheet.row("Now")
    sheet.stat("Calls", "With layers recorded, a second.", Query(_MODELS.rate(names.MODEL_CALLS)), "reqps")
    sheet.stat(
        "Calls with NaN or Inf",
        "Share of calls.",
        Query(_non_finite_share()),
        "percentunit",
        ((None, "green"), (1e-9, "red")),
        decimals=3,
    )
    sheet.stat(
        "Range used",
        "The layer nearest to overflowing.",
        Query(_MODELS.value(names.LAYER_RANGE)),
        "percentunit",
        ((None, "green"), (limits.range_used, "red")),
        decimals=2,
    )
    sheet.stat(
        "Most zeros",
        "The layer with the largest share of zeros.",
        Query(_MODELS.value(names.LAYER_ZEROS)),
        "percentunit",
        decimals=1,
    )
    sheet.stat(
        "Layers",
        "That are recorded.",
        Query(f"count({_MODELS.value(names.LAYER_SPREAD, _MODEL, 'layer')})"),
        "none",
    )
    sheet.stat("Records", "Of layers, a second.", Query(_MODELS.rate(names.LAYER_RECORDS)), "none")


def _layers(sheet: Sheet, thresholds: Thresholds) -> None:
    sheet.row("Layers")
    by = (_MODEL, "layer")
    sheet.heat(
        "Spread",
        "Standard deviation of each layer's output. A row that changes colour is a layer that changed.",
        Query(_MODELS.value(names.LAYER_SPREAD, *by), _LAYER),
        "none",
        height=12,
        buckets=False,
    )
    sheet.heat(
        "Zeros",
        "Share of each layer's output that is zero.",
        Query(_MODELS.value(names.LAYER_ZEROS, *by), _LAYER),
        "percentunit",
        height=12,
        buckets=False,
    )
    sheet.lines(
        "Headroom: range used",
        "The ten layers nearest to overflowing their element type.",
        [Query(f"topk(10, {_MODELS.value(names.LAYER_RANGE, *by)})", f"{_LEGEND} {_LAYER}")],
        "percentunit",
        limit=thresholds.numeric.range_used,
    )
    now = _MODELS.value(names.LAYER_ZEROS, *by)
    mean = _MODELS.mean_of(names.LAYER_ZEROS, "1h", *by)
    sheet.lines(
        "Dead units: zeros against the hour before",
        "The ten layers whose share of zeros rose most.",
        [Query(f"topk(10, {now} - {mean})", f"{_LEGEND} {_LAYER}")],
        "percentunit",
        bottom=None,
        limit=thresholds.numeric.zeros_rise,
    )


def _calls(sheet: Sheet) -> None:
    sheet.row("Calls")
    sheet.lines(
        "NaN and Inf",
        "Elements a second, all layers.",
        [
            Query(
                or_zero(_MODELS.rate(names.NON_FINITE, _MODEL), _MODELS.rate(names.MODEL_CALLS, _MODEL)),
                _LEGEND,
            )
        ],
        "none",
        width=8,
    )
    sheet.lines(
        "Calls with NaN or Inf",
        "Share of calls.",
        [Query(_non_finite_share(_MODEL), _LEGEND)],
        "percentunit",
        width=8,
    )
    sheet.lines(
        "Layers recorded",
        "Records a second, by fidelity.",
        [Query(_MODELS.rate(names.LAYER_RECORDS, names.FIDELITY), "{{neuronscope_fidelity}}")],
        "none",
        width=8,
        stacked=True,
    )
    for title, metric in (("Prefill", names.PREFILL_SECONDS), ("Decoding", names.DECODE_SECONDS)):
        sheet.lines(
            title,
            "Of a model in the process. Points are exemplars.",
            [
                Query(_MODELS.quantile(q, metric, _MODEL), f"p{round(100 * q)}, {_LEGEND}", exemplars=True)
                for q in (0.5, 0.95)
            ],
            "s",
        )
