"""Our metrics as families of prometheus_client, for services that serve their own registry.

::

    from neuronscope_exporters.prometheus import MetricsCollector

    REGISTRY.register(MetricsCollector())  # before the service's own /metrics is scraped

What is left out of the page is left out here, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PageExemplar

from neuronscope.engine import ENGINE
from neuronscope.signals.names import Instrument, Metric
from neuronscope.signals.records import Exemplar, HistogramValue, MetricFamily, MetricPoint
from neuronscope_exporters.prometheus.page import UNITS, Snapshot, is_finite, labels_of, number

_TYPES: Final = {
    Instrument.COUNTER: "counter",
    Instrument.GAUGE: "gauge",
    Instrument.HISTOGRAM: "histogram",
}


class MetricsCollector(Collector):
    """Collects the families anew for each scrape.  Thread-safe if `snapshot` is.

    Args:
        snapshot: takes a consistent copy of all metrics; the agent's, if none is given.
    """

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._snapshot = snapshot or ENGINE.metrics.collect

    def describe(self) -> Iterator[Family]:
        """Nothing: what there will be is not known when a registry asks."""
        yield from ()

    def collect(self) -> Iterator[Family]:
        """The families of this moment, each name once."""
        seen = set[str]()
        for source in self._snapshot().families:
            family = _family(source)
            if family.name not in seen and family.samples:
                seen.add(family.name)
                yield family


def _family(source: MetricFamily) -> Family:
    metric = source.metric
    unit = UNITS.get(metric.unit, "")
    name = metric.prometheus_name
    family = Family(name, metric.brief, _TYPES[metric.instrument], unit if name.endswith(f"_{unit}") else "")
    bounds = [number(bound) for bound in (*metric.buckets, math.inf)]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for point in source.points:
        labels = labels_of(point.labels)
        key = tuple(labels.items())
        if key not in seen and is_finite(point.value):
            seen.add(key)
            _add_point(family, metric, bounds, labels, point)
    return family


def _add_point(
    family: Family, metric: Metric, bounds: list[str], labels: dict[str, str], point: MetricPoint
) -> None:
    value = point.value
    if not isinstance(value, HistogramValue):
        suffix = "_total" if metric.instrument is Instrument.COUNTER else ""
        family.add_sample(family.name + suffix, labels, value)
        return
    exemplars = [*value.exemplars, *[None] * len(bounds)]
    for bound, count, exemplar in zip(bounds, accumulate(value.counts), exemplars, strict=False):
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count, None, _exemplar(exemplar))
    # OpenMetrics: with negative observations the sum is no counter, and without a sum there is no count.
    if not metric.buckets or metric.buckets[0] >= 0:
        family.add_sample(f"{family.name}_count", labels, value.count)
        family.add_sample(f"{family.name}_sum", labels, value.sum)


def _exemplar(exemplar: Exemplar | None) -> PageExemplar | None:
    """Trace and span id, and nothing else: 63 of the 128 characters that OpenMetrics allows."""
    if exemplar is None or not math.isfinite(exemplar.value):
        return None
    labels = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
    return PageExemplar(labels, exemplar.value, exemplar.time_unix_ns / 1e9)
