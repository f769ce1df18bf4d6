"""A file of guarded chunks: appended whole, indexed, with checkpoints in between and a summary at the end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import zstandard
from msgspec import Struct

from neuronscope.signals.records import Attributes
from neuronscope_exporters.nsz import documents, layout, summary
from neuronscope_exporters.nsz.assembly import (
    DOCUMENTS,
    LIBRARY,
    OpenChunk,
    fixed_definitions,
    new_manifest,
    nonzero_crc,
)
from neuronscope_exporters.nsz.framing import Place, TensorMessage, frame_tensor
from neuronscope_exporters.nsz.layout import Buffer, ChunkClass, Op, Topic
from neuronscope_exporters.nsz.sink import Sink

CHECKPOINT_BYTES: Final = 64 << 20
CHECKPOINT_CHUNKS: Final = 4096
CHECKPOINT_NS: Final = 10_000_000_000


class _Written(Struct, frozen=True, gc=False):
    """A chunk of the file.

    Attributes:
        index_offsets: of the Message Index of each channel; `index_size` is their size together.
        counts: messages by channel.
    """

    chunk: layout.ChunkHeader
    chunk_class: ChunkClass
    offset: int
    index_offsets: dict[int, int]
    index_size: int
    counts: dict[int, int]

    def whole(self) -> _Written:
        """Itself."""
        return self

    def place(self) -> tuple[int, int, int, int, int, list[int]]:
        """Its entry in a checkpoint's index."""
        chunk = self.chunk
        channels = list(self.counts)
        return (
            self.offset, chunk.total_size, int(self.chunk_class), chunk.first_time, chunk.last_time, channels
        )  # fmt: skip


class _WrittenTensor(Struct, frozen=True, gc=False):
    """A tensor's chunk, uncompressed; what it lacks of `_Written` is made when the index is.

    Attributes:
        size: bytes of its records.
    """

    offset: int
    size: int
    when: int
    channel: int

    def whole(self) -> _Written:
        """All that is known of the chunk."""
        chunk = layout.ChunkHeader(self.when, self.when, self.size, 0, "", self.size)
        index_offsets = {self.channel: self.offset + chunk.total_size}
        return _Written(
            chunk,
            ChunkClass.TENSOR,
            self.offset,
            index_offsets,
            layout.ONE_ENTRY.size,
            {self.channel: 1},
        )


class ChunkFile:
    """Knows of chunks and definitions, not of what the records mean.  For one thread.

    Args:
        path: the file; it must not exist.
        resources: OTel resources, for the manifest.
        compress_tensors: compress chunks of tensors as well.
        segment: number in a series of files.
        previous_segment: file id of the one before, in hexadecimal.

    Attributes:
        sequence: the next message's number; whoever adds messages raises it.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        resources: Sequence[Attributes],
        *,
        compress_tensors: bool,
        segment: int,
        previous_segment: str | None,
    ) -> None:
        self.sequence = 0
        self._file_id = os.urandom(16)
        self._manifest = documents.encode(new_manifest(self._file_id, resources, segment, previous_segment))
        self._compress_tensors = compress_tensors
        self._compress = zstandard.ZstdCompressor(level=1, write_checksum=False).compress
        # Definitions by channel, each written in the chunk that first uses it and in every checkpoint.
        self._definitions: list[tuple[int, bytes]] = list(fixed_definitions())
        self._used: set[int] = set(Topic)  # channels
        self._chunks = 0
        self._previous = 0
        # Since the last checkpoint: what is made of it can wait, for right after a large write the
        # processor's caches have forgotten everything of ours.
        self._recent: list[_Written | _WrittenTensor] = []
        # Of the chunks before it.
        self._counts: Counter[int] = Counter({int(topic): 0 for topic in Topic})
        self._chunk_indexes = bytearray()
        self._first_time, self._last_time = layout.LAST_TIME, 0
        self._checkpoint_at = 0
        self._checkpoint_position = 0
        self._checkpoint_time = 0
        self._sink = Sink.create(path)
        try:
            self._sink.append([layout.MAGIC, layout.header(LIBRARY)])
            self._checkpoint()
        except OSError:
            self._sink.close()
            with suppress(OSError):  # it was deleted: that is what the first error says
                os.unlink(path)
            raise

    @property
    def file_id(self) -> str:
        """The file's id, in hexadecimal."""
        return self._file_id.hex()

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._sink.position

    @property
    def closed(self) -> bool:
        """True after `close`, and when the file is beyond use."""
        return self._sink.closed

    def define(self, definition: bytes) -> None:
        """Repeat this Channel record, which a chunk holds by now, in every checkpoint."""
        self._definitions.append((Op.CHANNEL, definition))

    def uses(self, channel: int) -> bool:
        """Does a chunk hold messages of this channel, and its definition?"""
        return channel in self._used

    def append(
        self, chunk_class: ChunkClass, body: bytearray, last_message: int, index: dict[int, list[int]]
    ) -> int:
        """Append one guarded chunk in one system call: its offset.

        `last_message` is the offset in `body` of its last message.

        Raises:
            OSError: nothing was written.
        """
        crc = nonzero_crc(body, last_message + layout.SEQUENCE_AT)
        times = [when for entries in index.values() for when in entries[::2]]
        packed = self._pack(body)
        compression, stored = ("", body) if packed is None else ("zstd", packed)
        chunk = layout.ChunkHeader(min(times), max(times), len(body), crc, compression, len(stored))
        return self._append(chunk_class, chunk, stored, index)

    def append_tensor(self, message: TensorMessage) -> tuple[int, int, int]:
        """Append a tensor in a chunk of its own: (its offset, its length, its CRC-32).

        Raises:
            OSError: nothing was written.
        """
        if self._compress_tensors:
            body = bytearray(b"".join(message.parts()))  # a copy is faster than compressing in parts
            at = len(message.definition)
            crc = nonzero_crc(body, at + layout.SEQUENCE_AT)
            packed = self._pack(body)
            if packed is not None:
                when = message.when
                chunk = layout.ChunkHeader(when, when, len(body), crc, "zstd", len(packed))
                index = {message.channel: [when, at]}
                return self._append(ChunkClass.TENSOR, chunk, packed, index), chunk.total_size, crc
        place = Place(self._file_id, self._chunks, self._previous, self._sink.position)
        front, after, offset, size, crc = frame_tensor(place, message)
        # Not looked for first: the reference that follows will be missed if the file is no longer there.
        self._sink.append((front, message.data, after), looked_for=False)
        self._recent.append(_WrittenTensor(offset, size, message.when, message.channel))
        self._remember(offset, (message.channel,))
        return offset, layout.PLAIN_CHUNK.size + size, crc

    def _append(
        self, chunk_class: ChunkClass, chunk: layout.ChunkHeader, stored: Buffer, index: dict[int, list[int]]
    ) -> int:
        head = chunk.pack()
        guard = layout.Guard(self._file_id, self._chunks, self._previous, chunk_class)
        offset = self._sink.position + layout.GUARD_SIZE
        end = offset + len(head) + len(stored)
        after = b""
        index_offsets: dict[int, int] = {}
        for channel, entries in index.items():
            index_offsets[channel] = end + len(after)
            after += layout.message_index(channel, entries)
        self._sink.append((guard.pack(head), head, stored, after))
        counts = {channel: len(entries) // 2 for channel, entries in index.items()}
        self._recent.append(_Written(chunk, chunk_class, offset, index_offsets, len(after), counts))
        self._remember(offset, counts)
        return offset

    def _remember(self, offset: int, channels: Iterable[int]) -> None:
        """Go on behind a chunk that was written."""
        self._used.update(channels)
        self._chunks += 1
        self._previous = offset

    def checkpoint_if_due(self, *, by_time: bool) -> None:
        """Write a checkpoint where the last one is too far behind.

        Args:
            by_time: also where it is too long ago.

        Raises:
            OSError: nothing was written.
        """
        if self._recent and (
            self._sink.position - self._checkpoint_position >= CHECKPOINT_BYTES
            or len(self._recent) >= CHECKPOINT_CHUNKS
            or (by_time and time.monotonic_ns() - self._checkpoint_time >= CHECKPOINT_NS)
        ):
            self._checkpoint()

    def check(self) -> None:
        """Can the file still be found?

        Raises:
            OSError: it was deleted or closed.
        """
        self._sink.check()

    def finish(self, *, sync: bool) -> None:
        """Append the summary.

        Args:
            sync: wait until the disk has the file.

        Raises:
            OSError: the file has no end, or may not be on the disk.
        """
        self._settle()
        data_end = layout.record(Op.DATA_END, bytes(4))
        start = self._sink.position + len(data_end)
        statistics = summary.statistics(
            self._counts, len(DOCUMENTS), self._chunks, self._first_time, self._last_time
        )
        end = summary.pack(self._definitions, statistics, bytes(self._chunk_indexes), start)
        self._sink.append([data_end, end])
        if sync:
            self._sink.sync()

    def close(self) -> None:
        """Let go of the file; again does nothing."""
        self._sink.close()

    def _pack(self, body: bytearray) -> bytes | None:
        """The records compressed; None where that is no smaller, or would look like a bomb to a reader."""
        packed = self._compress(body)
        if len(body) > layout.MAX_RATIO * max(len(packed), 64) or len(packed) >= len(body):
            return None
        return packed

    def _settle(self) -> None:
        """Take the recent chunks into the index and the statistics of the summary."""
        recent, self._recent = self._recent, []
        for each in recent:
            written = each.whole()
            chunk = written.chunk
            self._chunk_indexes += summary.chunk_index(
                chunk, written.offset, written.index_offsets, written.index_size
            )
            self._first_time = min(self._first_time, chunk.first_time)
            self._last_time = max(self._last_time, chunk.last_time)
            self._counts.update(written.counts)

    def _checkpoint(self) -> None:
        """Write all definitions, the manifest and the index of the chunks since the last checkpoint."""
        now = layout.clamp_time(time.time_ns())
        places = [each.whole().place() for each in self._recent]
        index = documents.encode(documents.IndexDocument(self._checkpoint_at, places))
        chunk = OpenChunk(b"".join(data for _, data in self._definitions))
        chunk.add(Topic.MANIFEST, self.sequence, now, self._manifest)
        chunk.add(Topic.INDEX, self.sequence + 1, now, index)
        offset = self.append(ChunkClass.CHECKPOINT, chunk.body, chunk.last, chunk.index)
        self.sequence += 2
        self._settle()
        self._checkpoint_at = offset
        self._checkpoint_position = self._sink.position
        self._checkpoint_time = time.monotonic_ns()
