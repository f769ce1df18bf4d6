"""Whole recordings: one file, a directory of segments, or several of them, read and written as one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path

from neuronscope.exceptions import NszError
from neuronscope.signals.records import LayerRecord, LogRecord, SpanEvent, SpanRecord
from neuronscope_exporters.nsz.damage import Damage, Limits
from neuronscope_exporters.nsz.files import SUFFIX, closed_name, recordings
from neuronscope_exporters.nsz.reader import NszFile, Resource
from neuronscope_exporters.nsz.twins import relate

StrPath = str | os.PathLike[str]


class Recording:
    """Several `.nsz` files as one, everything in order of time.

    A record that several of them have, as a copy or a part of another file has, is there once.

    Attributes:
        segments: the files.
        unreadable: (path, reason) of files in directories that cannot be opened.
    """

    def __init__(self, segments: Sequence[NszFile], unreadable: Sequence[tuple[str, str]] = ()) -> None:
        self.segments = list(segments)
        self.unreadable = tuple(unreadable)

    @property
    def resource(self) -> Resource:
        """The first segment's resource."""
        return self.segments[0].resource

    @cached_property
    def resources(self) -> list[Resource]:
        """All different resources of the segments."""
        found: list[Resource] = []
        for segment in self.segments:
            found.extend(resource for resource in segment.resources if resource not in found)
        return found

    @cached_property
    def spans(self) -> list[SpanRecord]:
        """All spans, by start."""
        spans = [span for segment in self.segments for span in segment.spans]
        return sorted(spans, key=lambda span: span.start_unix_ns)

    @cached_property
    def layers(self) -> list[LayerRecord]:
        """All layer records, by time; full tensors are read when asked for."""
        layers = [layer for segment in self.segments for layer in segment.layers]
        return sorted(layers, key=lambda layer: layer.time_unix_ns)

    @property
    def logs_with_resource(self) -> list[tuple[LogRecord, Resource]]:
        """Log records, segment after segment, each with its resource."""
        return [item for segment in self.segments for item in segment.logs_with_resource]

    @cached_property
    def logs(self) -> list[LogRecord]:
        """All log records, by time."""
        logs = [log for segment in self.segments for log in segment.logs]
        return sorted(logs, key=lambda log: log.time_unix_ns)

    @cached_property
    def events(self) -> list[SpanEvent]:
        """What the agents told about themselves, by time."""
        events = [event for segment in self.segments for event in segment.events]
        return sorted(events, key=lambda event: event.time_unix_ns)

    @property
    def damage(self) -> Damage:
        """What could not be read, all files together."""
        return reduce(add, (segment.damage for segment in self.segments), Damage(files=self.unreadable))

    @property
    def damage_so_far(self) -> Damage:
        """What could not be read of what has been asked for; reads nothing more."""
        return reduce(
            add, (segment.damage_so_far for segment in self.segments), Damage(files=self.unreadable)
        )

    @property
    def finished(self) -> bool:
        """True when every segment was closed by its process."""
        return all(segment.finished for segment in self.segments)

    def resource_of(self, span: SpanRecord) -> Resource:
        """The resource of the process that made a span of this recording; empty for other spans."""
        mine = self._resource_by_record.get(id(span))  # ranks with one seed have spans of the same ids
        return self._resource_by_span.get((span.trace_id, span.span_id), {}) if mine is None else mine

    @cached_property
    def _resource_by_record(self) -> dict[int, Resource]:
        """By the records of this recording themselves, which live as long as it does."""
        return {
            id(span): resource for segment in self.segments for span, resource in segment.spans_with_resource
        }

    @cached_property
    def _resource_by_span(self) -> dict[tuple[int, int], Resource]:
        return {
            (span.trace_id, span.span_id): resource
            for segment in self.segments
            for span, resource in segment.spans_with_resource
        }

    def close(self) -> None:
        """Release the files."""
        for segment in self.segments:
            segment.close()


def load(path: StrPath | Iterable[StrPath], limits: Limits | None = None) -> list[NszFile]:
    """Open a file, all segments of a directory, or several of both.

    Raises:
        FileNotFoundError: a path does not exist.
        NszError: a file named is no sound `.nsz`, or a directory has none.
    """
    return open_all(path, limits).files


def read(path: StrPath | Iterable[StrPath], limits: Limits | None = None) -> Recording:
    """Read a file, all segments of a directory, or several of both, as one recording.

    A file of a directory that cannot be opened is told by `Recording.damage.files`.

    Raises:
        FileNotFoundError: a path does not exist.
        NszError: a file named is no sound `.nsz`, or a directory has none.
    """
    opened = open_all(path, limits)
    return Recording(opened.files, opened.unreadable)


@dataclass(frozen=True, slots=True)
class Opened:
    """The files of a recording.

    Attributes:
        files: each once, in the order in which they were begun; what several have is read from the first.
        unreadable: (path, reason) of files in directories that cannot be opened.
        again: files that are opened already, under this or another name.
    """

    files: list[NszFile]
    unreadable: list[tuple[str, str]]
    again: list[str]


def open_all(path: StrPath | Iterable[StrPath], limits: Limits | None) -> Opened:
    """Open what `read` reads."""
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise NszError("no file to read was named")
    segments: list[NszFile] = []
    unreadable: list[tuple[str, str]] = []
    for item in map(Path, paths):
        if item.is_dir():
            _open_directory(item, limits, segments, unreadable)
        else:
            segments.append(_open_file(item, limits))
    different: dict[tuple[int, int], NszFile] = {}
    again: list[str] = []
    for file in segments:
        if different.setdefault(file.identity, file) is not file:
            again.append(str(file.path))
            file.close()
    files = sorted(different.values(), key=_created)
    relate(files)
    return Opened(files, unreadable, again)


def _open_directory(
    directory: Path, limits: Limits | None, segments: list[NszFile], unreadable: list[tuple[str, str]]
) -> None:
    found = recordings(directory)
    if not found:
        raise NszError(f"the directory {directory} holds no {SUFFIX} file")
    opened: list[NszFile] = []
    for item in found:
        try:
            opened.append(_open_file(item, limits))
        except (NszError, OSError) as error:
            unreadable.append((str(item), str(error)))
    if not opened:
        raise NszError(f"no {SUFFIX} file of {directory} can be read; the first: {unreadable[0][1]}")
    segments.extend(opened)


def _open_file(path: Path, limits: Limits | None) -> NszFile:
    """Open a file, also if its process finishes and renames it just now."""
    try:
        return NszFile(path, limits)
    except FileNotFoundError:
        finished = closed_name(path)
        if finished == path:
            raise
        return NszFile(finished, limits)


def _created(segment: NszFile) -> int:
    """When a segment was begun; those that cannot tell come first."""
    manifest = segment.manifest
    text = manifest.created_unix_nano if manifest is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 32 else 0
