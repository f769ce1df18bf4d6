"""The diagnosis beside a running service: its own thread, its events, and what recorders do about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

import neuronscope as ns
from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.findings import Kind
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.sampling import TailSampler
from neuronscope.signals import names
from neuronscope.signals.records import Batch, LogRecord, SpanEvent

RANDOM = np.random.default_rng(0)
DOCUMENTS = RANDOM.normal(size=(100, 8))
CANARIES = tuple(RANDOM.normal(size=(20, 8)))
EMBED = RANDOM.normal(size=(256, 8))


def embed(texts: Sequence[str]) -> NDArray[Any]:
    counts = [np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256) for text in texts]
    return np.array(counts) @ EMBED


@pytest.fixture
def store() -> QdrantClient:
    client = QdrantClient(":memory:")
    client.create_collection("docs", vectors_config=VectorParams(size=8, distance=Distance.COSINE))
    client.upsert("docs", points=[PointStruct(id=n, vector=v.tolist()) for n, v in enumerate(DOCUMENTS)])
    return client


@pytest.fixture
def search(store: QdrantClient) -> Callable[[Any], list[tuple[Any, float]]]:
    def found(vector: Any) -> list[tuple[Any, float]]:
        points = store.query_points("docs", query=vector.tolist(), limit=5, with_payload=False).points
        return [(point.id, point.score) for point in points]

    return found


@pytest.fixture
def exporter() -> ns.testing.InMemoryExporter:
    return ns.testing.InMemoryExporter()


@pytest.fixture
def platform(tmp_path: Path, exporter: ns.testing.InMemoryExporter) -> Iterator[ns.Platform]:
    """Nothing deferred: checks are made where they are asked for."""
    with ns.Platform(deferred=False, exporters=[exporter], baseline=str(tmp_path / "b.json")) as started:
        ns.instrument("qdrant")
        yield started


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.01)


def drift_logs(exporter: ns.testing.InMemoryExporter) -> list[LogRecord]:
    return [log for log in exporter.logs if log.event_name == names.DRIFT.name]


def gauge(metric: names.Metric) -> dict[tuple[str, ...], Any]:
    families = [family for family in ENGINE.metrics.collect().families if family.metric is metric]
    return {tuple(v for _, v in point.labels): point.value for family in families for point in family.points}


def test_a_service_without_a_baseline_pays_nothing() -> None:
    """No seam of the engine is taken, no thread is started."""
    with ns.Platform(deferred=False):
        assert ENGINE.on_record is None
        assert ENGINE.on_embedder is None


def test_a_baseline_is_learned_from_the_first_queries(
    tmp_path: Path, platform: ns.Platform, search: Callable[[Any], Any]
) -> None:
    """A thousand distinct ones; then it is written, with canaries and embedder, and in force."""
    ns.watch_embedder("m", embed)
    ns.watch_canaries("c", search, CANARIES, k=5)
    platform.watch.checks.run_all()
    random = np.random.default_rng(1)
    for _ in range(1_000):
        assert not (tmp_path / "b.json").exists()
        search(random.normal(size=8))
    baseline = Baseline.read(tmp_path / "b.json")
    (queries,) = baseline.within("qdrant", "docs")
    assert queries.n == 1_000
    assert set(baseline.embedders) == {"m"}
    assert set(baseline.canaries) == {"c"}
    assert platform.watch.baseline is not None


def test_checks_run_by_themselves_outside_of_requests(
    exporter: ns.testing.InMemoryExporter, store: QdrantClient, search: Callable[[Any], Any]
) -> None:
    """In a thread of their own, unobserved; what they find is told as metric, log and event."""
    with ns.Platform(exporters=[exporter], canary_interval_s=1.0) as platform:
        ns.instrument("qdrant")
        ns.watch_canaries("c", search, CANARIES, k=5, store="qdrant", collection="docs")
        platform.watch.checks.request(at_once=True)
        until(lambda: gauge(names.CANARY_REPLAYS) == {("c", "stored"): 1})
        assert not exporter.spans, "replays are no traffic"
        store.delete("docs", points_selector=list(range(0, 100, 4)))
        until(lambda: bool(ns.retrieval_findings()))
        (finding,) = ns.retrieval_findings()
        assert finding.kind is Kind.INDEX_LOST
        ns.flush()
        assert gauge(names.DRIFT_ACTIVE) == {("qdrant", "docs", "index_lost"): 1}
        assert gauge(names.CANARY_OVERLAP)["c",] < gauge(names.CANARY_LIMIT)["c",]
        (log,) = drift_logs(exporter)
        assert log.attributes["state"] == "raised"
        assert log.attributes["kind"] == "index_lost"
        assert log.body == finding.summary


def test_a_finding_ends_when_its_cause_does(
    exporter: ns.testing.InMemoryExporter,
    platform: ns.Platform,
    store: QdrantClient,
    search: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The documents come back: cleared, the gauge falls, the service's log has one warning."""
    ns.watch_canaries("c", search, CANARIES, k=5, store="qdrant", collection="docs")
    platform.watch.checks.run_all()
    with caplog.at_level(logging.INFO, "neuronscope"):
        store.delete("docs", points_selector=list(range(0, 100, 4)))
        platform.watch.checks.run_all()
        platform.watch.checks.run_all()
        store.upsert("docs", points=[PointStruct(id=n, vector=v.tolist()) for n, v in enumerate(DOCUMENTS)])
        platform.watch.checks.run_all()
    assert platform.watch.findings() == []
    platform.flush()
    assert [log.attributes["state"] for log in drift_logs(exporter)] == ["raised", "cleared"]
    assert gauge(names.DRIFT_ACTIVE) == {("qdrant", "docs", "index_lost"): 0}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_finding_before_any_traffic_is_told_once(
    exporter: ns.testing.InMemoryExporter,
    platform: ns.Platform,
    store: QdrantClient,
    search: Callable[[Any], Any],
) -> None:
    """Canaries know the collection and not the store's name; the first query tells it."""
    ns.watch_canaries("c", search, CANARIES, k=5, collection="docs")
    platform.watch.checks.run_all()
    store.delete("docs", points_selector=list(range(0, 100, 4)))
    platform.watch.checks.run_all()
    (before,) = platform.watch.findings()
    search(CANARIES[0])
    (after,) = platform.watch.findings()
    assert (before.store, after.store) == ("", "qdrant")
    platform.flush()
    assert len(drift_logs(exporter)) == 1
    assert gauge(names.DRIFT_ACTIVE) == {("", "docs", "index_lost"): 0, ("qdrant", "docs", "index_lost"): 1}


def test_a_search_of_the_wrong_kind_is_a_failed_one(platform: ns.Platform) -> None:
    """A coroutine function, hits without scores: counted, no verdict."""
    GUARD.reraise = False

    def unscored(_: Any) -> Any:
        return [("a", None)]

    ns.watch_canaries("c", unscored, CANARIES)
    platform.watch.checks.run_all()
    assert gauge(names.CANARY_REPLAYS) == {("c", "failed"): 1}


def test_retrievals_carry_their_embedders_fingerprint(
    exporter: ns.testing.InMemoryExporter, platform: ns.Platform, search: Callable[[Any], Any]
) -> None:
    """Of the only embedder that is known, if its vectors have the query's length."""
    ns.watch_embedder("m", embed)
    search(CANARIES[0])
    platform.watch.checks.run_all()
    search(CANARIES[0])
    before, after = (span.attributes for span in exporter.spans if span.name == "retrieval docs")
    assert names.EMBEDDER_FINGERPRINT not in before
    ((_, stamped),) = gauge(names.EMBEDDER_INFO)
    assert after[names.EMBEDDER_FINGERPRINT] == stamped
    ns.watch_embedder("m", lambda texts: embed(texts)[:, :4])
    platform.watch.checks.run_all()
    search(CANARIES[0])
    assert names.EMBEDDER_FINGERPRINT not in exporter.spans[-1].attributes, "of another length"


def test_two_embedders_by_turns_are_told(platform: ns.Platform, search: Callable[[Any], Any]) -> None:
    """One that replaces another is not: that is a change, which the fingerprint tells."""
    other = np.random.default_rng(5).normal(size=EMBED.shape)

    def current(texts: Sequence[str]) -> Any:
        return np.asarray(embed(texts)) if first else np.asarray(embed(texts)) @ (EMBED.T @ other)

    def ask() -> None:
        platform.watch.checks.run_all()
        search(RANDOM.normal(size=8))

    first = True
    ns.watch_embedder("m", current)
    ask()
    first = False
    ask()
    assert gauge(names.EMBEDDERS_SEEN) == {("qdrant", "docs"): 2}
    kinds = {finding.kind for finding in platform.watch.findings()}
    assert kinds == {Kind.EMBEDDER_CHANGED}
    for _ in range(3):
        first = True
        ask()
        first = False
        ask()
    assert Kind.EMBEDDERS_MIXED in {finding.kind for finding in platform.watch.findings()}


def test_an_index_of_another_embedder_is_told(platform: ns.Platform) -> None:
    """Stored vectors beside fresh ones."""
    texts = [f"document {n}" for n in range(20)]
    ns.watch_index("docs", lambda: list(zip(texts, embed(texts)[:, ::-1], strict=True)), embed)
    platform.watch.checks.run_all()
    (finding,) = platform.watch.findings()
    assert finding.kind is Kind.INDEX_STALE
    assert gauge(names.INDEX_COSINE)["docs",] < 0.98


def test_checks_that_fail_cost_nothing_but_their_verdict(
    platform: ns.Platform, search: Callable[[Any], Any]
) -> None:
    """A store that is down, an embedder that raises: counted, and the service runs on."""
    GUARD.reraise = False

    def down(_: Any) -> Any:
        raise ConnectionError

    ns.watch_canaries("c", down, CANARIES)
    ns.watch_embedder("m", down)
    ns.watch_index("i", lambda: [("a", [1.0])], down)
    platform.watch.checks.run_all()
    assert search(CANARIES[0])
    assert platform.watch.findings() == []
    assert gauge(names.CANARY_REPLAYS) == {("c", "failed"): 1}
    assert {site for site, _ in GUARD.faults} == {"canaries.search", "embedder.probes", "index.documents"}


def test_recorders_keep_everything_while_a_finding_lasts(
    exporter: ns.testing.InMemoryExporter,
    tmp_path: Path,
    store: QdrantClient,
    search: Callable[[Any], Any],
) -> None:
    """The flight recorder dumps when it is raised; the tail sampler's switch is in the same event."""
    with ns.Platform(
        deferred=False,
        exporters=[exporter],
        nsz=str(tmp_path / "flight"),
        nsz_mode="flight",
        flight_margin=0.0,
    ) as platform:
        ns.instrument("qdrant")
        ns.watch_canaries("c", search, CANARIES, k=5)
        platform.watch.checks.run_all()
        search(CANARIES[0])
        store.delete("docs", points_selector=list(range(0, 100, 4)))
        platform.watch.checks.run_all()
        search(CANARIES[0])
        platform.flush()
    recorded = ns.load(tmp_path / "flight")
    reasons = {str(event.attributes.get("reason")) for event in recorded.events}
    assert "drift" in reasons
    (event,) = [event for event in recorded.events if event.name == names.DRIFT.name]
    assert event.attributes["active"] is True
    sampler = TailSampler(0.0)
    root = recorded.telemetry.spans[0]
    assert not sampler.offer(Batch({}, spans=[root]), 0.0).spans
    told = SpanEvent(event.name, 0, event.attributes)
    assert sampler.offer(Batch({}, spans=[root], events=[told]), 0.0).spans
