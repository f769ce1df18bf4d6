"""Metrics of stages and of layers: what objectives and the dashboards of models are made of."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind

from neuronscope.engine.layer_metrics import record_layers
from neuronscope.engine.metrics import Aggregator
from neuronscope.engine.span_metrics import SpanMetrics
from neuronscope.modelcall import ModelCall
from neuronscope.signals import names
from neuronscope.signals.names import Metric
from neuronscope.signals.records import Fidelity, HistogramValue, SpanRecord
from neuronscope.signals.tensors import TensorSummary

pytestmark = pytest.mark.any_names


def span(kind: SpanKind, seconds: float, **attributes: object) -> SpanRecord:
    return SpanRecord(
        trace_id=1,
        span_id=2,
        parent_span_id=None,
        name="test",
        kind=kind,
        start_unix_ns=0,
        end_unix_ns=int(seconds * 1e9),
        attributes={getattr(names, key): value for key, value in attributes.items()},  # type: ignore[misc]
    )


def values(aggregator: Aggregator, metric: Metric) -> dict[tuple[str, ...], float]:
    """Of each series, by its labels: a number, or a histogram's sum."""
    return {
        tuple(value for _, value in point.labels): (
            point.value.sum if isinstance(point.value, HistogramValue) else point.value
        )
        for family in aggregator.collect().families
        if family.metric is metric
        for point in family.points
    }


def test_each_stage_of_a_request_has_its_duration() -> None:
    """Request, search, embedding and generation with its phases; errors apart, store writes not at all."""
    aggregator = Aggregator()
    metrics = SpanMetrics(aggregator)
    for record in (
        span(SpanKind.SERVER, 4.0, HTTP_REQUEST_METHOD="POST"),
        span(SpanKind.CLIENT, 0.25, DB_SYSTEM="qdrant", OPERATION_NAME="retrieval"),
        span(SpanKind.CLIENT, 0.5, DB_SYSTEM="qdrant", OPERATION_NAME="retrieval", ERROR_TYPE="Timeout"),
        span(SpanKind.CLIENT, 9.0, DB_SYSTEM="qdrant", DB_OPERATION="upsert"),
        span(SpanKind.INTERNAL, 0.125, PROVIDER_NAME="x", OPERATION_NAME="embeddings"),
        span(SpanKind.CLIENT, 2.0, PROVIDER_NAME="x", OPERATION_NAME="chat", TIME_TO_FIRST_CHUNK=1.5),
        span(SpanKind.INTERNAL, 3.0, OPERATION_NAME="chat", MODEL_PREFILL=1.0, MODEL_DECODE=2.0),
        span(SpanKind.INTERNAL, 3.0, OPERATION_NAME="invoke_agent", PROVIDER_NAME="x"),
    ):
        metrics.record(record, None)
    assert values(aggregator, names.STAGE_DURATION) == {
        ("request",): 4.0,
        ("search",): 0.25,
        ("search", "Timeout"): 0.5,
        ("embed",): 0.125,
        ("generate",): 5.0,
        ("first_chunk",): 1.5,
        ("prefill",): 1.0,
        ("decode",): 2.0,
    }


def summary(**changed: float) -> TensorSummary:
    figures = {"count": 100, "mean": 0.0, "std": 2.0, "l2": 1.0, "min": 0.0, "max": 0.0, "abs_max": 1.0}
    figures |= {"zero_count": 0, "nan_count": 0, "inf_count": 0}
    return TensorSummary(**{**figures, **changed})  # type: ignore[arg-type]


def test_layers_tell_their_spread_their_range_and_their_zeros() -> None:
    """Of the largest run; a layer of integers has no range."""
    call = ModelCall("net")
    call.take("0", 0, summary(abs_max=32_752.0, zero_count=25), Fidelity.SUMMARY, "F16")
    call.take("0", 1, summary(abs_max=1.0, zero_count=75), Fidelity.SUMMARY, "F16")
    call.take("ids", 0, summary(), Fidelity.SUMMARY, "I64")
    call.runs.update({"0": 2, "ids": 1})
    aggregator = Aggregator()
    record_layers(aggregator, call)
    assert values(aggregator, names.LAYER_RANGE) == {("net", "0"): 0.5}
    assert values(aggregator, names.LAYER_ZEROS) == {("net", "0"): 0.5, ("net", "ids"): 0.0}
    assert values(aggregator, names.LAYER_SPREAD)["net", "0"] == 2.0
    assert values(aggregator, names.MODEL_CALLS) == {("net", "finite"): 1}


def test_a_call_with_a_nan_is_not_a_finite_one() -> None:
    """One NaN in one run is enough; a call without records says nothing."""
    aggregator = Aggregator()
    bad, unseen = ModelCall("net"), ModelCall("net")
    bad.take("0", 0, summary(nan_count=1), Fidelity.SUMMARY, "F32")
    for call in (bad, unseen):
        record_layers(aggregator, call)
    assert values(aggregator, names.MODEL_CALLS) == {("net", "non_finite"): 1}
