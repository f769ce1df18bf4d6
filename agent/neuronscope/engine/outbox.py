"""What the worker has finished, until the next export; and whom it goes to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from neuronscope.engine.guard import GUARD
from neuronscope.engine.sizes import log_bytes
from neuronscope.exporters import Exporter
from neuronscope.signals.records import Attributes, Batch, LayerRecord, LogRecord, SpanEvent, SpanRecord

MAX_BATCH_SPANS: Final = 512
MAX_BATCH_BYTES: Final = 8 << 20
ExporterSource = Sequence[Exporter] | Callable[[], Sequence[Exporter]]


class Outbox:
    """Gathers records into batches.  Filled and taken from under the worker's locks.

    Args:
        exporters: where records go; or what makes them, called by `prepare`.
        resource: the process's resource attributes.

    Attributes:
        spans, layers, logs: finished, waiting for the next export.
        nbytes: about what these take.
    """

    __slots__ = ("_exporters", "_make_exporters", "_resource", "layers", "logs", "nbytes", "spans")

    def __init__(self, exporters: ExporterSource, resource: Attributes) -> None:
        self._make_exporters = exporters if callable(exporters) else None
        self._exporters = [] if callable(exporters) else list(exporters)
        self._resource = resource
        self._empty()

    def _empty(self) -> None:
        self.spans: list[SpanRecord] = []
        self.layers: list[LayerRecord] = []
        self.logs: list[LogRecord] = []
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self.spans or self.layers or self.logs)

    @property
    def full(self) -> bool:
        """Is there a batch's worth?"""
        return len(self.spans) + len(self.logs) >= MAX_BATCH_SPANS or self.nbytes >= MAX_BATCH_BYTES

    def add_log(self, record: LogRecord) -> None:
        """Take a finished log record."""
        self.logs.append(record)
        self.nbytes += log_bytes(record)

    def take(self, events: Sequence[SpanEvent]) -> Batch | None:
        """Everything, with the agent's own events, as a batch; None if there is nothing."""
        if not (self or events):
            return None
        batch = Batch(self._resource, tuple(self.spans), tuple(self.layers), tuple(self.logs), tuple(events))
        self._empty()
        return batch

    # --- exporters ---------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Make the exporters, if they are not there yet."""
        make, self._make_exporters = self._make_exporters, None
        if make is not None:
            self._exporters = list(make())

    def send(self, batch: Batch) -> None:
        """Hand a batch to each exporter."""
        for exporter in self._exporters:
            GUARD.contain(f"exporter.{exporter.name}", exporter.export, batch)

    def flush(self, deadline: float) -> bool:
        """Have the exporters send what they hold; True if all of it went before `deadline`."""
        done = True
        for exporter in self._exporters:
            left = max(0.0, deadline - time.monotonic())
            done = bool(GUARD.contain(f"exporter.{exporter.name}", exporter.flush, left)) and done
        return done

    def close(self, deadline: float) -> None:
        """Shut the exporters down."""
        for exporter in self._exporters:
            GUARD.contain(
                f"exporter.{exporter.name}", exporter.shutdown, max(0.0, deadline - time.monotonic())
            )
