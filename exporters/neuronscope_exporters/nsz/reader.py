"""Reads one `.nsz` file: finished, still being written, left by a killed process, or damaged.

What can be read is read; what cannot is told by `NszFile.damage`.  Listing spans and layers reads no
tensor bytes; tensors are views of the file, checked when they are first asked for.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeVar

from neuronscope.exceptions import NszError
from neuronscope.signals.records import AttributeValue, LayerRecord, LogRecord, SpanEvent, SpanRecord
from neuronscope_exporters.nsz import codec, documents, layout
from neuronscope_exporters.nsz.attributes import identifier, integer
from neuronscope_exporters.nsz.chunks import ChunkPlace, Directory, locate
from neuronscope_exporters.nsz.damage import Damage, DamageLog, Limits
from neuronscope_exporters.nsz.identity import check_identity, check_version
from neuronscope_exporters.nsz.layout import ChunkClass, Topic
from neuronscope_exporters.nsz.messages import Messages
from neuronscope_exporters.nsz.selection import FOREVER, Selection
from neuronscope_exporters.nsz.source import Source
from neuronscope_exporters.nsz.stored import StoredTensor

Resource = dict[str, AttributeValue]
Record = SpanRecord | LayerRecord | LogRecord | SpanEvent
_T = TypeVar("_T")
_READ_AHEAD: Final = 64  # chunks
_ALWAYS: Final = (0, FOREVER)
_START: Final = attrgetter("start_time_unix_nano")
_CACHED: Final = ("spans_with_resource", "layers_with_resource", "logs_with_resource", "events", "span_heads")
_LAYERS: Final = frozenset({Topic.TENSOR_SUMMARY, Topic.TENSOR_REF})
_decode_span_head = documents.decoder(documents.SpanHead)


def _sound_span_head(data: memoryview) -> documents.SpanHead:
    head = _decode_span_head(data)
    identifier(head.trace_id, 32)
    identifier(head.span_id, 16)
    integer(head.start_time_unix_nano)
    integer(head.end_time_unix_nano)
    return head


class NszFile:
    """One `.nsz` file.  Records are read on first use and kept, in order of time.

    Not thread-safe.

    Attributes:
        path: the file.
        finished: False when it has no end yet: still being written, or its process was killed.
        messages: what is in its chunks, before records are made of it.

    Raises:
        FileNotFoundError: there is no such file.
        NszError: it is empty, something else, or of a version that this reader does not know.
        NszLimitError: it asks for more than `limits` allow.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        self._source = Source(path)
        self._limits = limits or Limits()
        self._log = DamageLog(self._limits)
        self.path = self._source.path
        check_identity(self._source, self._log)
        self._directory: Directory = locate(self._source, self._limits, self._log)
        self.finished = self._directory.finished
        self.messages = Messages(self._source, self._limits, self._log, self._directory.topics)
        self.manifest = self._read_manifest()

    @property
    def resources(self) -> list[Resource]:
        """OTel resources that the file's records belong to; at least one."""
        return self._resources

    @property
    def resource(self) -> Resource:
        """The first resource: the process's that wrote the file."""
        return self._resources[0]

    @property
    def spans(self) -> list[SpanRecord]:
        """All spans, by start."""
        return [span for span, _ in self.spans_with_resource]

    @property
    def layers(self) -> list[LayerRecord]:
        """All layer records, by time; full tensors are read when asked for."""
        return [layer for layer, _ in self.layers_with_resource]

    @property
    def logs(self) -> list[LogRecord]:
        """All log records, by time: events of calls, and what the service logged."""
        return [log for log, _ in self.logs_with_resource]

    @cached_property
    def spans_with_resource(self) -> list[tuple[SpanRecord, Resource]]:
        """Spans, each with its resource."""
        found = self._decode(codec.decode_span, {Topic.SPAN})
        found.sort(key=lambda item: item[0].start_unix_ns)
        return [(span, self._resource(position)) for span, position in found]

    @cached_property
    def layers_with_resource(self) -> list[tuple[LayerRecord, Resource]]:
        """Layer records, each with its resource."""
        found = self._decode(self._layer, _LAYERS)
        found.sort(key=lambda item: item[0].time_unix_ns)
        return [(layer, self._resource(position)) for layer, position in found]

    @cached_property
    def logs_with_resource(self) -> list[tuple[LogRecord, Resource]]:
        """Log records, each with its resource."""
        found = self._decode(codec.decode_log, {Topic.LOG})
        found.sort(key=lambda item: item[0].time_unix_ns)
        return [(log, self._resource(position)) for log, position in found]

    @cached_property
    def events(self) -> list[SpanEvent]:
        """What the agent told about itself (losses, governor, alerts), by time."""
        found = self._decode(codec.decode_event, {Topic.AGENT})
        found.sort(key=lambda event: event.time_unix_ns)
        return found

    # --- without building everything ------------------------------------------------------------

    @cached_property
    def span_heads(self) -> list[documents.SpanHead]:
        """Name, ids, times and status of all spans, by start: several times as fast as `spans`."""
        found = self._decode(_decode_span_head, {Topic.SPAN})
        # Decimal text of equal length sorts like the numbers; sorting is stable.
        found.sort(key=_START)
        if len({len(head.start_time_unix_nano) for head in found}) > 1:
            found.sort(key=lambda head: len(head.start_time_unix_nano))
        return found

    def each_span_head(self) -> Iterator[documents.SpanHead]:
        """The same one at a time, in the order of the file, and only those whose ids and times make sense."""
        return self._decoded(_sound_span_head, {Topic.SPAN}, kept=False)

    def find_spans(
        self,
        *,
        trace_id: int | None = None,
        span_id: int | None = None,
        start: int = 0,
        end: int = FOREVER,
    ) -> list[SpanRecord]:
        """The spans with these ids that began within [start, end), by start.

        Only chunks of that time are read, and only these spans are built.
        """
        wanted = Selection.of(trace_id, span_id, start, end)
        decode_head = documents.decoder(documents.SpanHead)

        def decode(data: memoryview) -> SpanRecord | None:
            if not wanted.has(decode_head(data)):
                return None
            span, _ = codec.decode_span(data)
            return span if wanted.at(span.start_unix_ns) else None

        found = [span for span in self._decode(decode, {Topic.SPAN}, (start, end)) if span is not None]
        found.sort(key=lambda span: span.start_unix_ns)
        return found

    def find_layers(
        self,
        layer: str | None = None,
        *,
        step: int | None = None,
        trace_id: int | None = None,
        span_id: int | None = None,
        start: int = 0,
        end: int = FOREVER,
    ) -> list[LayerRecord]:
        """The records of layers that match a pattern (``model.layers.*``), of a step, a span, a time.

        Tensor bytes are read only when a record's tensor is asked for its values.
        """
        matches = None if layer is None else re.compile(fnmatch.translate(layer)).match
        wanted = Selection.of(trace_id, span_id, start, end)
        decode_head = documents.decoder(documents.LayerHead)

        def decode(data: memoryview) -> LayerRecord | None:
            head = decode_head(data)
            if step not in (None, head.step) or not wanted.has(head):
                return None
            if matches is not None and not matches(head.module):
                return None
            record, _ = self._layer(data)
            return record if wanted.at(record.time_unix_ns) else None

        found = [record for record in self._decode(decode, _LAYERS, (start, end)) if record is not None]
        found.sort(key=lambda record: record.time_unix_ns)
        return found

    def find_logs(
        self,
        event_name: str | None = None,
        *,
        trace_id: int | None = None,
        span_id: int | None = None,
        start: int = 0,
        end: int = FOREVER,
    ) -> list[LogRecord]:
        """The log records of a kind of event, of a trace, a span, a time, by time."""
        wanted = Selection.of(trace_id, span_id, start, end)
        decode_head = documents.decoder(documents.LogHead)

        def decode(data: memoryview) -> LogRecord | None:
            head = decode_head(data)
            if event_name not in (None, head.event_name) or not wanted.has(head):
                return None
            log, _ = codec.decode_log(data)
            return log if wanted.at(log.time_unix_ns) else None

        found = [log for log in self._decode(decode, {Topic.LOG}, (start, end)) if log is not None]
        found.sort(key=lambda log: log.time_unix_ns)
        return found

    def records(
        self, first: int = 0, end: int | None = None, passed_over: Callable[[str], object] = str
    ) -> Iterator[tuple[Record, Resource]]:
        """All records in the order of the file, one at a time: for tools that keep none of them.

        Args:
            first: the first chunk to read: their number before a `refresh`, for example.
            end: the chunk to stop before.
            passed_over: told the topic of each message that this version does not know; by default nobody is.
        """
        for place in self._directory.chunks[first:end]:
            if place.chunk_class is ChunkClass.SMALL:
                for channel, data in self.messages.of(place, kept=False):
                    try:
                        record = self._any(self.messages.topics.get(channel), data)
                    except NszError as error:
                        self._log.record(str(error))
                        continue
                    if record is not None:
                        yield record
                    else:
                        passed_over(self.topic(channel))

    @property
    def chunks(self) -> Sequence[ChunkPlace]:
        """Where the chunks are, in order."""
        return self._directory.chunks

    def topic(self, channel: int) -> str:
        """A channel's topic, as far as known."""
        return self.messages.topics.get(channel, f"channel {channel}")

    def sound_chunks(self) -> set[int]:
        """Offsets of the chunks that can be read (of tensors': whose header can)."""
        return {place.offset for place in self._directory.chunks} - self._log.stretches.keys()

    def indexes(self) -> Iterator[memoryview]:
        """The index of every sound checkpoint: what the file remembers of its chunks."""
        for place in self._directory.chunks:
            if place.chunk_class is ChunkClass.CHECKPOINT:
                for channel, data in self.messages.of(place):
                    if channel == Topic.INDEX:
                        yield data

    def refresh(self) -> bool:
        """See what was appended to an unfinished file since; True if it has new chunks, or an end."""
        walk = self._directory.walk
        if self.finished or walk is None or not self._source.refresh():
            return False
        before = len(self._directory.chunks)
        walk.following = True
        self._directory = walk.run()
        self.finished = self._directory.finished
        for name in _CACHED:
            self.__dict__.pop(name, None)
        if self.manifest is None:
            self.manifest = self._read_manifest()
        return self.finished or len(self._directory.chunks) > before

    @property
    def damage(self) -> Damage:
        """What could not be read.  Reads all records but the tensors, whose checksums are their own."""
        _ = self.spans_with_resource, self.layers_with_resource, self.logs_with_resource, self.events
        return self._log.report()

    @property
    def damage_so_far(self) -> Damage:
        """What could not be read of what has been asked for; reads nothing more."""
        return self._log.report()

    @property
    def identity(self) -> tuple[int, int]:
        """What tells the file from every other, whatever it is called."""
        return self._source.identity

    @property
    def limits(self) -> Limits:
        """What the file may ask for."""
        return self._limits

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._source.size

    @property
    def bytes_read(self) -> int:
        """Bytes read from the file so far; tensors are mapped and not counted."""
        return self._source.bytes_read

    def close(self) -> None:
        """Release the file.  Arrays that came from it stay valid; nothing more can be read."""
        self._source.close()

    def __repr__(self) -> str:
        return f"NszFile({str(self.path)!r})"

    # --- opening --------------------------------------------------------------------------------

    def _read_manifest(self) -> documents.ManifestDocument | None:
        """The manifest of the first sound checkpoint; None when none survived."""
        self._resources: list[Resource] = [{}]
        for place in self._directory.chunks:
            if place.chunk_class is not ChunkClass.CHECKPOINT:
                continue
            for channel, data in self.messages.of(place):
                if self.messages.topics.get(channel) != layout.TOPIC_NAMES[Topic.MANIFEST]:
                    continue
                try:
                    manifest = documents.decode(documents.ManifestDocument, data)
                    resources = [codec.resource_attributes(item) for item in manifest.resources]
                except NszError as error:
                    self._log.record(str(error))
                    continue
                check_version(self._source, manifest)
                self._resources = resources or self._resources
                return manifest
        return None

    # --- records --------------------------------------------------------------------------------

    def _decode(
        self, decode: Callable[[memoryview], _T], topics: Set[Topic], within: tuple[int, int] = _ALWAYS
    ) -> list[_T]:
        """All sound records of the topics, in chunks that have messages within a time."""
        return list(self._decoded(decode, topics, within))

    def _decoded(
        self,
        decode: Callable[[memoryview], _T],
        topics: Set[Topic],
        within: tuple[int, int] = _ALWAYS,
        *,
        kept: bool = True,
    ) -> Iterator[_T]:
        names = {layout.TOPIC_NAMES[topic] for topic in topics}
        topic_of = self.messages.topics.get
        places = [place for place in self._directory.chunks if place.may_have_records(*within)]
        for number, place in enumerate(places):
            if number % _READ_AHEAD == 0:  # on a cold file the disk's answers overlap
                for later in places[number : number + 2 * _READ_AHEAD]:
                    self._source.will_need(later.offset, later.length)
            for channel, data in self.messages.of(place, kept=kept):
                if topic_of(channel) not in names:
                    continue
                try:
                    yield decode(data)
                except NszError as error:
                    self._log.record(str(error))

    def _any(self, topic: str | None, data: memoryview) -> tuple[Record, Resource] | None:
        """The record of a message; None for a topic that this version does not know."""
        if topic == layout.TOPIC_NAMES[Topic.SPAN]:
            span, position = codec.decode_span(data)
            return span, self._resource(position)
        if topic in (layout.TOPIC_NAMES[Topic.TENSOR_SUMMARY], layout.TOPIC_NAMES[Topic.TENSOR_REF]):
            layer, position = self._layer(data)
            return layer, self._resource(position)
        if topic == layout.TOPIC_NAMES[Topic.LOG]:
            log, position = codec.decode_log(data)
            return log, self._resource(position)
        if topic == layout.TOPIC_NAMES[Topic.AGENT]:
            return codec.decode_event(data), self.resource
        return None

    def _resource(self, position: int) -> Resource:
        return self._resources[position] if 0 <= position < len(self._resources) else {}

    def _layer(self, data: memoryview) -> tuple[LayerRecord, int]:
        document = documents.decode(documents.LayerDocument, data)
        tensor = None
        if document.tensor is not None:
            tensor = StoredTensor(self._source, self._limits, document.tensor)
        return codec.layer_record(document, tensor), document.resource
