"""The exporter that records a process into a directory: one `.nsz` segment per process."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import Final

from neuronscope.exceptions import ConfigError
from neuronscope.exporters import ExporterContext
from neuronscope.signals.records import Batch
from neuronscope_exporters.nsz.files import SUFFIX
from neuronscope_exporters.nsz.writer import NszWriter

# How long to wait after a segment could not be begun before the next try.
RETRY_NS: Final = 5_000_000_000


def create(context: ExporterContext) -> NszExporter | None:
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
    return NszExporter(context, directory)


class NszExporter:
    """Writes every batch to this process's segment and hands it to the system before returning.

    The segment is begun with the first batch that has something in it, so that a prefork master or a
    helper process leaves no file.  A forked child begins its own.  When the segment was deleted, a new
    one is begun.  For the worker's thread.
    """

    name = "nsz"

    def __init__(self, context: ExporterContext, directory: Path) -> None:
        self._context = context
        self._directory = directory
        self._writer: NszWriter | None = None
        self._pid = 0
        self._retry_at = 0

    def export(self, batch: Batch) -> None:
        """Write a batch; what the disk does not take is counted as lost."""
        if not batch.spans and not batch.layers:
            return
        writer = self._segment()
        if writer is None:
            self._lose(batch)
            return
        for span in batch.spans:
            writer.append_span(span)
        for layer in batch.layers:
            writer.append_layer(layer)
        writer.flush()

    def flush(self, timeout_s: float) -> bool:
        """Every `export` has flushed already; True unless the last one lost something."""
        return self._writer is None or self._writer.flush()

    def shutdown(self, timeout_s: float) -> None:
        """Finish the segment."""
        if self._writer is not None and self._pid == os.getpid():
            self._writer.close()
        self._writer = None

    def _segment(self) -> NszWriter | None:
        """This process's open segment, or None when there can be none just now."""
        if self._writer is not None and self._pid != os.getpid():
            self._writer.abandon()
            self._writer = None
        if self._writer is not None and not self._writer.closed:
            return self._writer
        now = time.monotonic_ns()
        if self._pid == os.getpid() and now < self._retry_at:
            return None
        self._pid, self._retry_at = os.getpid(), now + RETRY_NS
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._writer = NszWriter(
                self._directory / self._file_name(),
                [self._context.resource],
                on_lost=self._context.count_lost,
                on_written=self._context.count_exported,
            )
        except OSError:
            self._writer = None
        return self._writer

    def _file_name(self) -> str:
        service = self._context.settings.service_name or self._context.resource.get("service.name")
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", str(service or "service"))[:64].lstrip(".") or "service"
        return f"{name}-{os.getpid()}-{time.time_ns()}{SUFFIX}"

    def _lose(self, batch: Batch) -> None:
        for item, records in (("span", batch.spans), ("layer", batch.layers)):
            if records:
                self._context.count_lost(item, "io_error", len(records))
