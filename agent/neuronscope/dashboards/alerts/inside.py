"""Inside models: NaN and Inf, element types that overflow soon, units that fall silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neuronscope.dashboards.alerts.alert import DAY, HOUR, SERVICE, Alert, label, percent
from neuronscope.dashboards.promql import JOB, Source
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names

_SOURCE: Final = Source(keep=(JOB,))
_MODEL: Final = {names.MODEL_NAME: "model"}


def alerts(thresholds: Thresholds) -> Iterator[Alert]:
    """All of them."""
    limits = thresholds.numeric
    yield Alert(
        name="NeuronscopeNonFinite",
        severity="page",
        expr=_SOURCE.over("5m").appeared(names.NON_FINITE, names.MODEL_NAME) + " > 0",
        hold="5m",
        summary=f"{SERVICE}: layers of {label(names.MODEL_NAME)} give NaN or Inf, for five minutes now.",
        checks=(
            "Where it is born: `neuronscope view RECORDINGS --last 5 --all-layers`, the first layer "
            "with a count.",
            "What changed: driver, library, dtype, quantisation, weights. The diff command names it.",
            "Which inputs: empty texts, certain characters, only batches? Answers of these calls are "
            "not to be used.",
        ),
        board="model",
        variables=_MODEL,
    )
    yield Alert(
        name="NeuronscopeRangeUsed",
        severity="ticket",
        expr=_SOURCE.value(names.LAYER_RANGE, names.MODEL_NAME, "layer") + f" > {limits.range_used:g}",
        hold="5m",
        summary=(
            f"{SERVICE}: {label('layer')} of {label(names.MODEL_NAME)} uses {percent()} of its type's range."
        ),
        checks=(
            "Which layer, and since when: headroom by layer on the model dashboard.",
            "Is the model meant for this element type? bfloat16 has float32's range, float16 ends at 65504.",
            "Longer or unusual inputs? Attention sinks and massive activations grow with some prompts.",
        ),
        board="model",
        span_s=6 * HOUR,
        variables=_MODEL,
    )
    zeros = _SOURCE.mean_of(names.LAYER_ZEROS, "1h", names.MODEL_NAME, "layer")
    before = _SOURCE.mean_of(names.LAYER_ZEROS, "1h", names.MODEL_NAME, "layer", offset="1d")
    yield Alert(
        name="NeuronscopeDeadUnits",
        severity="ticket",
        expr=f"{zeros} - {before} > {limits.zeros_rise:g}",
        hold="30m",
        summary=(
            f"{SERVICE}: the share of zeros in {label('layer')} of {label(names.MODEL_NAME)} has "
            f"risen by {percent()} "
            "within a day."
        ),
        checks=(
            "Other weights, an adapter merged, or another quantisation since yesterday?",
            "Other inputs: much shorter ones have more padding; see input tokens on the LLM dashboard.",
            "Only this layer or all after it: the heat map of the model dashboard; then the diff command.",
        ),
        board="model",
        span_s=DAY,
        variables=_MODEL,
    )
