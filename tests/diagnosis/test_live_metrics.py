"""Metrics of retrieval: what one search adds to them, and that their series stay few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from qdrant_client import QdrantClient
from qdrant_client.models import (
    Distance,
    FieldCondition,
    Filter,
    MatchValue,
    PointStruct,
    QueryRequest,
    VectorParams,
)

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.metrics import Aggregator
from neuronscope.engine.retrieval_metrics import K_BOUNDS, k_label, record_store
from neuronscope.signals import names
from neuronscope.signals.names import Metric
from neuronscope.signals.records import HistogramValue

LABELS = (
    (names.DB_SYSTEM, "qdrant"),
    (names.DB_COLLECTION, "docs"),
    (names.RETRIEVAL_METRIC, "cosine"),
    (names.RETRIEVAL_TOP_K, "4"),
)


@pytest.fixture
def store() -> Iterator[QdrantClient]:
    client = QdrantClient(":memory:")
    client.create_collection("docs", vectors_config=VectorParams(size=2, distance=Distance.COSINE))
    with ns.Platform(deferred=False):
        ns.instrument("qdrant")
        client.upsert(
            "docs",
            points=[PointStruct(id=n, vector=[1.0, n / 4], payload={"n": n}) for n in range(4)],
        )
        yield client


def series(metric: Metric) -> dict[tuple[tuple[str, str], ...], Any]:
    found = [family for family in ENGINE.metrics.collect().families if family.metric is metric]
    return {point.labels: point.value for family in found for point in family.points}


def only(metric: Metric) -> tuple[tuple[tuple[str, str], ...], HistogramValue]:
    ((labels, value),) = series(metric).items()
    assert isinstance(value, HistogramValue)
    return labels, value


def test_a_search_tells_scores_margin_share_and_norm_under_the_same_labels(store: QdrantClient) -> None:
    """Store, collection, metric and k name the series; the values are those of the result."""
    hits = store.query_points("docs", query=[3.0, 0.0], limit=4).points
    best, worst = hits[0].score, hits[-1].score
    for metric, value in (
        (names.TOP_SCORE, best),
        (names.KTH_SCORE, worst),
        (names.MARGIN, (best - worst) / best),
        (names.RETURNED_SHARE, 1.0),
        (names.QUERY_NORM_METRIC, 3.0),
    ):
        labels, histogram = only(metric)
        assert labels == LABELS
        assert histogram.count == 1
        assert histogram.sum == pytest.approx(value)
    assert series(names.RETRIEVALS) == {LABELS: 1}
    assert not series(names.RETRIEVALS_EMPTY)


def test_an_empty_result_counts_as_empty_and_has_no_scores(store: QdrantClient) -> None:
    """The share returned is 0; there is no score to tell."""
    nothing = Filter(must=[FieldCondition(key="n", match=MatchValue(value=99))])
    assert not store.query_points("docs", query=[1.0, 0.0], limit=4, query_filter=nothing).points
    assert sum(series(names.RETRIEVALS_EMPTY).values()) == 1
    assert only(names.RETURNED_SHARE)[1].sum == 0.0
    assert not series(names.TOP_SCORE)


def test_writes_are_counted_by_points_and_method(store: QdrantClient) -> None:
    """Four points were put in; one is deleted."""
    store.delete("docs", points_selector=[2])
    written = {
        dict(labels)[names.DB_OPERATION]: value for labels, value in series(names.POINTS_WRITTEN).items()
    }
    assert written == {"upsert": 4, "delete": 1}


def test_each_query_of_a_batch_counts(store: QdrantClient) -> None:
    """One call, three queries: three scores, three norms."""
    requests = [QueryRequest(query=[float(n), 1.0], limit=4) for n in range(3)]
    store.query_batch_points("docs", requests=requests)
    assert series(names.RETRIEVALS) == {LABELS: 3}
    assert only(names.TOP_SCORE)[1].count == only(names.QUERY_NORM_METRIC)[1].count == 3


def test_k_is_rounded_up_so_that_its_series_stay_few() -> None:
    """Whatever services ask for, `k` has as many values as there are bounds, and `other`."""
    assert [k_label(k) for k in (1, 10, 11, 12, 13, 1000, 1001, None, 0, -1)] == [
        *("1", "10", "12", "12", "15", "1000", "other", "other", "other", "other")
    ]
    assert len({k_label(k) for k in range(10_000)}) == len(K_BOUNDS) + 1


def test_collections_without_end_are_folded() -> None:
    """A service that makes a collection for each user does not fill the metrics."""
    metrics = Aggregator()
    for number in range(3_000):
        record_store(
            {
                names.OPERATION_NAME: "retrieval",
                names.DB_SYSTEM: "qdrant",
                names.DB_COLLECTION: f"user-{number}",
                names.RETRIEVAL_RETURNED: 1,
                names.RETRIEVAL_TOP_SCORE: 0.5,
            },
            metrics,
            None,
        )
    families = {family.metric: family for family in metrics.collect().families}
    assert len(families[names.TOP_SCORE].points) <= 1_001
    assert metrics.total(names.TOP_SCORE) == 3_000


def test_a_store_that_returns_more_than_asked_is_full_not_fuller(store: QdrantClient) -> None:
    """Groups return several hits for each group asked for."""
    store.query_points_groups("docs", query=[1.0, 0.0], group_by="n", limit=2, group_size=1)
    assert only(names.RETURNED_SHARE)[1].sum <= 1.0


def test_the_page_has_the_metrics_under_their_prometheus_names() -> None:
    """Dashboards are generated from these names."""
    assert names.RETURNED_SHARE.prometheus_name == "neuronscope_retrieval_returned_share_ratio"
    assert names.QUERY_NORM_METRIC.prometheus_name == "neuronscope_query_norm"
    assert names.POINTS_WRITTEN.prometheus_name == "neuronscope_store_writes"
