"""Finds the chunks of a file, by its summary or by walking it.

Nothing a file says is believed: lengths are held against what is there and against `Limits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope_exporters.nsz import layout, summary
from neuronscope_exporters.nsz.damage import DamageLog, Limits
from neuronscope_exporters.nsz.layout import ChunkClass, Guard, Op
from neuronscope_exporters.nsz.source import Source

# Records between chunks that are stepped over: header, message index, attachment, metadata.
_SKIPPED: Final = frozenset({Op.HEADER, Op.MESSAGE_INDEX, 0x09, 0x0C})


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk's record is, what class it has, and the times of its messages (both included)."""

    offset: int
    length: int
    chunk_class: ChunkClass
    first_time: int = 0
    last_time: int = 2**64 - 1

    def may_have_records(self, start: int, end: int) -> bool:
        """Is it of small records, and may some be of a time in [start, end)?"""
        return self.chunk_class is ChunkClass.SMALL and self.first_time < end and self.last_time >= start


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
    size = summary.FOOTER_SIZE + len(layout.MAGIC)
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
    section = source.read(start, summary_size)
    if layout.crc32(footer[:25], layout.crc32(section, 0)) != checksum:
        raise NszError("the summary does not have the checksum its footer tells")
    return _parse_summary(section, start, limits)


def _parse_summary(section: bytes, end: int, limits: Limits) -> Directory:
    topics: dict[int, str] = {}
    chunks: list[ChunkPlace] = []
    for opcode, body, _ in layout.records(section):
        if opcode == Op.CHANNEL:
            channel, topic = layout.parse_channel(body)
            topics[channel] = topic
        elif opcode == Op.CHUNK_INDEX:
            first, last, offset, length, channels = summary.parse_chunk_index(body)
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

    def _end(self, rest: int) -> None:
        """The data is complete; is the summary behind it?"""
        try:
            _from_summary(self._source, self._limits)
        except NszLimitError:
            raise
        except NszError:
            if self.following:  # it is just being written
                return
            self._log.stretch(rest, self._source.size - rest, "the summary is damaged")
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
