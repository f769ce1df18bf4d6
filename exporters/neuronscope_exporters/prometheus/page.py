"""From a metrics snapshot to the families of prometheus_client, which writes both text formats.

Names and units come from the signal registry by OpenTelemetry's rules for Prometheus; the resource is
`target_info`.  Whatever would make a scrape fail is left out here, so that one bad series never costs the
others: a non-finite value, a second family of the same name, a second series of the same labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, cast

from prometheus_client import utils
from prometheus_client.core import InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PageExemplar

from neuronscope.signals.names import Instrument, Metric
from neuronscope.signals.records import (
    Attributes,
    Exemplar,
    HistogramValue,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
)

_TYPES: Final = {
    Instrument.COUNTER: "counter",
    Instrument.GAUGE: "gauge",
    Instrument.HISTOGRAM: "histogram",
}
_number = cast("Callable[[float], str]", utils.floatToGoString)
_UNITS: Final = {"s": "seconds", "By": "bytes", "1": "ratio", "%": "percent"}


class MetricsPage(Collector):
    """Collects the page anew for each scrape.  Thread-safe if `snapshot` is.

    Args:
        snapshot: takes a consistent copy of all metrics.
        resource: OTel resource attributes of the process.
    """

    def __init__(self, snapshot: Callable[[], MetricsSnapshot], resource: Attributes) -> None:
        self._snapshot = snapshot
        self._target = _target_info(resource)

    def collect(self) -> Iterator[Family]:
        """The families of this moment, each name once."""
        yield self._target
        seen = {self._target.name}
        for source in self._snapshot().families:
            family = _family(source)
            if family.name not in seen and family.samples:
                seen.add(family.name)
                yield family


def _target_info(resource: Attributes) -> Family:
    labels = _labels((key, str(value)) for key, value in resource.items() if not _is_list(value))
    return InfoMetricFamily("target", "Resource attributes of this process.", labels)


def _family(source: MetricFamily) -> Family:
    metric = source.metric
    unit = _UNITS.get(metric.unit, "")
    name = metric.prometheus_name
    family = Family(name, metric.brief, _TYPES[metric.instrument], unit if name.endswith(f"_{unit}") else "")
    bounds = [*map(_number, metric.buckets), "+Inf"]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for point in source.points:
        labels = _labels(point.labels)
        key = tuple(labels.items())
        if key not in seen and _is_finite(point.value):
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


def _labels(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Labels in Prometheus's alphabet; values whose names fall together are joined, as OTel has it."""
    labels: dict[str, str] = {}
    for key, value in pairs:
        name = label_name(key)
        # No wire format carries lone surrogates.
        text = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        labels[name] = f"{labels[name]};{text}" if name in labels else text
    return labels


def label_name(key: str) -> str:
    """An attribute key as a label name: ``db.collection.name`` becomes ``db_collection_name``."""
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in key)
    if name.startswith("__"):  # reserved by Prometheus
        name = "key" + name
    return name if name and not name[0].isdigit() else f"key_{name}"


def _is_finite(value: float | HistogramValue) -> bool:
    return math.isfinite(value.sum if isinstance(value, HistogramValue) else value)


def _is_list(value: object) -> bool:
    return not isinstance(value, str | bool | int | float)
