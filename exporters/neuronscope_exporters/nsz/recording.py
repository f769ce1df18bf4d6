"""Whole recordings: one file, a directory of segments, or several of them, read and written as one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from neuronscope.exceptions import NszError
from neuronscope.signals.records import Attributes, LayerRecord, SpanEvent, SpanRecord
from neuronscope_exporters.nsz.chunks import Damage, Limits
from neuronscope_exporters.nsz.files import SUFFIX, closed_name, recordings
from neuronscope_exporters.nsz.reader import NszFile, Record, Resource
from neuronscope_exporters.nsz.writer import NszWriter, ignore

StrPath = str | os.PathLike[str]


class Recording:
    """Several `.nsz` files as one, everything in order of time.

    Attributes:
        segments: the files.
    """

    def __init__(self, segments: Sequence[NszFile], unreadable: Sequence[tuple[str, str]] = ()) -> None:
        self.segments = list(segments)
        self._unreadable = tuple(unreadable)

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

    @cached_property
    def events(self) -> list[SpanEvent]:
        """What the agents told about themselves, by time."""
        events = [event for segment in self.segments for event in segment.events]
        return sorted(events, key=lambda event: event.time_unix_ns)

    @property
    def damage(self) -> Damage:
        """What could not be read, all files together."""
        return reduce(add, (segment.damage for segment in self.segments), Damage(files=self._unreadable))

    @property
    def finished(self) -> bool:
        """True when every segment was closed by its process."""
        return all(segment.finished for segment in self.segments)

    def resource_of(self, span: SpanRecord) -> Resource:
        """The resource of the process that made a span of this recording; empty for other spans."""
        return self._resource_by_span.get((span.trace_id, span.span_id), {})

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
    return _open(path, limits)[0]


def read(path: StrPath | Iterable[StrPath], limits: Limits | None = None) -> Recording:
    """Read a file, all segments of a directory, or several of both, as one recording.

    A file of a directory that cannot be opened is told by `Recording.damage.files`.

    Raises:
        FileNotFoundError: a path does not exist.
        NszError: a file named is no sound `.nsz`, or a directory has none.
    """
    segments, unreadable = _open(path, limits)
    return Recording(segments, unreadable)


def _open(
    path: StrPath | Iterable[StrPath], limits: Limits | None
) -> tuple[list[NszFile], list[tuple[str, str]]]:
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
    segments.sort(key=_created)
    return segments, unreadable


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


def write(
    path: StrPath,
    spans: Iterable[SpanRecord],
    layers: Iterable[LayerRecord],
    resource: Attributes,
    events: Iterable[SpanEvent] = (),
) -> None:
    """Write a finished file at once: it is complete under its name, or not there.

    Raises:
        OSError: there is no room, or no such directory; the path is as it was.
        NszError: a record cannot be stored.
    """

    def fill(writer: NszWriter) -> None:
        for span in spans:
            writer.append_span(span)
        for layer in layers:
            writer.append_layer(layer)
        for event in events:
            writer.append_event(event)

    _write_atomically(path, [resource], fill)


def merge(
    paths: StrPath | Iterable[StrPath],
    out: StrPath,
    progress: Callable[[int, int], Any] = ignore,
) -> Damage:
    """Copy everything of `paths` into one finished file, tensors included; what was damaged in them.

    A tensor whose checksum is wrong is left out (its summary stays) and counted as damage.

    Args:
        progress: ``progress(bytes done, bytes in all)``.

    Raises:
        FileNotFoundError: a path does not exist.
        NszError: as `read`.
        OSError: `out` cannot be written; it is as it was.
    """
    segments, unreadable = _open(paths, None)
    return copy(segments, out, progress=progress) + Damage(files=tuple(unreadable))


def copy(
    segments: Sequence[NszFile],
    out: StrPath,
    *,
    wanted: Callable[[Record], bool] | None = None,
    progress: Callable[[int, int], Any] = ignore,
) -> Damage:
    """Copy the wanted records of files into one, in the order in which they were written.

    Raises:
        OSError: `out` cannot be written; it is as it was.
    """
    damaged: list[str] = []
    resources: list[Resource] = []
    for segment in segments:
        resources.extend(resource for resource in segment.resources if resource not in resources)
    resources.append({})
    total = sum(segment.size for segment in segments)

    def fill(writer: NszWriter) -> None:
        before = 0
        for segment in segments:
            for number, place in enumerate(segment.chunks):
                for record, resource in segment.records(number, number + 1):
                    if wanted is None or wanted(record):
                        _append(writer, record, resources.index(resource), damaged)
                progress(before + place.offset + place.length, total)
            before += segment.size
        progress(total, total)

    _write_atomically(out, resources, fill)
    own = reduce(add, (segment.damage for segment in segments), Damage())
    return own + Damage(records=len(damaged), reasons=tuple(damaged[:20]))


def _append(writer: NszWriter, record: Record, resource: int, damaged: list[str]) -> None:
    if isinstance(record, SpanRecord):
        writer.append_span(record, resource)
    elif isinstance(record, LayerRecord):
        writer.append_layer(_readable(record, damaged), resource)
    else:
        writer.append_event(record)


def _readable(layer: LayerRecord, damaged: list[str]) -> LayerRecord:
    """The record, without its tensor if that is damaged."""
    if layer.tensor is None:
        return layer
    try:
        layer.tensor.numpy()
    except NszError as error:
        damaged.append(f"{layer.layer_id}, step {layer.step}: {error}")
        return replace(layer, tensor=None)
    return layer


def _write_atomically(
    path: StrPath, resources: Sequence[Attributes], fill: Callable[[NszWriter], None]
) -> None:
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    lost: list[tuple[str, str]] = []
    writer = NszWriter(temporary, resources, on_lost=lambda item, reason, _: lost.append((item, reason)))
    try:
        fill(writer)
        complete = writer.close(sync=True)
        if writer.error is not None:
            raise OSError(writer.error.errno, writer.error.strerror, str(target))
        if lost or not complete:
            what, why = lost[0] if lost else ("file", "incomplete")
            raise NszError(f"{target}: {len(lost)} records cannot be stored; the first: {what}, {why}")
        os.replace(temporary, target)
    finally:
        writer.abandon()
        temporary.unlink(missing_ok=True)
