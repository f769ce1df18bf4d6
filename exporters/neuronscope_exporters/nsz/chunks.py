"""Finds the chunks of a file, by its summary or by walking it, and unpacks them safely.

Nothing a file says is believed: lengths are held against what is there and against `Limits`, and no
record is returned whose checksum was not right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import zstandard

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.layout import ChunkClass, ChunkHeader, Guard, Op
from neuronscope_exporters.nsz.source import Source

_MAX_REASONS: Final = 20
_ZSTD_WINDOW: Final = 128 << 20
# Records between chunks that are stepped over: header, message index, attachment, metadata.
_SKIPPED: Final = frozenset({Op.HEADER, Op.MESSAGE_INDEX, 0x09, 0x0C})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may ask of its reader.  Beyond the first four the file is refused.

    Attributes:
        chunks: chunks in the file.
        damaged: damaged stretches in the file.
        inflated_bytes: bytes that all chunks of small records together unpack to.
        summary_bytes: size of the summary section.
        small_chunk_bytes: unpacked size of a chunk of small records; a larger one is skipped.
        tensor_chunk_bytes: size of a tensor's chunk; a larger one is not read.
        ratio: unpacked bytes for a byte of a compressed chunk.
    """

    chunks: int = 1_000_000
    damaged: int = 100_000
    inflated_bytes: int = 1 << 30
    summary_bytes: int = 256 << 20
    small_chunk_bytes: int = 16 << 20
    tensor_chunk_bytes: int = 1 << 30
    ratio: int = layout.MAX_RATIO


@dataclass(frozen=True, slots=True)
class Damage:
    """What could not be read.  False when everything could.

    A file that was not finished is not damaged by that alone.

    Attributes:
        stretches: damaged parts of the file that were skipped.
        bytes: their size.
        lost_chunks: chunks that are known to be missing, by the gaps in their numbers.
        records: single records that made no sense although their checksum was right.
        truncated_bytes: size of the torn record at the end.
        reasons: the first reasons, for people.
        files: files of a directory that could not be opened at all, and why.
    """

    stretches: int = 0
    bytes: int = 0
    lost_chunks: int = 0
    records: int = 0
    truncated_bytes: int = 0
    reasons: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def count(self) -> int:
        """Everything that was skipped, as one number."""
        torn = 1 if self.truncated_bytes else 0
        return self.stretches + self.records + torn + len(self.files)

    def __bool__(self) -> bool:
        return self.count > 0 or self.lost_chunks > 0

    def __add__(self, other: Damage) -> Damage:
        return Damage(
            self.stretches + other.stretches,
            self.bytes + other.bytes,
            self.lost_chunks + other.lost_chunks,
            self.records + other.records,
            self.truncated_bytes + other.truncated_bytes,
            (self.reasons + other.reasons)[:_MAX_REASONS],
            self.files + other.files,
        )


@dataclass(slots=True)
class DamageLog:
    """Gathers damage; the same stretch, met twice, counts once."""

    limits: Limits
    stretches: dict[int, int] = field(default_factory=dict[int, int])
    lost_chunks: int = 0
    records: int = 0
    truncated_bytes: int = 0
    reasons: list[str] = field(default_factory=list[str])
    torn_reason: str = ""

    def stretch(self, offset: int, length: int, reason: str) -> None:
        """`length` bytes at `offset` are skipped."""
        if offset in self.stretches:
            return
        self.stretches[offset] = length
        self._say(f"{length} bytes at {offset}: {reason}")
        if len(self.stretches) > self.limits.damaged:
            raise NszLimitError(f"more than {self.limits.damaged} damaged stretches")

    def record(self, reason: str) -> None:
        """A record is skipped."""
        self.records += 1
        self._say(reason)

    def torn(self, offset: int, length: int) -> None:
        """The file ends within a record."""
        self.truncated_bytes = length
        self.torn_reason = f"{length} bytes at {offset}: the file ends within a record" if length else ""

    def _say(self, reason: str) -> None:
        if len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)

    def report(self) -> Damage:
        """What was gathered so far."""
        return Damage(
            stretches=len(self.stretches),
            bytes=sum(self.stretches.values()),
            lost_chunks=self.lost_chunks,
            records=self.records,
            truncated_bytes=self.truncated_bytes,
            reasons=tuple([*self.reasons, self.torn_reason] if self.torn_reason else self.reasons),
        )


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk's record is, what class it has, and the times of its messages (both included)."""

    offset: int
    length: int
    chunk_class: ChunkClass
    first_time: int = 0
    last_time: int = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Directory:
    """All chunks of a file, in order, and the channels its summary declares.

    Attributes:
        walk: how the chunks were found where no summary told; goes on when the file grows.
    """

    chunks: Sequence[ChunkPlace]
    topics: Mapping[int, str]
    finished: bool
    walk: Walk | None = None


def locate(source: Source, limits: Limits, log: DamageLog) -> Directory:
    """Find all chunks, by the summary if there is a sound one, else by walking the file.

    Raises:
        NszLimitError: the file has more chunks, or more damage, than `limits` allow.
    """
    try:
        return _from_summary(source, limits)
    except NszLimitError:
        raise
    except NszError:
        return Walk(source, limits, log).run()


# --- by the summary -----------------------------------------------------------------------------


def _from_summary(source: Source, limits: Limits) -> Directory:
    size = layout.FOOTER_SIZE + len(layout.MAGIC)
    footer = source.read(source.size - size, size)
    if len(footer) != size or not footer.endswith(layout.MAGIC):
        raise NszError("no footer")
    opcode, length = layout.RECORD.unpack_from(footer)
    start = int.from_bytes(footer[9:17], "little")
    checksum = int.from_bytes(footer[25:29], "little")
    summary_size = source.size - size - start
    if opcode != Op.FOOTER or length != 20 or not 0 < start <= source.size - size:
        raise NszError("no sound footer")
    if summary_size > limits.summary_bytes:
        raise NszLimitError(f"summary of {summary_size} bytes; at most {limits.summary_bytes} are allowed")
    summary = source.read(start, summary_size)
    if layout.crc32(footer[:25], layout.crc32(summary, 0)) != checksum:
        raise NszError("the summary does not have the checksum its footer tells")
    return _parse_summary(summary, start, limits)


def _parse_summary(summary: bytes, end: int, limits: Limits) -> Directory:
    topics: dict[int, str] = {}
    chunks: list[ChunkPlace] = []
    for opcode, body, _ in layout.records(summary):
        if opcode == Op.CHANNEL:
            channel, topic = layout.parse_channel(body)
            topics[channel] = topic
        elif opcode == Op.CHUNK_INDEX:
            first, last, offset, length, channels = layout.parse_chunk_index(body)
            if offset + length > end:
                raise NszError("the summary names a chunk outside the file")
            chunks.append(ChunkPlace(offset, length, _chunk_class(channels, topics), first, last))
            if len(chunks) > limits.chunks:
                raise NszLimitError(f"more than {limits.chunks} chunks")
    return Directory(tuple(chunks), topics, finished=True)


def _chunk_class(channels: list[int], topics: Mapping[int, str]) -> ChunkClass:
    names = [topics.get(channel, "") for channel in channels]
    if layout.TOPIC_NAMES[layout.Topic.MANIFEST] in names:
        return ChunkClass.CHECKPOINT
    if names and all(name.startswith(layout.TENSOR_TOPIC) for name in names):
        return ChunkClass.TENSOR
    return ChunkClass.SMALL


# --- by walking ---------------------------------------------------------------------------------


class Walk:
    """Goes from record to record by their headers, and after damage on to the next guard.

    Lengths of unguarded records (message indexes) are not protected: whatever does not lead to a
    sound guard is searched again from the end of the last sound chunk.

    Attributes:
        following: the file is being written: an end without a summary is no damage yet.
    """

    def __init__(self, source: Source, limits: Limits, log: DamageLog) -> None:
        self._source, self._limits, self._log = source, limits, log
        self._chunks: list[ChunkPlace] = []
        self._file_id = b""
        self._next_sequence = 0
        self._sound = len(layout.MAGIC)  # everything before is accounted for
        self._finished = False
        self.following = False

    @property
    def end(self) -> int:
        """Offset behind the last sound record: where a file that is to be repaired is cut."""
        return self._sound

    def run(self) -> Directory:
        """Walk on from the last sound chunk to the end of the file."""
        position = self._sound
        self._log.torn(position, 0)
        while position < self._source.size and not self._finished:
            position = self._step(position)
        return Directory(self._chunks, {}, self._finished, self)

    def _step(self, position: int) -> int:
        """Read the record at `position`; where the next one is."""
        head = self._source.peek(position, layout.RECORD.size)
        if len(head) == layout.RECORD.size:
            opcode, length = layout.RECORD.unpack(head)
            following: int = position + layout.RECORD.size + length
            if opcode == Op.GUARD:
                return self._guarded(position)
            if opcode == Op.DATA_END and length == 4 and self._source.find(self._mark(), position) < 0:
                self._end(following)
                return following
            skipped = opcode in _SKIPPED or opcode > Op.GUARD
            if skipped and following <= self._source.size:
                return following
        return self._resume(self._sound, "no record of a data section")

    def _end(self, summary: int) -> None:
        """The data is complete; is the summary behind it?"""
        try:
            _from_summary(self._source, self._limits)
        except NszLimitError:
            raise
        except NszError:
            if self.following:  # it is just being written
                return
            self._log.stretch(summary, self._source.size - summary, "the summary is damaged")
        self._finished = True

    def _guarded(self, position: int) -> int:
        """Take the chunk behind the guard at `position`."""
        try:
            guard, place = self._parse(position)
        except NszError as error:
            return self._resume(position + 1, str(error))
        if guard.sequence != self._next_sequence and self._sound < position:
            # A wrong length may have led past chunks.
            earlier = self._source.find(self._mark(), self._sound) - layout.RECORD.size
            if self._sound <= earlier < position:
                return self._resume(self._sound, "a length before this chunk is wrong")
        self._log.lost_chunks += max(guard.sequence - self._next_sequence, 0)
        self._file_id = guard.file_id
        self._next_sequence = guard.sequence + 1
        self._chunks.append(place)
        if len(self._chunks) > self._limits.chunks:
            raise NszLimitError(f"more than {self._limits.chunks} chunks")
        self._sound = place.offset + place.length
        return self._sound

    def _parse(self, position: int) -> tuple[Guard, ChunkPlace]:
        guard, chunk, size = Guard.parse(self._source.peek(position, layout.GUARDED_HEADER_MAX))
        if self._file_id and guard.file_id != self._file_id:
            raise NszError("guard of another file")
        if chunk.total_size > self._source.size - position - size:
            raise NszError("chunk is longer than the file")
        return guard, ChunkPlace(
            position + size, chunk.total_size, _known_class(guard), chunk.first_time, chunk.last_time
        )

    def _mark(self) -> bytes:
        return layout.GUARD_MARK + self._file_id

    def _resume(self, start: int, reason: str) -> int:
        """Skip to the next sound guard at or after `start`; what is between is lost."""
        for _ in range(self._limits.damaged):
            found = self._source.find(self._mark(), start + layout.RECORD.size)
            if found < 0:
                torn = self._behind_indexes()
                self._log.torn(torn, self._source.size - torn)
                return self._source.size
            position = found - layout.RECORD.size
            try:
                self._parse(position)
            except NszError:
                start = position + 1
                continue
            if position > self._sound:
                self._log.stretch(self._sound, position - self._sound, reason)
            self._sound = position
            return position
        raise NszLimitError(f"more than {self._limits.damaged} damaged guards")

    def _behind_indexes(self) -> int:
        """Offset behind the Message Indexes of the last sound chunk."""
        position = self._sound
        while True:
            head = self._source.peek(position, layout.RECORD.size)
            if len(head) < layout.RECORD.size or head[0] != Op.MESSAGE_INDEX:
                return position
            following = position + layout.RECORD.size + layout.RECORD.unpack(head)[1]
            if following > self._source.size:
                return position
            position = following


def _known_class(guard: Guard) -> ChunkClass:
    try:
        return ChunkClass(guard.chunk_class)
    except ValueError:  # a class of a later minor version: its records are looked at like small ones
        return ChunkClass.SMALL


# --- unpacking ----------------------------------------------------------------------------------


def unpack(data: bytes | memoryview, limits: Limits, most: int | None = None) -> bytes | memoryview:
    """The records of a chunk, from its whole Chunk record.

    Args:
        most: bytes they may unpack to; by default the limit for chunks of small records.

    Raises:
        NszError: damaged, or compressed in a way that a hostile file would be.
    """
    chunk = ChunkHeader.parse(data)
    if chunk.total_size != len(data):
        raise NszError("chunk is not as long as its place")
    if chunk.uncompressed_size > (limits.small_chunk_bytes if most is None else most):
        raise NszLimitError(f"chunk unpacks to {chunk.uncompressed_size} bytes")
    stored = memoryview(data)[chunk.size :]
    records = _inflate(chunk, stored, limits)
    if len(records) != chunk.uncompressed_size or not chunk.crc or layout.crc32(records, 0) != chunk.crc:
        raise NszError("chunk does not have the checksum its header tells")
    return records


def _inflate(chunk: ChunkHeader, stored: memoryview, limits: Limits) -> bytes | memoryview:
    if chunk.compression == "":
        return stored
    if chunk.compression not in ("zstd", "lz4"):
        raise NszError(f"unknown compression {chunk.compression!r}")
    if chunk.uncompressed_size > limits.ratio * max(len(stored), 64):
        raise NszLimitError("chunk claims an impossible compression ratio")
    return _inflate_lz4(chunk, stored) if chunk.compression == "lz4" else _inflate_zstd(chunk, stored)


def _inflate_zstd(chunk: ChunkHeader, stored: memoryview) -> bytes:
    try:
        frame = zstandard.get_frame_parameters(stored)
        # python-zstandard allocates what the frame declares: look before it does.
        if frame.content_size != chunk.uncompressed_size or frame.window_size > _ZSTD_WINDOW:
            raise NszError("compressed size does not fit the chunk's")
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompress(
            stored, max_output_size=chunk.uncompressed_size, allow_extra_data=False
        )
    except (zstandard.ZstdError, MemoryError) as error:
        raise NszError(f"chunk cannot be decompressed: {error}") from None


def _inflate_lz4(chunk: ChunkHeader, stored: memoryview) -> bytes:
    """Other MCAP writers may use lz4; ours does not, so the package is optional."""
    try:
        lz4: Any = import_module("lz4.frame")  # without types
    except ImportError:
        raise NszError("a chunk is compressed by lz4: install the package lz4 to read it") from None
    decompressor = lz4.LZ4FrameDecompressor()
    try:
        data = bytes(decompressor.decompress(stored, max_length=chunk.uncompressed_size))
        # The end mark may be behind the last byte of data; more than was claimed must not be.
        more = b"" if decompressor.eof else decompressor.decompress(b"", max_length=1)
    except (RuntimeError, MemoryError, EOFError) as error:
        raise NszError(f"chunk cannot be decompressed: {error}") from None
    if more or not decompressor.eof or decompressor.unused_data:
        raise NszError("compressed size does not fit the chunk's")
    return data
