"""Verifies a file to the last byte, and says exactly what is missing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuronscope.exceptions import NszError
from neuronscope.signals.records import LogRecord, SpanEvent, SpanRecord
from neuronscope_exporters.nsz import documents
from neuronscope_exporters.nsz.damage import Damage, Limits
from neuronscope_exporters.nsz.reader import NszFile, Record
from neuronscope_exporters.nsz.writer import ignore


@dataclass(frozen=True, slots=True)
class MissingChunk:
    """A chunk that was written and cannot be read, as the file's own indexes remember it.

    Attributes:
        offset, length: where its record is.
        kind: ``small`` (spans, summaries, log records, events), ``tensor`` or ``checkpoint``.
        first_time, last_time: of its messages, unix ns.
        topics: what it held.
    """

    offset: int
    length: int
    kind: str
    first_time: int
    last_time: int
    topics: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """What is in a file, and what is not.

    Attributes:
        tensors: full tensors whose checksum is right.
        bad_tensors: those whose is not: layer, step and reason.
        recorded_losses: what the writing process could not write, by (item, reason), as it noted itself.
    """

    path: str
    bytes: int = 0
    version: str = ""
    finished: bool = False
    chunks: int = 0
    spans: int = 0
    layers: int = 0
    tensors: int = 0
    events: int = 0
    logs: int = 0
    damage: Damage = field(default_factory=Damage)
    missing: list[MissingChunk] = field(default_factory=list[MissingChunk])
    bad_tensors: list[str] = field(default_factory=list[str])
    recorded_losses: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    @property
    def sound(self) -> bool:
        """Nothing that was written is missing.  A file that is merely unfinished is sound."""
        return not self.damage and not self.bad_tensors


def check(
    path: str | os.PathLike[str], progress: Callable[[int, int], Any] = ignore, limits: Limits | None = None
) -> Report:
    """Read everything in a file, tensors included, and verify every checksum.

    Args:
        progress: ``progress(bytes done, bytes in all)``.

    Raises:
        FileNotFoundError: there is no such file.
        NszError: it is no `.nsz` file at all.
    """
    file = NszFile(path, limits)
    try:
        report = Report(str(Path(path)), file.size, finished=file.finished, chunks=len(file.chunks))
        report.version = file.manifest.version if file.manifest is not None else ""
        for number, place in enumerate(file.chunks):
            for record, _ in file.records(number, number + 1):
                _count(report, record)
            progress(place.offset + place.length, file.size)
        report.damage = file.damage_so_far  # everything was read
        if report.damage:
            report.missing = _missing(file)
        progress(file.size, file.size)
        return report
    finally:
        file.close()


def _count(report: Report, record: Record) -> None:
    if isinstance(record, SpanRecord):
        report.spans += 1
    elif isinstance(record, LogRecord):
        report.logs += 1
    elif isinstance(record, SpanEvent):
        report.events += 1
        if record.name == "nsz.lost":
            told = record.attributes
            count = told.get("count", 0)
            key = str(told.get("item", "")), str(told.get("reason", ""))
            report.recorded_losses[key] += count if isinstance(count, int) else 0
    else:
        report.layers += 1
        if record.tensor is not None:
            try:
                record.tensor.numpy()
            except NszError as error:
                report.bad_tensors.append(f"{record.layer_id}, step {record.step}: {error}")
            else:
                report.tensors += 1


_KINDS = {1: "small", 2: "tensor", 3: "checkpoint"}


def _missing(file: NszFile) -> list[MissingChunk]:
    """Chunks that a checkpoint's index names and that cannot be read."""
    sound = file.sound_chunks()
    found: list[MissingChunk] = []
    for data in file.indexes():
        try:
            index = documents.decode(documents.IndexDocument, data)
        except NszError:
            continue
        for offset, length, kind, first, last, channels in index.chunks:
            if offset not in sound:
                topics = tuple(file.topic(channel) for channel in channels)
                found.append(MissingChunk(offset, length, _KINDS.get(kind, str(kind)), first, last, topics))
    return found
