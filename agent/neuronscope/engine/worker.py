"""The worker: one daemon thread per process that turns notes into records and hands them on.

The service's threads only append to a queue.  The queue is bounded by count and by bytes; when it
fills, full tensors go first, then summaries, then spans, each drop counted.  Work is sliced: after
`SLICE` spans the GIL is offered to others, since building a large batch in one go delays their
wake-ups by milliseconds (research/perf.md §1).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from neuronscope.engine.guard import GUARD
from neuronscope.exporters import Exporter
from neuronscope.recording import Recording
from neuronscope.signals.records import Attributes, Batch, Fidelity, LayerRecord, SpanRecord

SLICE: Final = 16
IDLE_S: Final = 0.05
# Share of the byte limit beyond which full tensors, and then summaries, are turned away.
TENSOR_SHARE: Final = 0.5
SUMMARY_SHARE: Final = 0.8
MAX_BATCH_SPANS: Final = 512
MAX_BATCH_BYTES: Final = 8 << 20
SPAN_BYTES: Final = 4096  # what a queued span with its request and response holds, about


@dataclass(frozen=True, slots=True)
class LayerItem:
    """A layer record on its way, and the scope it belongs to."""

    record: LayerRecord
    recording: Recording | None


class Finisher(Protocol):
    """Turns a queued item into a record; runs in the worker's thread."""

    def __call__(self, item: Any) -> SpanRecord | None:
        """The finished, masked span."""
        ...


class Worker:
    """Owns the queue, the thread and the exporters of one process.

    Args:
        finish: makes a `SpanRecord` of a queued item.
        exporters: where records go.
        resource: the process's resource attributes.
        interval_s: seconds between exports.
        count_lost: ``(item, reason, n)``.
        on_cpu: told the worker's CPU time in ns after each round.
        inline: finish and export in the caller's thread instead.
    """

    def __init__(
        self,
        finish: Finisher,
        exporters: Sequence[Exporter],
        resource: Attributes,
        *,
        interval_s: float,
        max_spans: int,
        max_bytes: int,
        count_lost: Callable[[str, str, int], None],
        on_cpu: Callable[[int], None],
        inline: bool = False,
    ) -> None:
        self._finish = finish
        self._exporters = list(exporters)
        self._resource = resource
        self._interval_s = interval_s
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._count_lost = count_lost
        self._on_cpu = on_cpu
        self._inline = inline
        self._queue: deque[tuple[Any, int]] = deque()
        self._added = 0
        self._removed = 0
        self._count_lock = (
            threading.RLock()
        )  # by producers only; re-entered when garbage collection ends a stream
        self._work_lock = threading.RLock()  # taken by whoever does the worker's work
        self._wake = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None
        self._spans: list[SpanRecord] = []
        self._layers: list[LayerRecord] = []
        self._batch_bytes = 0
        self._last_export = time.monotonic()

    # --- producers ---------------------------------------------------------------------------------
    @property
    def pending(self) -> int:
        """Items in the queue."""
        return len(self._queue)

    def put(self, item: Any, nbytes: int = SPAN_BYTES) -> None:
        """Queue an item.  Never blocks; what does not fit is dropped and counted."""
        if self._stop:
            self._count_lost("span", "stopped", 1)
            return
        if len(self._queue) >= self._max_spans or self._added - self._removed + nbytes > self._max_bytes:
            self._count_lost("layer" if isinstance(item, LayerItem) else "span", "queue_full", 1)
            return
        with self._count_lock:
            self._added += nbytes
        self._queue.append((item, nbytes))
        if self._inline:
            self._work(export=True)
        elif self._thread is None:
            self._start()

    def put_layer(self, record: LayerRecord, recording: Recording | None) -> None:
        """Queue a layer record; a full tensor falls back to its summary when space is short."""
        used = self._added - self._removed
        nbytes = record.nbytes + 512
        if record.tensor is not None and used + nbytes > TENSOR_SHARE * self._max_bytes:
            self._count_lost("tensor", "queue_full", 1)
            record = replace(record, tensor=None, fidelity=Fidelity.SUMMARY)
            nbytes = 512
        if used + nbytes > SUMMARY_SHARE * self._max_bytes:
            self._count_lost("layer", "queue_full", 1)
            return
        self.put(LayerItem(record, recording), nbytes)

    def _start(self) -> None:
        with self._count_lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="neuronscope-worker", daemon=True)
            self._thread.start()

    # --- the thread --------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(IDLE_S)
            self._wake.clear()
            GUARD.call("worker", self._work)

    def _work(self, export: bool = False) -> None:
        """Process what is queued; export when it is time, or when asked to."""
        with self._work_lock:
            before = time.thread_time_ns()
            while self._queue:
                for _ in range(min(SLICE, len(self._queue))):
                    item, nbytes = self._queue.popleft()
                    self._removed += nbytes
                    self._take(item, nbytes)
                if len(self._spans) >= MAX_BATCH_SPANS or self._batch_bytes >= MAX_BATCH_BYTES:
                    self._export()
                if not self._inline:
                    time.sleep(0)  # offers the GIL to a waiting thread of the service
            due = time.monotonic() - self._last_export >= self._interval_s
            if export or due:
                self._export()
            self._on_cpu(time.thread_time_ns() - before)

    def _take(self, item: Any, nbytes: int) -> None:
        if isinstance(item, LayerItem):
            self._layers.append(item.record)
            self._batch_bytes += nbytes
            if item.recording is not None:
                item.recording.add_layer(item.record)
            return
        record = GUARD.call("worker.finish", self._finish, item)
        if record is not None:
            self._spans.append(record)
            self._batch_bytes += nbytes

    def _export(self) -> None:
        self._last_export = time.monotonic()
        if not self._spans and not self._layers:
            return
        batch = Batch(self._resource, tuple(self._spans), tuple(self._layers))
        self._spans, self._layers, self._batch_bytes = [], [], 0
        for exporter in self._exporters:
            GUARD.call(f"exporter.{exporter.name}", exporter.export, batch)

    # --- owners ------------------------------------------------------------------------------------
    def flush(self, timeout_s: float) -> bool:
        """Process and export everything queued so far; True if it went within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        if not self._work_lock.acquire(timeout=max(0.0, timeout_s)):
            return False
        try:
            GUARD.call("worker", self._work, True)
        finally:
            self._work_lock.release()
        done = True
        for exporter in self._exporters:
            left = max(0.0, deadline - time.monotonic())
            done = bool(GUARD.call(f"exporter.{exporter.name}", exporter.flush, left)) and done
        return done

    def drain(self, timeout_s: float) -> bool:
        """Process everything queued so far, without waiting for any exporter."""
        if not self._work_lock.acquire(timeout=max(0.0, timeout_s)):
            return False
        try:
            GUARD.call("worker", self._work)
        finally:
            self._work_lock.release()
        return True

    def stop(self, timeout_s: float) -> None:
        """Flush, shut the exporters down, end the thread; all within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        if self._work_lock.acquire(timeout=max(0.0, timeout_s)):
            try:
                GUARD.call("worker", self._work, True)
            finally:
                self._work_lock.release()
        self._stop = True
        self._wake.set()
        for exporter in self._exporters:
            left = max(0.0, deadline - time.monotonic())
            GUARD.call(f"exporter.{exporter.name}", exporter.shutdown, left)
        lost = len(self._queue)
        if lost:
            self._count_lost("span", "stopped", lost)
