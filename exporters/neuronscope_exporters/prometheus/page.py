"""From a metrics snapshot to the page: Prometheus's text format 0.0.4, or OpenMetrics 1.0 with exemplars.

Names and units come from the signal registry by OpenTelemetry's rules for Prometheus; the resource is
`target_info`.  Whatever would make a scrape fail is left out here, so that one bad series never costs the
others: a non-finite value, a second family of the same name, a second series of the same labels.

prometheus_client could write both formats, and reads them in our tests; but it takes 50 µs a line, and a
scrape holds the GIL of a service.  Here the labels of a series are written once and kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, TypeAlias

from neuronscope.signals.names import Instrument, Metric
from neuronscope.signals.names import prometheus_label as label_name
from neuronscope.signals.records import (
    Attributes,
    Exemplar,
    HistogramValue,
    MetricFamily,
    MetricsSnapshot,
)

UNITS: Final = {
    "s": "seconds",
    "By": "bytes",
    "1": "ratio",
    "%": "percent",
    "Cel": "celsius",
    "W": "watts",
    "J": "joules",
}
_TARGET: Final = "Resource attributes of this process."
MAX_KEPT: Final = 20_000  # label sets whose text is kept from scrape to scrape
Labels: TypeAlias = tuple[tuple[str, str], ...]
Snapshot: TypeAlias = Callable[[], MetricsSnapshot]


class MetricsPage:
    """Writes the page anew for each scrape.  Thread-safe if `snapshot` is.

    Args:
        snapshot: takes a consistent copy of all metrics.
        resource: OTel resource attributes of the process.
    """

    def __init__(self, snapshot: Snapshot, resource: Attributes) -> None:
        self._snapshot = snapshot
        self._target = labels_text(
            tuple((key, str(value)) for key, value in resource.items() if not _is_list(value))
        )
        self._written: dict[Labels, str] = {}

    def text(self, *, openmetrics: bool) -> bytes:
        """The page of this moment, each family once."""
        lines: list[str] = []
        name = "target" if openmetrics else "target_info"
        lines += (
            f"# HELP {name} {_TARGET}",
            f"# TYPE {name} {'info' if openmetrics else 'gauge'}",
            f"target_info{{{self._target}}} 1.0",
        )
        seen = {"target"}
        for source in self._snapshot().families:
            name = source.metric.prometheus_name
            if name not in seen:
                samples = list(self._samples(source, name, exemplars=openmetrics))
                if samples:
                    seen.add(name)
                    lines += head(source.metric, name, openmetrics=openmetrics)
                    lines += samples
        if openmetrics:
            lines.append("# EOF")
        lines.append("")
        return "\n".join(lines).encode()

    def _samples(self, source: MetricFamily, name: str, *, exemplars: bool) -> Iterator[str]:
        metric, seen = source.metric, set[str]()
        bounds = [f'le="{number(bound)}"}} ' for bound in (*metric.buckets, math.inf)]
        suffix = "_total" if metric.instrument is Instrument.COUNTER else ""
        for point in source.points:
            labels = self._labels(point.labels)
            if labels in seen or not is_finite(point.value):
                continue
            seen.add(labels)
            if isinstance(point.value, HistogramValue):
                yield from _histogram(metric, name, bounds, labels, point.value, exemplars=exemplars)
            else:
                yield f"{name}{suffix}{f'{{{labels}}}' if labels else ''} {number(point.value)}"

    def _labels(self, labels: Labels) -> str:
        text = self._written.get(labels)
        if text is None:
            if len(self._written) >= MAX_KEPT:
                self._written.clear()
            text = self._written[labels] = labels_text(labels)
        return text


def head(metric: Metric, name: str, *, openmetrics: bool) -> Iterator[str]:
    """The lines before a family's samples."""
    kind = metric.instrument.value
    if kind == "counter" and not openmetrics:
        name += "_total"
    brief = metric.brief.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        brief = brief.replace('"', r"\"")
    yield f"# HELP {name} {brief}"
    yield f"# TYPE {name} {kind}"
    unit = UNITS.get(metric.unit, "")
    if openmetrics and unit and name.endswith(f"_{unit}"):
        yield f"# UNIT {name} {unit}"


def _histogram(
    metric: Metric, name: str, bounds: list[str], labels: str, value: HistogramValue, *, exemplars: bool
) -> Iterator[str]:
    start = f"{name}_bucket{{{labels}{',' if labels else ''}"
    counts = map(float, accumulate(value.counts))
    if exemplars and any(value.exemplars):
        known = [*value.exemplars, *[None] * len(bounds)]
        for bound, count, exemplar in zip(bounds, counts, known, strict=False):
            yield f"{start}{bound}{count}{_exemplar(exemplar)}"
    else:
        for bound, count in zip(bounds, counts, strict=False):
            yield f"{start}{bound}{count}"
    # OpenMetrics: with negative observations the sum is no counter, and without a sum there is no count.
    if not metric.buckets or metric.buckets[0] >= 0:
        braced = f"{{{labels}}}" if labels else ""
        yield f"{name}_count{braced} {float(value.count)}"
        yield f"{name}_sum{braced} {number(value.sum)}"


def _exemplar(exemplar: Exemplar | None) -> str:
    """Trace and span id, and nothing else: 63 of the 128 characters that OpenMetrics allows."""
    if exemplar is None or not math.isfinite(exemplar.value):
        return ""
    return (
        f' # {{span_id="{exemplar.span_id:016x}",trace_id="{exemplar.trace_id:032x}"}}'
        f" {number(exemplar.value)} {exemplar.time_unix_ns / 1e9}"
    )


def number(value: float) -> str:
    """A number as both formats read it."""
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"


def labels_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Labels as they stand between the braces."""
    labels = labels_of(pairs)
    return ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))


def labels_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Labels in Prometheus's alphabet; values whose names fall together are joined, as OTel has it."""
    labels: dict[str, str] = {}
    for key, value in pairs:
        name = label_name(key)
        # No wire format carries lone surrogates.
        text = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        labels[name] = f"{labels[name]};{text}" if name in labels else text
    return labels


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def is_finite(value: float | HistogramValue) -> bool:
    """May it be told?  NaN and Inf would be in every sum of it for ever."""
    return math.isfinite(value.sum if isinstance(value, HistogramValue) else value)


def _is_list(value: object) -> bool:
    return not isinstance(value, str | bool | int | float)
