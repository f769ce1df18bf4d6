"""An exporter for tests."""

from __future__ import annotations

from neuronscope import native
from neuronscope.signals.records import Batch, LayerRecord, LogRecord, SpanRecord


class InMemoryExporter:
    """Keeps every record it is given.  Thread-safe."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = native.new_lock()
        self._spans: list[SpanRecord] = []
        self._layers: list[LayerRecord] = []
        self._logs: list[LogRecord] = []

    @property
    def spans(self) -> list[SpanRecord]:
        """Spans so far, in the order they were exported."""
        with self._lock:
            return list(self._spans)

    @property
    def layers(self) -> list[LayerRecord]:
        """Layer records so far."""
        with self._lock:
            return list(self._layers)

    @property
    def logs(self) -> list[LogRecord]:
        """Log records so far: events, and what the service logged."""
        with self._lock:
            return list(self._logs)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._spans.clear()
            self._layers.clear()
            self._logs.clear()

    def export(self, batch: Batch) -> None:
        """Keep a batch."""
        with self._lock:
            self._spans += batch.spans
            self._layers += batch.layers
            self._logs += batch.logs

    def flush(self, timeout_s: float) -> bool:
        """Nothing is buffered."""
        return True

    def shutdown(self, timeout_s: float) -> None:
        """Records stay readable."""
