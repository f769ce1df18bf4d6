"""`ExportMetricsServiceRequest`s from the aggregator's snapshot: cumulative, with exemplars.

Source: opentelemetry-proto, metrics/v1/metrics.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from neuronscope.signals.names import ATTRIBUTES, Instrument, Metric
from neuronscope.signals.records import (
    Attributes,
    AttributeScalar,
    Exemplar,
    HistogramValue,
    MetricPoint,
    MetricsSnapshot,
)
from neuronscope_exporters.otlp.attributes import AttributeEncoder
from neuronscope_exporters.otlp.requests import MAX_BYTES, Payload, encode_resource, encode_scope
from neuronscope_exporters.otlp.wire import delimited, double, fixed64, string

Labels = tuple[tuple[str, str], ...]
_MAX_KNOWN: Final = 4096
_CUMULATIVE: Final = b"\x10\x02"  # aggregation_temporality = 2
_MONOTONIC: Final = b"\x18\x01"  # Sum.is_monotonic = 3
_READ: Final[dict[str, Callable[[str], AttributeScalar]]] = {
    "int": int,
    "double": float,
    "boolean": lambda text: text.lower() == "true",
}


class MetricEncoder:
    """Turns snapshots into requests of bounded size.

    Args:
        lost: ``lost(reason, n)`` is told of points that are no valid OTLP.
    """

    def __init__(self, lost: Callable[[str, int], None], *, max_bytes: int = MAX_BYTES) -> None:
        self._lost = lost
        self._max_bytes = max_bytes
        self._attributes = AttributeEncoder()
        self._known: dict[tuple[Labels, bytes], bytes] = {}

    def encode(self, resource: Attributes, snapshot: MetricsSnapshot) -> Iterator[Payload]:
        """The snapshot as one request, or several when it's large; nothing when it's empty."""
        scope = encode_scope("neuronscope")
        head = encode_resource(resource)
        start = b"\x11" + fixed64(snapshot.start_unix_ns)  # start_time_unix_nano = 2 in all points
        now = b"\x19" + fixed64(snapshot.time_unix_ns)  # time_unix_nano = 3
        metrics: list[bytes] = []
        size, count = 0, 0
        for family in snapshot.families:
            for points in self._chunks(family.metric, family.points, start, now):
                encoded = b"\x12" + delimited(_metric(family.metric, points))  # ScopeMetrics.metrics = 2
                if metrics and size + len(encoded) > self._max_bytes:
                    yield _request(head, scope, metrics, count)
                    metrics, size, count = [], 0, 0
                metrics.append(encoded)
                size += len(encoded)
                count += len(points)
        if metrics:
            yield _request(head, scope, metrics, count)

    def _chunks(
        self, metric: Metric, points: Sequence[MetricPoint], start: bytes, now: bytes
    ) -> Iterator[list[bytes]]:
        """Encoded points of a metric, in lists that fit a request."""
        chunk: list[bytes] = []
        size = 0
        for point in points:
            encoded = self._point(metric, point, start, now)
            if encoded is None:
                self._lost("unencodable", 1)
                continue
            if chunk and size + len(encoded) > self._max_bytes - 1024:
                yield chunk
                chunk, size = [], 0
            chunk.append(b"\x0a" + delimited(encoded))  # data_points = 1 of every kind
            size += len(chunk[-1])
        if chunk:
            yield chunk

    def _point(self, metric: Metric, point: MetricPoint, start: bytes, now: bytes) -> bytes | None:
        if isinstance(point.value, HistogramValue):
            if metric.instrument is not Instrument.HISTOGRAM:
                return None
            value = _histogram(metric, point.value)
            attributes = self._labels(point.labels, b"\x4a")  # attributes = 9
        else:
            if metric.instrument is Instrument.HISTOGRAM or not math.isfinite(point.value):
                return None
            # Always a double: a series that changes between integer and double breaks backends.
            value = b"\x21" + double(point.value)  # as_double = 4
            attributes = self._labels(point.labels, b"\x3a")  # attributes = 7
        if value is None:
            return None
        return (now if metric.instrument is Instrument.GAUGE else start + now) + value + attributes

    def _labels(self, labels: Labels, tag: bytes) -> bytes:
        """A point's attributes, remembered: the same series come with every push."""
        encoded = self._known.get((labels, tag))
        if encoded is None:
            typed = {key: _typed(key, text) for key, text in labels if text}
            encoded, _ = self._attributes.encode(typed, tag)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[labels, tag] = encoded
        return encoded


def _histogram(metric: Metric, histogram: HistogramValue) -> bytes | None:
    counts, bounds = histogram.counts, metric.buckets
    if len(counts) != len(bounds) + 1 or not math.isfinite(histogram.sum):
        return None
    exemplars = [_exemplar(exemplar) for exemplar in histogram.exemplars if exemplar is not None]
    return b"".join(
        (
            b"\x21" + fixed64(histogram.count),  # count = 4
            b"\x29" + double(histogram.sum),  # sum = 5
            b"\x32" + delimited(struct.pack(f"<{len(counts)}Q", *counts)),  # bucket_counts = 6
            b"\x3a" + delimited(struct.pack(f"<{len(bounds)}d", *bounds)),  # explicit_bounds = 7
            *[b"\x42" + delimited(exemplar) for exemplar in exemplars],  # exemplars = 8
        )
    )


def _exemplar(exemplar: Exemplar) -> bytes:
    return b"".join(
        (
            b"\x11" + fixed64(exemplar.time_unix_ns),  # time_unix_nano = 2
            b"\x19" + double(exemplar.value),  # as_double = 3
            b"\x22\x08" + exemplar.span_id.to_bytes(8, "big"),  # span_id = 4
            b"\x2a\x10" + exemplar.trace_id.to_bytes(16, "big"),  # trace_id = 5
        )
    )


def _metric(metric: Metric, points: list[bytes]) -> bytes:
    data = b"".join(points)
    if metric.instrument is Instrument.HISTOGRAM:
        data = b"\x4a" + delimited(data + _CUMULATIVE)  # histogram = 9
    elif metric.instrument is Instrument.COUNTER:
        data = b"\x3a" + delimited(data + _CUMULATIVE + _MONOTONIC)  # sum = 7
    else:
        data = b"\x2a" + delimited(data)  # gauge = 5
    # name = 1, description = 2, unit = 3
    named = b"\x0a" + string(metric.name) + b"\x12" + string(metric.brief)
    return named + b"\x1a" + string(metric.unit) + data


def _typed(label: str, text: str) -> AttributeScalar:
    """A label's value in the type that the attribute of that name has; text when it can't be (`other`)."""
    attribute = ATTRIBUTES.get(label)
    read = _READ.get(attribute.type) if attribute is not None else None
    if read is None:
        return text
    try:
        return read(text)
    except ValueError:
        return text


def _request(head: bytes, scope: bytes, metrics: list[bytes], count: int) -> Payload:
    body = head + b"\x12" + delimited(scope + b"".join(metrics))  # ResourceMetrics.scope_metrics = 2
    return Payload(b"\x0a" + delimited(body), count)  # resource_metrics = 1
