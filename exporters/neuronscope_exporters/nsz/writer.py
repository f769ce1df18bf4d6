"""Writes `.nsz`: spans, layer records, log records and events into one segment that survives being killed.

`NszWriter` never raises out of an append or a flush: what cannot be written is counted, told through
`on_lost`, noted in the file as soon as it takes records again, and forgotten.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from neuronscope.signals.records import Attributes, LayerRecord, LogRecord, SpanEvent, SpanRecord
from neuronscope_exporters.nsz import codec, documents, layout, tensors
from neuronscope_exporters.nsz.assembly import OpenChunk, tensor_metadata
from neuronscope_exporters.nsz.chunkfile import ChunkFile
from neuronscope_exporters.nsz.framing import TensorMessage
from neuronscope_exporters.nsz.layout import ChunkClass, Topic

_ITEMS: Final = {
    Topic.SPAN: "span",
    Topic.TENSOR_SUMMARY: "layer",
    Topic.TENSOR_REF: "layer",
    Topic.AGENT: "event",
    Topic.LOG: "log",
}

_SPAN: Final = int(Topic.SPAN)  # plain numbers are packed faster
_AGENT: Final = int(Topic.AGENT)
_LOG: Final = int(Topic.LOG)


def ignore(*_: object) -> None:
    """A callback that wants to know nothing."""


class NszWriter:
    """One `.nsz` file being written.

    Small records wait in memory until 256 KiB are together, `flush` or `close`; a full tensor is
    written at once.  Every record whose `flush` returned True survives the death of the process.
    For one thread.

    Args:
        path: the file; it must not exist.
        resources: OTel resources that records belong to, by position; the first is the default.
        on_lost: ``on_lost(item, reason, n)``; items are span, layer, log and event, reasons are disk_full,
            io_error, file_deleted, record_too_large and unencodable.
        on_written: ``on_written(item, n)``: the file has them.
        tensor_part_bytes: a larger tensor is cut into parts of this size.
        compress_tensors: write tensors through zstd, floats as byte planes: up to 1.4 times smaller, at a
            fraction of the speed, and no longer readable without a copy.
        segment: number in a series of files.
        previous_segment: file id of the one before, in hexadecimal.

    Attributes:
        error: the last error of the file, or None.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        resources: Sequence[Attributes] = ({},),
        *,
        on_lost: Callable[[str, str, int], None] = ignore,
        on_written: Callable[[str, int], None] = ignore,
        tensor_part_bytes: int = layout.TENSOR_PART_BYTES,
        compress_tensors: bool = False,
        segment: int = 0,
        previous_segment: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.error: OSError | None = None
        self._on_lost, self._on_written = on_lost, on_written
        self._part_bytes = tensor_part_bytes
        self._compress_tensors = compress_tensors
        self._file = ChunkFile(
            path,
            resources,
            compress_tensors=compress_tensors,
            segment=segment,
            previous_segment=previous_segment,
        )
        self._tensor_channels: dict[str, int] = {}  # by topic
        self._defined_channels: dict[tuple[str, bool], int] = {}  # by layer, those that a chunk defines
        self._open = OpenChunk()
        self._lost_since_flush = False
        self._unreported: Counter[tuple[str, str]] = Counter()

    @property
    def file_id(self) -> str:
        """The file's id, in hexadecimal."""
        return self._file.file_id

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.position

    @property
    def closed(self) -> bool:
        """True after `close`, and when the file is beyond use (deleted, or damaged by a failed write)."""
        return self._file.closed

    def append_span(self, span: SpanRecord, resource: int = 0) -> None:
        """Add a span of the resource at this position."""
        try:
            data = codec.encode_span(span, resource)
        except (TypeError, ValueError, AttributeError, RecursionError):
            self._lose("span", "unencodable")
            return
        self._append_small(_SPAN, span.start_unix_ns, data)

    def append_layer(self, layer: LayerRecord, resource: int = 0) -> None:
        """Add a layer record; a full tensor goes to the file at once."""
        reference = None
        try:
            if layer.tensor is not None:
                reference = self._append_tensor(layer, tensors.payload(layer.tensor))
            data = codec.encode_layer(layer, resource, reference)
        except OSError as error:
            self._lose("layer", self._failed(error))
            return
        except (TypeError, ValueError, AttributeError, RecursionError):
            self._lose("layer", "unencodable")
            return
        topic = int(Topic.TENSOR_SUMMARY if reference is None else Topic.TENSOR_REF)
        self._append_small(topic, layer.time_unix_ns, data)

    def append_log(self, log: LogRecord, resource: int = 0) -> None:
        """Add a log record, of the resource at this position."""
        try:
            data = codec.encode_log(log, resource)
        except (TypeError, ValueError, AttributeError, RecursionError):
            self._lose("log", "unencodable")
            return
        self._append_small(_LOG, log.time_unix_ns, data)

    def append_event(self, event: SpanEvent) -> None:
        """Add an event of the agent: a governor's decision, a loss, an alert."""
        try:
            data = codec.encode_event(event)
        except (TypeError, ValueError, AttributeError, RecursionError):
            self._lose("event", "unencodable")
            return
        self._append_small(_AGENT, event.time_unix_ns, data)

    def flush(self) -> bool:
        """Hand everything appended to the system; False if anything was lost since the last flush."""
        self._close_chunk()
        complete, self._lost_since_flush = not self._lost_since_flush, False
        if self._unreported:
            self._note_losses()
        try:
            self._file.check()
        except OSError as error:
            self._failed(error)
            return False
        self._checkpoint_if_due(by_time=True)
        return complete

    def close(self, *, sync: bool = False) -> bool:
        """Flush and finish the file with its summary; False if something was lost.

        Args:
            sync: wait until the disk has it.
        """
        if self.closed:
            return False
        complete = self.flush()
        try:
            self._file.finish(sync=sync)
        except OSError as error:
            self._failed(error)
            complete = False
        self._file.close()
        return complete

    def abandon(self) -> None:
        """Let go of the file without writing to it: what a forked child does with its parent's."""
        self._file.close()

    # --- small records --------------------------------------------------------------------------

    def _append_small(self, topic: int, when: int, data: bytes) -> None:
        size = len(data)
        if size > layout.MAX_RECORD_JSON:
            self._lose(_ITEMS[Topic(topic)], "record_too_large")
            return
        chunk = self._open
        if chunk.body and len(chunk.body) + layout.MESSAGE.size + size > layout.SMALL_CHUNK_BYTES:
            self._close_chunk()
            chunk = self._open
        chunk.add(topic, self._file.sequence, when if 0 <= when < 1 << 64 else layout.clamp_time(when), data)
        self._file.sequence += 1

    def _checkpoint_if_due(self, *, by_time: bool) -> None:
        try:
            self._file.checkpoint_if_due(by_time=by_time)
        except OSError as error:
            self._failed(error)

    def _close_chunk(self) -> None:
        """Write the open chunk of small records, or count what it held as lost."""
        chunk = self._open
        if not chunk.body:
            return
        self._open = OpenChunk()
        try:
            self._file.append(ChunkClass.SMALL, chunk.body, chunk.last, chunk.index)
        except OSError as error:
            reason = self._failed(error)
            for channel, n in chunk.counts().items():
                self._lose(_ITEMS[Topic(channel)], reason, n)
            return
        for channel, n in chunk.counts().items():
            self._on_written(_ITEMS[Topic(channel)], n)

    # --- tensors --------------------------------------------------------------------------------

    def _append_tensor(self, layer: LayerRecord, payload: tensors.Payload) -> documents.TensorDocument:
        """Write a tensor's chunks and say where they are."""
        nbytes = len(payload.data)
        step = max(self._part_bytes // payload.itemsize, 1) * payload.itemsize
        starts = range(0, nbytes, step) if nbytes else range(1)
        planes = self._compress_tensors and payload.dtype in tensors.IN_PLANES
        parts: list[documents.PartDocument] = []
        for number, start in enumerate(starts):
            data = payload.data[start : start + step]
            shape = payload.shape if len(starts) == 1 else (len(data) // payload.itemsize,)
            metadata = tensor_metadata(layer, payload, number, len(starts))
            head = tensors.document_header(payload.dtype, shape, len(data), metadata)
            if planes:
                data = tensors.split_planes(data, payload.itemsize)
            parts.append(self._write_part(layer, head, data, planes))
        return documents.TensorDocument(payload.dtype, list(payload.shape), nbytes, parts, planes)

    def _write_part(
        self, layer: LayerRecord, head: bytes, data: memoryview, planes: bool
    ) -> documents.PartDocument:
        channel, definition = self._tensor_channel(layer.layer_id, planes)
        when = layout.clamp_time(layer.time_unix_ns)
        message = TensorMessage(channel, self._file.sequence, when, definition, head, data)
        part = documents.PartDocument(*self._file.append_tensor(message))
        self._file.sequence += 1
        if definition:
            self._file.define(definition)
        self._checkpoint_if_due(by_time=False)
        return part

    def _tensor_channel(self, layer_id: str, planes: bool) -> tuple[int, bytes]:
        """(channel of a module's tensors, its definition if no chunk holds it yet)."""
        known = self._defined_channels.get((layer_id, planes))
        if known is not None:
            return known, b""
        name = layer_id.encode(errors="replace").decode()[: layout.MAX_TOPIC_CHARACTERS]
        suffix = layout.PLANES_SUFFIX if planes else ""
        topic = f"{layout.TENSOR_TOPIC}{name}{suffix}"
        # Two channels are kept for the overflow.
        if topic not in self._tensor_channels and len(self._tensor_channels) >= layout.MAX_TENSOR_CHANNELS:
            topic = layout.TENSOR_OVERFLOW_TOPIC + suffix
        channel = self._tensor_channels.setdefault(
            topic, layout.FIRST_TENSOR_CHANNEL + len(self._tensor_channels)
        )
        if self._file.uses(channel):
            if len(self._defined_channels) < layout.MAX_TENSOR_CHANNELS:
                self._defined_channels[layer_id, planes] = channel
            return channel, b""
        encoding = layout.PLANES_ENCODING if planes else "safetensors"
        return channel, layout.channel(channel, 0, topic, encoding)

    # --- losses ---------------------------------------------------------------------------------

    def _failed(self, error: OSError) -> str:
        """Remember a failure of the file; its reason as a metric's label."""
        self.error = error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return "disk_full"
        return "file_deleted" if error.errno == errno.ENOENT else "io_error"

    def _lose(self, item: str, reason: str, n: int = 1) -> None:
        self._lost_since_flush = True
        self._unreported[item, reason] += n
        self._on_lost(item, reason, n)

    def _note_losses(self) -> None:
        """Say in the file what it lacks; tried again with every flush until it is written."""
        chunk = OpenChunk()
        now = layout.clamp_time(time.time_ns())
        for number, ((item, reason), n) in enumerate(self._unreported.items()):
            note = SpanEvent("nsz.lost", now, {"item": item, "reason": reason, "count": n})
            chunk.add(Topic.AGENT, self._file.sequence + number, now, codec.encode_event(note))
        try:
            self._file.append(ChunkClass.SMALL, chunk.body, chunk.last, chunk.index)
        except OSError as error:
            self._failed(error)
            return
        self._file.sequence += len(self._unreported)
        self._unreported.clear()
