"""Metrics of vector stores: what a search returned, and what was written.  Run by the worker."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

from neuronscope.engine import facts
from neuronscope.engine.metrics import OTHER, Aggregator, labels_of
from neuronscope.signals import names

# `k` is the caller's to choose, so its label is rounded up to one of these: at most so many series.
K_BOUNDS: Final = (*range(1, 11), 12, 15, 20, 25, 30, 40, 50, 75, 100, 200, 500, 1000)

_HISTOGRAMS: Final = (
    (names.TOP_SCORE, names.RETRIEVAL_TOP_SCORE),
    (names.KTH_SCORE, names.RETRIEVAL_KTH_SCORE),
    (names.MARGIN, names.RETRIEVAL_MARGIN),
    (names.QUERY_NORM_METRIC, names.QUERY_NORM),
)


def record_store(
    attributes: Mapping[str, Any], metrics: Aggregator, exemplar: tuple[int, int] | None
) -> None:
    """Aggregate what one call of a vector store contributes; its duration is told elsewhere."""
    written = attributes.get(names.WRITE_COUNT)
    if isinstance(written, int):
        metrics.add(names.POINTS_WRITTEN, written, labels_of(names.POINTS_WRITTEN, attributes))
    if facts.is_retrieval(attributes) and names.RETRIEVAL_RETURNED in attributes:
        _record_search(attributes, metrics, exemplar)


def _record_search(
    attributes: Mapping[str, Any], metrics: Aggregator, exemplar: tuple[int, int] | None
) -> None:
    k = attributes.get(names.RETRIEVAL_TOP_K)
    labels = labels_of(names.RETRIEVALS, {**attributes, names.RETRIEVAL_TOP_K: k_label(k)})
    queries = (
        _positive(attributes.get(names.QUERY_COUNT)) or _positive(attributes.get(names.DB_BATCH_SIZE)) or 1
    )
    metrics.add(names.RETRIEVALS, queries, labels)
    if attributes.get(names.RETRIEVAL_EMPTY):
        metrics.add(names.RETRIEVALS_EMPTY, 1, labels)
    returned = attributes[names.RETRIEVAL_RETURNED]
    if asked := _positive(k):
        # A store that returns more than was asked for (groups) is not better than one that returns all.
        metrics.observe(names.RETURNED_SHARE, min(1.0, returned / (asked * queries)), labels, exemplar)
    for metric, key in _HISTOGRAMS:
        value = attributes.get(key)
        if isinstance(value, int | float):
            metrics.observe(metric, value, labels, exemplar)


def k_label(k: object) -> str:
    """The label of how many hits were asked for; ``other`` if that is unknown or very many."""
    asked = _positive(k)
    if asked is None:
        return OTHER
    index = bisect_left(K_BOUNDS, asked)
    return str(K_BOUNDS[index]) if index < len(K_BOUNDS) else OTHER


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
