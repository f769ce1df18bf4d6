"""A file of guarded chunks: appended whole, indexed, with checkpoints in between and a summary at the end."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import zstandard

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
from neuronscope_exporters.nsz.layout import Buffer, ChunkClass, Op, Topic
from neuronscope_exporters.nsz.sink import Sink

CHECKPOINT_BYTES: Final = 64 << 20
CHECKPOINT_CHUNKS: Final = 4096
CHECKPOINT_NS: Final = 10_000_000_000


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
        self._counts: Counter[int] = Counter({int(topic): 0 for topic in Topic})
        # Chunks written.
        self._chunks = 0
        self._previous = 0
        self._chunk_indexes = bytearray()
        self._first_time, self._last_time = 0, 0
        # Since the last checkpoint.
        self._recent: list[tuple[int, int, int, int, int, list[int]]] = []
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
        return channel in self._counts

    def append(
        self,
        chunk_class: ChunkClass,
        body: bytearray,
        last_message: int,
        index: dict[int, list[int]],
        data: memoryview | None = None,
    ) -> tuple[int, layout.ChunkHeader]:
        """Append one guarded chunk in one system call: (its offset, its header).

        `last_message` is the offset in `body` of its last message; `data` are the aligned bytes that
        end a tensor chunk.

        Raises:
            OSError: nothing was written.
        """
        parts: list[Buffer] = [body] if data is None else [body, data]
        crc = nonzero_crc(body, parts[1:], last_message + layout.SEQUENCE_AT)
        size = sum(map(len, parts))
        compression, stored = (
            ("", parts) if data is not None and not self._compress_tensors else self._pack(parts)
        )
        times = [when for entries in index.values() for when in entries[::2]]
        stored_size = sum(len(part) for part in stored)
        chunk = layout.ChunkHeader(min(times), max(times), size, crc, compression, stored_size)
        head = chunk.pack()
        guard = layout.Guard(self._file_id, self._chunks, self._previous, chunk_class)
        guard_size = layout.RECORD.size + layout.GUARD_FIXED
        aligned = self._sink.position + guard_size + len(head) + len(body)
        padding = -aligned % layout.ALIGNMENT if data is not None else 0
        offset = self._sink.position + guard_size + padding
        after = b""
        index_offsets: dict[int, int] = {}
        for channel, entries in index.items():
            index_offsets[channel] = offset + chunk.total_size + len(after)
            after += layout.message_index(channel, entries)
        self._sink.append([guard.pack(head, padding), head, *stored, after])
        self._chunk_indexes += summary.chunk_index(chunk, offset, index_offsets, len(after))
        self._count(chunk, chunk_class, offset, index)
        return offset, chunk

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint where the last one is too far behind.

        Raises:
            OSError: nothing was written.
        """
        if self._recent and (
            self._sink.position - self._checkpoint_position >= CHECKPOINT_BYTES
            or len(self._recent) >= CHECKPOINT_CHUNKS
            or time.monotonic_ns() - self._checkpoint_time >= CHECKPOINT_NS
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

    def _pack(self, parts: list[Buffer]) -> tuple[str, list[Buffer]]:
        """(compression, stored bytes); plain where the ratio would look like a bomb to a reader."""
        whole = parts[0] if len(parts) == 1 else b"".join(parts)  # a copy is faster than compressing in parts
        packed = self._compress(whole)
        if len(whole) > layout.MAX_RATIO * max(len(packed), 64) or len(packed) >= len(whole):
            return "", parts
        return "zstd", [packed]

    def _count(
        self, chunk: layout.ChunkHeader, kind: ChunkClass, offset: int, index: dict[int, list[int]]
    ) -> None:
        first, last = chunk.first_time, chunk.last_time
        self._first_time = min(first, self._first_time) if self._chunks else first
        self._last_time = max(last, self._last_time)
        self._chunks += 1
        self._previous = offset
        for channel, entries in index.items():
            self._counts[channel] += len(entries) // 2
        self._recent.append((offset, chunk.total_size, int(kind), first, last, list(index)))

    def _checkpoint(self) -> None:
        """Write all definitions, the manifest and the index of the chunks since the last checkpoint."""
        now = layout.clamp_time(time.time_ns())
        recent = documents.encode(documents.IndexDocument(self._checkpoint_at, self._recent))
        chunk = OpenChunk(b"".join(data for _, data in self._definitions))
        chunk.add(Topic.MANIFEST, self.sequence, now, self._manifest)
        chunk.add(Topic.INDEX, self.sequence + 1, now, recent)
        offset, _ = self.append(ChunkClass.CHECKPOINT, chunk.body, chunk.last, chunk.index)
        self.sequence += 2
        self._recent = []
        self._checkpoint_at = offset
        self._checkpoint_position = self._sink.position
        self._checkpoint_time = time.monotonic_ns()
