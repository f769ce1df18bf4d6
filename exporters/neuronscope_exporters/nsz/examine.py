"""For `neuronscope doctor`: can a recording be written where it should be, and be read back?"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.trace import SpanKind

from neuronscope.exceptions import NeuronscopeError
from neuronscope.exporters import Examination, ExporterContext
from neuronscope.signals.records import Batch, SpanRecord
from neuronscope_exporters.nsz.exporter import NszExporter
from neuronscope_exporters.nsz.files import recordings
from neuronscope_exporters.nsz.reader import NszFile

NAME = "neuronscope.doctor"


def examine(context: ExporterContext) -> Iterator[Examination]:
    """Write a span into a folder beside the recordings, read it back, and remove the folder."""
    directory = Path(context.settings.nsz).expanduser()
    target = str(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".doctor-") as folder:
            found = _round_trip(context, Path(folder))
    except (OSError, NeuronscopeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield Examination(
            "recording", target, ok=False, detail=reason,
            advice="NEURONSCOPE_NSZ must name a directory in which this user may write.",
        )  # fmt: skip
        return
    if not found:
        yield Examination(
            "recording", target, ok=False, detail="a span that was written could not be read back",
            advice="Run `neuronscope check` on the directory; the disk may be full or failing.",
        )  # fmt: skip
        return
    free = shutil.disk_usage(directory).free
    keep = context.settings.nsz_keep_bytes
    room = (
        f"{free / 1e9:.1f} GB free, at most {keep / 1e9:.1f} GB kept" if keep else f"{free / 1e9:.1f} GB free"
    )
    yield Examination(
        "recording", target, ok=free > keep, detail=f"written and read back; {room}",
        advice="" if free > keep else "The disk can be full before the oldest segments go: lower "
        "NEURONSCOPE_NSZ_KEEP_BYTES.",
    )  # fmt: skip


def _round_trip(context: ExporterContext, folder: Path) -> bool:
    now = time.time_ns()
    exporter = NszExporter(context, folder)
    span = SpanRecord(1, 1, NAME, SpanKind.INTERNAL, now, now, attributes={}, library=NAME)
    exporter.export(Batch(context.resource, [span]))
    exporter.shutdown(5.0)
    for path in recordings(folder):
        file = NszFile(path)
        names = [read.name for read in file.spans]
        file.close()
        if NAME in names:
            return True
    return False
