"""The exporters that record a process into a directory, one series of `.nsz` segments for each process."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from neuronscope.exceptions import ConfigError
from neuronscope.exporters import Exporter, ExporterContext
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, Batch, SpanEvent
from neuronscope_exporters.nsz.files import OPEN_SUFFIX
from neuronscope_exporters.nsz.keeper import Keeper, Retention
from neuronscope_exporters.nsz.writer import NszWriter

# How long to wait after a segment could not be begun before the next try.
RETRY_NS: Final = 5_000_000_000
# How often the losses of the rest of the agent are noted in the file.
NOTE_NS: Final = 10_000_000_000


def create(context: ExporterContext) -> Exporter | None:
    """The exporter, if `Settings.nsz` names a directory.

    Raises:
        ConfigError: the directory cannot be made, or not be written to.
    """
    if not context.settings.nsz:
        return None
    directory = Path(context.settings.nsz).expanduser()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(
            f"`nsz` (NEURONSCOPE_NSZ) must be a directory that can be written to; "
            f"{str(directory)!r} is not: {error.strerror}."
        ) from None
    if context.settings.nsz_mode == "flight":
        from neuronscope_exporters.nsz.flight import FlightRecorder

        return FlightRecorder(context, directory)
    share = context.settings.nsz_sample_pct / 100
    if share < 1:
        from neuronscope.sampling import TailSampler
        from neuronscope_exporters.nsz.sampled import SampledExporter

        return SampledExporter(NszExporter(context, directory), TailSampler(share))
    return NszExporter(context, directory)


class Segments:
    """Begins and finishes the segments of one process.  For the worker's thread.

    Args:
        label: what its segments' numbers begin with: ``"flight"``, or nothing.
    """

    def __init__(self, context: ExporterContext, directory: Path, label: str = "") -> None:
        settings = context.settings
        self._context = context
        self._directory = directory
        self._label = label
        self._pid = os.getpid()
        self._series = ""
        self._number = 0
        self._retry_at = 0
        self._previous: str | None = None
        self.lost: Counter[tuple[str, str]] = Counter()
        self.keeper = Keeper(
            directory, Retention(settings.nsz_keep_bytes, settings.nsz_keep_age_s), settings.nsz_sync_s
        )

    def begin(self, *, now_or_never: bool = False) -> NszWriter | None:
        """A new segment; None when there can be none just now.

        Args:
            now_or_never: try it, however short ago it has failed.
        """
        now = time.monotonic_ns()
        if now < self._retry_at and not now_or_never:
            return None
        self._retry_at = now + RETRY_NS
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            writer = NszWriter(
                self._directory / self._file_name(),
                [self._context.resource],
                on_lost=self.count_lost,
                on_written=self._context.count_exported,
                compress_tensors=self._context.settings.nsz_compress_tensors,
                segment=self._number,
                previous_segment=self._previous,
            )
        except OSError:
            return None
        self._retry_at = 0
        self._number += 1
        self._previous = writer.file_id
        self.keeper.watch(Path(writer.path))
        self.keeper.start()
        return writer

    def finish(self, writer: NszWriter, done: Callable[[Path], None] = lambda _: None) -> None:
        """Finish a segment; the disk is waited for, and the name changed, in the background."""
        self.keeper.watch(None)
        if writer.closed:  # deleted: there is nothing to be named
            return
        writer.close()
        self.keeper.finish(Path(writer.path), done)

    def count_lost(self, item: str, reason: str, n: int) -> None:
        """Tell the platform of a loss of ours."""
        self.lost[item, reason] += n
        self._context.count_lost(item, reason, n)

    def lose(self, batch: Batch, reason: str) -> None:
        """Count a batch as lost."""
        kinds: dict[str, Sequence[object]] = {
            "span": batch.spans, "layer": batch.layers, "log": batch.logs, "event": batch.events
        }  # fmt: skip
        for item, records in kinds.items():
            if records:
                self.count_lost(item, reason, len(records))

    def _file_name(self) -> str:
        if not self._series:
            service = self._context.settings.service_name or self._context.resource.get("service.name")
            name = re.sub(r"[^A-Za-z0-9._-]+", "_", str(service or "service"))[:64].lstrip(".") or "service"
            self._series = f"{name}-{self._pid}-{time.time_ns():019}"
        return f"{self._series}.{self._label}{self._number:04}{OPEN_SUFFIX}"


class NszExporter:
    """Writes every batch to this process's segment and hands it to the system before returning.

    A segment is begun with the first batch that has something in it, so that a prefork master or a helper
    process leaves no file; again when it has its size or its age; and when it was deleted.  A forked child
    begins a series of its own.  All methods but `request_dump` are for the worker's thread.
    """

    name = "nsz"

    def __init__(self, context: ExporterContext, directory: Path) -> None:
        self._context = context
        self._directory = directory
        self._segments = Segments(context, directory)
        self._drops = Drops(context)
        self._writer: NszWriter | None = None
        self._begun = 0
        self._pid = os.getpid()
        self._requests: deque[Callable[[str], None]] = deque()

    def export(self, batch: Batch) -> None:
        """Write a batch; what the disk does not take is counted as lost."""
        if self._pid != os.getpid():
            self._pid, self._writer = os.getpid(), None
            self._segments = Segments(self._context, self._directory)
        if batch.spans or batch.layers or batch.logs or (batch.events and self._writer is not None):
            self._write(batch)
        if self._requests:
            self._answer()

    def flush(self, timeout_s: float) -> bool:
        """Every `export` has flushed already; True unless the last one lost something."""
        complete = self._writer is None or self._writer.flush()
        if self._requests:
            self._answer()
        return self._segments.keeper.wait(timeout_s) and complete

    def shutdown(self, timeout_s: float) -> None:
        """Finish the segment, and wait for those that were closed before."""
        if self._pid == os.getpid():
            if self._writer is not None:
                self._note_drops(self._writer)
                self._segments.finish(self._writer)
            self._segments.keeper.stop(timeout_s)
        self._writer = None

    def request_dump(self, reason: str, done: Callable[[str], None]) -> None:
        """Finish the segment at the next export or flush.  Callable from any thread, and from signals.

        Args:
            done: told the segment's path.
        """
        self._requests.append(done)

    def _write(self, batch: Batch) -> None:
        writer = self._segment()
        if writer is None:
            self._segments.lose(batch, "io_error")
            return
        append_batch(writer, batch)
        if self._drops.due():
            self._note_drops(writer)
        writer.flush()

    def _segment(self) -> NszWriter | None:
        """This process's open segment, or None when there can be none just now."""
        settings, writer = self._context.settings, self._writer
        if writer is not None and not writer.closed:
            age_s = (time.monotonic_ns() - self._begun) / 1e9
            if writer.size < settings.nsz_segment_bytes and age_s < settings.nsz_segment_age_s:
                return writer
            self._note_drops(writer)
            self._segments.finish(writer)
        self._writer, self._begun = self._segments.begin(), time.monotonic_ns()
        return self._writer

    def _note_drops(self, writer: NszWriter) -> None:
        for event in self._drops.since(self._segments.lost):
            writer.append_event(event)

    def _answer(self) -> None:
        """Finish the segment for those who asked for it."""
        waiting = list(self._requests)
        self._requests.clear()

        def done(path: Path) -> None:
            for tell in waiting:
                tell(str(path))

        if self._writer is not None:
            self._segments.finish(self._writer, done)
            self._writer = None


def append_batch(writer: NszWriter, batch: Batch) -> None:
    """Everything of a batch."""
    for span in batch.spans:
        writer.append_span(span)
    for layer in batch.layers:
        writer.append_layer(layer)
    for log in batch.logs:
        writer.append_log(log)
    for event in batch.events:
        writer.append_event(event)


class Drops:
    """What the rest of the agent lost, so that a recording says what it lacks.

    The queue's losses are counted in the platform's metrics; here their growth becomes events.
    """

    def __init__(self, context: ExporterContext) -> None:
        self._collect = context.collect
        self._told: Counter[tuple[str, str]] = Counter()
        self._next = time.monotonic_ns() + NOTE_NS

    def due(self) -> bool:
        """Is it time to look again?"""
        now = time.monotonic_ns()
        if now < self._next:
            return False
        self._next = now + NOTE_NS
        return True

    def since(self, own: Counter[tuple[str, str]]) -> list[SpanEvent]:
        """An event for each kind of loss that has grown; `own` losses are in the file already."""
        events: list[SpanEvent] = []
        snapshot = self._collect()
        for family in snapshot.families:
            if family.metric is not names.DROPPED:
                continue
            for point in family.points:
                labels = dict(point.labels)
                key = labels.get("item", ""), labels.get("reason", "")
                total = int(point.value) if isinstance(point.value, float | int) else 0
                grown = total - own[key] - self._told[key]
                if grown > 0:
                    self._told[key] += grown
                    attributes: Attributes = {"item": key[0], "reason": key[1], "count": grown}
                    events.append(SpanEvent("nsz.lost", snapshot.time_unix_ns, attributes))
        return events
