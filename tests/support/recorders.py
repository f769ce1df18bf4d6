"""A recorder's exporter with the platform around it, as its tests need it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.trace import SpanKind

from neuronscope.exporters import Exporter, ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import (
    LayerRecord,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
    SpanRecord,
)
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz


def span(number: int, *, parent: int | None = None, trace: int = 1, **changes: Any) -> SpanRecord:
    attributes = {"n": number, **changes.pop("attributes", {})}
    return SpanRecord(
        trace,
        number,
        "chat",
        SpanKind.CLIENT,
        number,
        number + 5,
        attributes,
        parent_span_id=parent,
        **changes,
    )


def layer(step: int, size: int = 1024) -> LayerRecord:
    tensor = TensorSnapshot.from_numpy(np.full(size, step, "f4"))
    return LayerRecord("m", "layers.0", step, step, (size,), "F32", tensor=tensor)


class Host:
    """The platform, as an exporter sees it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.exported: Counter[str] = Counter()
        self.dropped: dict[tuple[str, str], int] = {}
        given: dict[str, Any] = {"nsz_sync_s": 0.0, **settings}
        self.settings = Settings(nsz=str(directory), service_name="rag", **given)

    def make(self) -> Exporter:
        context = ExporterContext(self.settings, {}, self.collect, self.count_lost, self.count_exported)
        exporter = nsz.create(context)
        assert exporter is not None
        return exporter

    def collect(self) -> MetricsSnapshot:
        totals = Counter(self.dropped) + self.lost
        points = [MetricPoint((("item", item), ("reason", why)), n) for (item, why), n in totals.items()]
        return MetricsSnapshot([MetricFamily(names.DROPPED, points)], 0, 7)

    def count_lost(self, item: str, reason: str, n: int) -> None:
        self.lost[item, reason] += n

    def count_exported(self, item: str, n: int) -> None:
        self.exported[item] += n


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
