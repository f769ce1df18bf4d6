"""The tail decision: what is out of the ordinary is kept, and of the rest a share that can be undone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.sampling import (
    DRIFT_EVENT,
    MAX_HELD_BYTES,
    ROOT_WAIT_S,
    RollingQuantile,
    TailSampler,
    estimate,
    weight,
)
from neuronscope.signals import names
from neuronscope.signals.records import Batch, LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSummary

RNG = random.Random(7)


def span(
    trace_id: int, span_id: int = 1, ms: float = 100, *, parent: int | None = None, **facts: Any
) -> SpanRecord:
    attributes = {getattr(names, key): value for key, value in facts.items() if key.isupper()}
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        name=facts.get("name", "POST /ask"),
        kind=SpanKind.SERVER,
        start_unix_ns=0,
        end_unix_ns=int(ms * 1e6),
        attributes=attributes,
        parent_span_id=parent,
        parent_is_remote=facts.get("remote", False),
        status=facts.get("status", StatusCode.UNSET),
    )


def layer(trace_id: int | None, nan_count: int = 0) -> LayerRecord:
    summary = TensorSummary(10, 0.0, 1.0, 3.0, -1.0, 1.0, 1.0, 0, nan_count, 0)
    return LayerRecord("tiny", "layers.0", 0, 0, (10,), "F32", trace_id=trace_id, span_id=1, summary=summary)


def offer(
    sampler: TailSampler, *spans: SpanRecord, layers: Any = (), events: Any = (), now: float = 0
) -> Batch:
    return sampler.offer(Batch({}, spans, layers, events=events), now)


def trace_ids(n: int) -> Iterator[int]:
    return (RNG.getrandbits(128) | 1 for _ in range(n))


def warm(sampler: TailSampler) -> None:
    """A thousand ordinary traces, so that there is an ordinary."""
    for trace_id in trace_ids(1_000):
        offer(
            sampler,
            span(
                trace_id,
                2,
                parent=1,
                RETRIEVAL_MARGIN=RNG.uniform(0.2, 0.6),
                INPUT_TOKENS=RNG.randint(50, 150),
            ),
            span(trace_id, ms=RNG.uniform(80, 120)),
        )


ODD: dict[str, dict[str, Any]] = {
    "error": {"status": StatusCode.ERROR},
    "non_finite": {"LAYERS_NON_FINITE": 3},
    "empty_retrieval": {"RETRIEVAL_EMPTY": True},
    "low_margin": {"RETRIEVAL_MARGIN": 0.01},
    "costly": {"OUTPUT_TOKENS": 5_000},
}


@pytest.mark.parametrize("reason", ODD)
def test_what_is_out_of_the_ordinary_is_kept_whole(reason: str) -> None:
    """Whatever the share: the span, its siblings, its root and its layers."""
    sampler = TailSampler(0.0)
    warm(sampler)
    trace_id = next(trace_ids(1))
    assert not offer(sampler, span(trace_id, 3, parent=1), layers=[layer(trace_id)]).spans
    assert not offer(sampler, span(trace_id, 2, parent=1, **ODD[reason])).spans
    kept = offer(sampler, span(trace_id))
    assert {record.span_id for record in kept.spans} == {1, 2, 3}
    assert len(kept.layers) == 1
    for record in kept.spans:
        assert record.attributes[names.SAMPLING_REASON] == reason
        assert weight(record) == 1.0


def test_slow_roots_are_kept() -> None:
    """Slower than the p95 of roots of its name so far; others of the same length elsewhere are not."""
    sampler = TailSampler(0.0)
    warm(sampler)
    ordinary, slow, other = trace_ids(3)
    assert not offer(sampler, span(ordinary, ms=100)).spans
    assert offer(sampler, span(slow, ms=400)).spans[0].attributes[names.SAMPLING_REASON] == "slow"
    assert not offer(sampler, span(other, ms=400, name="GET /health")).spans


def test_a_layer_with_nan_keeps_its_trace() -> None:
    """The record alone is enough."""
    sampler = TailSampler(0.0)
    trace_id = next(trace_ids(1))
    kept = offer(sampler, span(trace_id), layers=[layer(trace_id, nan_count=1)])
    assert kept.spans[0].attributes[names.SAMPLING_REASON] == "non_finite"


def test_everything_is_kept_while_a_drift_alert_is_active() -> None:
    """An event of the agent switches it on and off."""
    sampler = TailSampler(0.0)
    first, second, third = trace_ids(3)
    assert not offer(sampler, span(first)).spans
    active = SpanEvent(DRIFT_EVENT, 0, {"active": True})
    assert offer(sampler, span(second), events=[active]).spans
    assert not offer(sampler, span(third), events=[SpanEvent(DRIFT_EVENT, 0, {"active": False})]).spans


def test_the_random_share_is_a_share_and_the_same_everywhere() -> None:
    """Ten per cent, by trace id; another process decides alike; a head sampler's cut does not bias it."""
    here, there = TailSampler(0.1), TailSampler(0.1)
    ids = list(trace_ids(20_000))
    kept = [trace_id for trace_id in ids if here.random(trace_id)]
    assert kept == [trace_id for trace_id in ids if there.random(trace_id)]
    assert 1_800 < len(kept) < 2_200
    # OpenTelemetry's ratio sampler keeps ids whose low 64 bits are small
    head = [trace_id for trace_id in ids if trace_id & ((1 << 64) - 1) < (1 << 64) // 4]
    assert 0.08 < sum(map(here.random, head)) / len(head) < 0.12


def test_totals_are_estimated_without_bias() -> None:
    """Requests, tokens and errors of 20,000 traces, from what 5 % and the odd ones tell; 100 runs."""
    rng = random.Random(3)
    hits = 0
    errors: list[float] = []
    for run in range(100):
        sampler = TailSampler(0.05)
        truth = kept_errors = true_errors = 0
        records: list[SpanRecord] = []
        for _ in range(2_000):
            tokens = int(rng.lognormvariate(5, 0.5))
            failed = rng.random() < 0.01
            truth += tokens
            true_errors += failed
            status = StatusCode.ERROR if failed else StatusCode.UNSET
            one = span(
                rng.getrandbits(128), ms=rng.lognormvariate(4, 0.4), INPUT_TOKENS=tokens, status=status
            )
            records += offer(sampler, one).spans
        values = [float(record.attributes[names.INPUT_TOKENS]) for record in records]  # type: ignore[arg-type]
        total, margin = estimate(records, values)
        kept_errors = sum(record.status is StatusCode.ERROR for record in records)
        assert kept_errors == true_errors
        assert len(records) < 500, run
        hits += abs(total - truth) <= margin
        errors.append(total / truth - 1)
    assert abs(sum(errors) / len(errors)) < 0.02
    assert 88 <= hits <= 100


def test_a_trace_whose_root_does_not_end_is_decided_in_time_and_in_bounded_memory() -> None:
    """After a while, and when too much is held; nothing stays for ever."""
    sampler = TailSampler(1.0)
    first, second = trace_ids(2)
    assert not offer(sampler, span(first, 2, parent=1)).spans
    late = offer(sampler, span(second, 2, parent=1), now=ROOT_WAIT_S + 1)
    assert [record.trace_id for record in late.spans] == [first]
    big = "x" * 100_000
    written = sum(
        len(offer(sampler, span(trace_id, 2, parent=1, MODEL_NAME=big), now=ROOT_WAIT_S + 2).spans)
        for trace_id in trace_ids(1_000)
    )
    assert written >= 1_000 - MAX_HELD_BYTES // 100_000
    assert len(sampler.rest(Batch({})).spans) + written == 1_001


def test_layers_without_a_trace_are_kept_and_left_out_units_are_counted() -> None:
    """And a remote parent makes a local root."""
    sampler = TailSampler(0.0)
    trace_id = next(trace_ids(1))
    kept = offer(sampler, span(trace_id, parent=9, remote=True), layers=[layer(None), layer(trace_id)])
    assert len(kept.layers) == 1
    assert not kept.spans
    left_out = {"left_out.unit": 1, "left_out.span": 1, "left_out.layer": 1, "left_out.log": 0}
    assert sampler.facts() == {"share": 0.0, **left_out}


def test_the_rolling_quantile_follows_and_forgets() -> None:
    """It knows nothing at first, tells the p95 to a bucket, and follows a shift."""
    quantile = RollingQuantile(0.95)
    assert not any(quantile.above(value) for value in range(1, 101))
    rng = random.Random(1)
    above = sum(quantile.above(rng.uniform(100, 200)) for _ in range(5_000))
    assert 0 < above / 5_000 < 0.12
    for _ in range(60_000):
        quantile.above(rng.uniform(1_000, 2_000))
    assert not quantile.above(1_500)
    assert quantile.above(5_000)
