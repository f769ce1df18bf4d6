"""Writes recordings as a whole: a new file, a merged one, a part of one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.exceptions import NszError
from neuronscope.replacing import replacement
from neuronscope.signals.records import Attributes, LayerRecord, LogRecord, SpanEvent, SpanRecord
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.attributes import identifier, integer
from neuronscope_exporters.nsz.damage import Damage
from neuronscope_exporters.nsz.documents import SpanHead
from neuronscope_exporters.nsz.reader import NszFile, Record, Resource
from neuronscope_exporters.nsz.recording import Opened, StrPath, open_all
from neuronscope_exporters.nsz.writer import NszWriter, ignore

MAX_TOPICS: Final = 64  # unknown ones that are told apart


def write(
    path: StrPath,
    spans: Iterable[SpanRecord],
    layers: Iterable[LayerRecord],
    resource: Attributes,
    events: Iterable[SpanEvent] = (),
    logs: Iterable[LogRecord] = (),
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
        for log in logs:
            writer.append_log(log)
        for event in events:
            writer.append_event(event)

    _write_atomically(path, [resource], fill)


def merge(
    paths: StrPath | Iterable[StrPath],
    out: StrPath,
    progress: Callable[[int, int], Any] = ignore,
) -> Damage:
    """Copy everything of `paths` into one finished file, tensors included; what was damaged in them.

    A tensor whose checksum is wrong is left out (its summary stays) and counted as damage.  What a later
    version of the format has added cannot be copied: `Damage.left_out` says what that was.  What is there
    more than once, since a file is named twice or is a part of another, is copied once: `Damage.repeated`.

    Args:
        progress: ``progress(bytes done, bytes in all)``.

    Raises:
        FileNotFoundError: a path does not exist.
        NszError: as `read`.
        OSError: `out` cannot be written; it is as it was.
    """
    opened = open_all(paths, None)
    return copy(opened.files, out, progress=progress) + _of_opening(opened)


def _of_opening(opened: Opened) -> Damage:
    again = tuple(f"{path}, which is named more than once" for path in opened.again)
    return Damage(files=tuple(opened.unreadable), repeated=again)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a recording: what `cut` keeps.

    Attributes:
        start, end: unix ns; spans that overlap [start, end); layer and log records within.
        trace_id: one trace only.
        span_id: a span and what is below it only.
    """

    start: int = 0
    end: int = 2**64
    trace_id: int | None = None
    span_id: int | None = None


def cut(
    paths: StrPath | Iterable[StrPath],
    out: StrPath,
    part: Part,
    progress: Callable[[int, int], Any] = ignore,
) -> Damage:
    """Copy a part of a recording into a file, with its spans' layer records, tensors and log records.

    Raises:
        NszError: as `read`; or the part is empty.
        OSError: `out` cannot be written; it is as it was.
    """
    opened = open_all(paths, None)
    segments = opened.files
    heads = [head for segment in segments for head in segment.each_span_head()]
    spans = _spans_of(heads, part)
    if not spans:
        raise NszError("no span is in this part")

    everything = part.trace_id is None and part.span_id is None

    def wanted(record: Record) -> bool:
        if isinstance(record, SpanRecord):
            return (record.trace_id, record.span_id) in spans
        if isinstance(record, SpanEvent):
            return everything and part.start <= record.time_unix_ns < part.end
        mine = (record.trace_id, record.span_id) in spans if record.span_id else everything
        return mine and part.start <= record.time_unix_ns < part.end

    return copy(segments, out, wanted=wanted, progress=progress) + _of_opening(opened)


def _spans_of(heads: Sequence[SpanHead], part: Part) -> set[tuple[int | None, int]]:
    """(trace id, span id) of the spans of a part."""
    children: dict[tuple[str, str], list[SpanHead]] = {}
    for head in heads:
        children.setdefault((head.trace_id, head.parent_span_id or ""), []).append(head)
    if part.span_id is None:
        inside = heads
    else:
        inside = [head for head in heads if head.span_id == f"{part.span_id:016x}"]
        seen = {(head.trace_id, head.span_id) for head in inside}
        for head in inside:  # grows while it is walked
            for child in children.get((head.trace_id, head.span_id), ()):
                if (child.trace_id, child.span_id) not in seen:
                    seen.add((child.trace_id, child.span_id))
                    inside.append(child)
    trace = None if part.trace_id is None else f"{part.trace_id:032x}"
    return {
        (identifier(head.trace_id, 32), identifier(head.span_id, 16))
        for head in inside
        if trace in (None, head.trace_id)
        and integer(head.start_time_unix_nano) < part.end
        and integer(head.end_time_unix_nano) >= part.start
    }


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
    unknown: Counter[str] = Counter()
    resources: list[Resource] = []
    for segment in segments:
        resources.extend(resource for resource in segment.resources if resource not in resources)
    resources.append({})
    total = sum(segment.size for segment in segments)

    def fill(writer: NszWriter) -> None:
        before = 0
        for segment in segments:
            for number, place in enumerate(segment.chunks):
                for record, resource in segment.records(number, number + 1, partial(_count, unknown)):
                    if wanted is None or wanted(record):
                        _append(writer, record, resources.index(resource), damaged)
                progress(before + place.offset + place.length, total)
            before += segment.size
        progress(total, total)

    _write_atomically(out, resources, fill)
    own = reduce(add, (segment.damage_so_far for segment in segments), Damage())
    left_out = [*_later_versions(segments), *(f"{n} × {topic}" for topic, n in sorted(unknown.items()))]
    twins = sum(segment.messages.twins.met for segment in segments if segment.messages.twins is not None)
    repeated = (f"{twins:,} records that several of the files have",) if twins else ()
    return own + Damage(
        records=len(damaged), reasons=tuple(damaged[:20]), left_out=tuple(left_out), repeated=repeated
    )


def _count(counts: Counter[str], topic: str) -> None:
    if len(counts) < MAX_TOPICS or topic in counts:
        counts[topic] += 1
    else:
        counts["other topics"] += 1


def _later_versions(segments: Sequence[NszFile]) -> list[str]:
    """What a record's JSON has beyond what this version knows is not told field by field."""
    versions = {segment.manifest.version for segment in segments if segment.manifest is not None}
    return [
        f"whatever version {version} of the format adds to records"
        for version in sorted(versions, key=_minor)
        if _minor(version) > _minor(layout.VERSION)
    ]


def _minor(version: str) -> int:
    minor = version.partition(".")[2]
    return int(minor) if minor.isdecimal() else 0


def _append(writer: NszWriter, record: Record, resource: int, damaged: list[str]) -> None:
    if isinstance(record, SpanRecord):
        writer.append_span(record, resource)
    elif isinstance(record, LayerRecord):
        writer.append_layer(_readable(record, damaged), resource)
    elif isinstance(record, LogRecord):
        writer.append_log(record, resource)
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
    lost: list[tuple[str, str]] = []
    with replacement(path) as new:
        writer = NszWriter(new, resources, on_lost=lambda item, reason, _: lost.append((item, reason)))
        try:
            fill(writer)
            complete = writer.close(sync=True)
        finally:
            writer.abandon()
        if writer.error is not None:
            raise OSError(writer.error.errno, writer.error.strerror, os.fspath(path))
        if lost or not complete:
            what, why = lost[0] if lost else ("file", "incomplete")
            raise NszError(f"{path}: {len(lost)} records cannot be stored; the first: {what}, {why}")
