"""Baselines: what they keep of recordings, their file, and what they say of files that are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

import neuronscope as ns
from neuronscope.diagnosis.samples import MAX_KEPT, Collector, Series, samples, thinned
from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent, SpanRecord


def search(
    number: int,
    score: float = 0.8,
    more: Mapping[str, Any] = MappingProxyType({}),
    events: tuple[SpanEvent, ...] = (),
) -> SpanRecord:
    """The span of one search with three hits."""
    attributes: dict[str, Any] = {
        names.OPERATION_NAME: "retrieval",
        names.DB_SYSTEM: "qdrant",
        names.DB_COLLECTION: "docs",
        names.RETRIEVAL_METRIC: "cosine",
        names.RETRIEVAL_TOP_K: 3,
        names.RETRIEVAL_RETURNED: 3,
        names.RETRIEVAL_TOP_SCORE: score,
        names.RETRIEVAL_KTH_SCORE: score - 0.2,
        names.RETRIEVAL_MARGIN: 0.25,
        names.QUERY_NORM: 1.0 + number * 1e-9,
        names.QUERY_FINGERPRINT: f"{number:016x}",
    }
    attributes.update(more)
    return SpanRecord(
        trace_id=number + 1,
        span_id=1,
        name="retrieval docs",
        kind=SpanKind.CLIENT,
        start_unix_ns=number,
        end_unix_ns=number + 1,
        attributes={key: value for key, value in attributes.items() if value is not None},
        events=events,
    )


SERIES = Series("qdrant", "docs", "cosine", 3)


def test_a_baseline_of_a_recording_is_read_back_as_it_was(tmp_path: Path) -> None:
    """From a `.nsz` file, through JSON, to the same samples; and from the recording itself."""
    with ns.Scope("day") as scope:
        pass
    artifact = ns.Artifact(
        type(scope.artifact.telemetry)([search(n, 0.5 + n / 1000) for n in range(300)], []),
    )
    artifact.save(tmp_path / "day.nsz")
    made = ns.Baseline.of(ns.load(tmp_path / "day.nsz"))
    made.save(tmp_path / "b.json")
    read = ns.Baseline.read(tmp_path / "b.json")
    direct = ns.Baseline.read(tmp_path / "day.nsz")
    for baseline in (read, direct):
        queries = baseline.series[SERIES]
        assert (queries.n, queries.seen, queries.empty, queries.filtered) == (300, 300, 0, 0)
        assert queries.values["top_score"][[0, -1]].tolist() == [0.5, 0.799]
        assert queries.values["norm"].tolist() == [1.0] * 300, "rounding is no change"
        assert sorted(queries.fingerprints) == sorted(f"{n:016x}" for n in range(300))
    assert {path.name for path in tmp_path.iterdir()} == {"b.json", "day.nsz"}, "no half of a file is left"


def test_failed_and_foreign_spans_do_not_count() -> None:
    """An error has no result; a listing is no search; a query that came again is one query."""
    spans = [
        search(1),
        search(1),
        search(2, more={names.ERROR_TYPE: "timeout"}),
        search(3, more={names.OPERATION_NAME: None}),
        search(4, more={names.RETRIEVAL_RETURNED: None}),
    ]
    baseline = ns.Baseline.of(spans)
    assert (baseline.series[SERIES].n, baseline.series[SERIES].seen) == (1, 2)


def test_queries_of_a_batch_count_one_by_one() -> None:
    """Their facts are the span's events."""
    shared: dict[str, Any] = {
        names.RETRIEVAL_METRIC: "cosine",
        names.RETRIEVAL_TOP_K: 3,
        names.RETRIEVAL_RETURNED: 2,
    }
    events = tuple(
        SpanEvent(
            names.RETRIEVAL_QUERY,
            0,
            {**shared, names.RETRIEVAL_TOP_SCORE: score, names.QUERY_FINGERPRINT: f"{n:016x}"},
        )
        for n, score in enumerate((0.9, 0.7))
    )
    found = samples([search(0, events=events)])
    assert [query.top_score for query in found] == [0.9, 0.7]
    assert [query.short for query in found] == [True, True]


def test_distances_are_turned_so_that_more_is_better() -> None:
    """Scores of a series are on the scale of `neuronscope.signals.scores`."""
    (near,), (far,) = (
        samples([search(n, distance, {names.RETRIEVAL_METRIC: "euclid"})])
        for n, distance in enumerate((0.5, 3.0))
    )
    assert near.top_score is not None
    assert far.top_score is not None
    assert near.top_score > far.top_score


def test_a_sampled_recording_is_weighed() -> None:
    """Of 10,000 ordinary traces one per cent was kept, and every odd one: odd ones must not look usual."""
    odd = [search(n, 0.1, {names.SAMPLING_WEIGHT: 1.0}) for n in range(1_000)]
    usual = [search(n, 0.9, {names.SAMPLING_WEIGHT: 10.0}) for n in range(1_000, 2_000)]
    kept = list(thinned(samples(odd + usual)))
    share = sum(query.top_score == 0.1 for query in kept) / len(kept)
    assert share == pytest.approx(1_000 / 11_000, abs=0.03)
    assert sum(query.top_score == 0.9 for query in kept) == 1_000


def test_a_collector_keeps_a_uniform_sample_within_bounds() -> None:
    """Early and late queries alike; never more than its size; a thousand collections are not kept."""
    collector = Collector(200)
    for query in samples([search(n, n / 10_000) for n in range(10_000)]):
        collector.add(query)
    queries = collector.queries()[SERIES]
    assert (queries.n, queries.seen) == (200, 10_000)
    assert float(np.mean(queries.values["top_score"])) == pytest.approx(0.5, abs=0.08)
    many = Collector()
    for query in samples([search(n, more={names.DB_COLLECTION: f"c{n}"}) for n in range(1_000)]):
        many.add(query)
    assert len(many.queries()) == 256


def test_a_large_baseline_stays_small(tmp_path: Path) -> None:
    """Ten thousand queries make a file of some two hundred kilobytes."""
    ns.Baseline.of([search(n, n / 10_000) for n in range(10_000)]).save(tmp_path / "b.json")
    assert ns.Baseline.read(tmp_path / "b.json").series[SERIES].n == MAX_KEPT
    assert (tmp_path / "b.json").stat().st_size < 250_000


def mended(**changes: Any) -> Mapping[str, Any]:
    document = {"format": "neuronscope.baseline", "version": 1, "created_unix_ns": 0, "agent": ""}
    return {**document, "source": "", "series": [], **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "damaged"),
        ("not json", "damaged"),
        ("[]", "damaged"),
        ("{}", "neuronscope baseline make"),
        (json.dumps(mended(format="other")), "neuronscope baseline make"),
        (json.dumps(mended(version=2)), "reads up to version 1"),
        (json.dumps(mended(series=[{}])), "damaged"),
        (json.dumps(mended(series=[{"store": 1}])), "damaged"),
    ],
)
def test_what_is_no_baseline_is_refused_with_a_reason(tmp_path: Path, content: str, message: str) -> None:
    """By what it is, not by an exception of the JSON library."""
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(ns.BaselineError, match=message):
        ns.Baseline.read(tmp_path / "b.json")


def test_a_platform_refuses_a_broken_baseline(tmp_path: Path) -> None:
    """At start, where somebody sees it."""
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ns.BaselineError):
        ns.Platform(baseline=str(tmp_path / "b.json"))
