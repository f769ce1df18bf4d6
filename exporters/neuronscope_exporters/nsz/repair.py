"""Finishes a file that its process could not finish, and salvages a damaged one.

A file that only lacks its end gets it: the torn tail is cut off, and the summary appended, so that
nothing is copied.  Of a file that is damaged elsewhere a sound copy is made, and the original kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz import layout, summary
from neuronscope_exporters.nsz.chunks import ChunkPlace
from neuronscope_exporters.nsz.copying import copy
from neuronscope_exporters.nsz.damage import Damage, Limits
from neuronscope_exporters.nsz.files import closed_name
from neuronscope_exporters.nsz.layout import ChunkClass, ChunkHeader, Op
from neuronscope_exporters.nsz.reader import NszFile
from neuronscope_exporters.nsz.sink import lock
from neuronscope_exporters.nsz.source import Source
from neuronscope_exporters.nsz.unpacking import unpack

DAMAGED_SUFFIX: Final = ".damaged"
_CHANNEL_AND_SIZE: Final = layout.RECORD.size + 6


class BusyError(NszError):
    """The file is being written by a process that lives."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done to a file.

    Attributes:
        path: the sound file.
        action: ``"none"``, ``"finished"`` (the end was appended) or ``"salvaged"`` (a copy was made).
        damage: what could not be kept.
        original: the damaged original, if there is one.
    """

    path: Path
    action: str
    damage: Damage
    original: Path | None = None


def repair(path: str | os.PathLike[str], limits: Limits | None = None) -> Repair:
    """Make a file whole, and give it its final name.

    Raises:
        BusyError: its process lives.
        NszError: there is nothing in it that could be saved.
        OSError: no room, or no permission; the file is as it was.
    """
    target = closed_name(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not lock(descriptor):
            raise BusyError(f"{os.fspath(path)} is being written by another process, or cannot be locked")
        return _repair(Path(path), target, descriptor, limits)
    finally:
        os.close(descriptor)


def _repair(path: Path, target: Path, descriptor: int, limits: Limits | None) -> Repair:
    file = NszFile(path, limits)
    try:
        damage = file.damage
        if damage.stretches or damage.lost_chunks or damage.records:
            return _salvage(path, target, file)
        if not file.finished:
            try:
                _append_end(path, descriptor, file)
            except NszError:  # what is between the chunks is damaged
                return _salvage(path, target, file)
    finally:
        file.close()
    os.replace(path, target)
    return Repair(target, "none" if file.finished else "finished", damage)


def _salvage(path: Path, target: Path, file: NszFile) -> Repair:
    original = target.with_name(target.name + DAMAGED_SUFFIX)
    os.replace(path, original)
    try:
        damage = copy([file], target)
    except (NszError, OSError):
        os.replace(original, path)
        raise
    return Repair(target, "salvaged", damage, original)


# --- the end of a file ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Inventory:
    """What the summary of a file has to tell."""

    definitions: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    counts: dict[int, int] = field(default_factory=dict[int, int])
    indexes: bytearray = field(default_factory=bytearray)
    first: int = 2**64 - 1
    last: int = 0


def _append_end(path: Path, descriptor: int, file: NszFile) -> None:
    if not file.chunks:
        raise NszError(f"{path} has no chunk that could be saved")
    end = file.chunks[-1].offset + file.chunks[-1].length
    source = Source(path)
    try:
        inventory = _Inventory()
        for place in file.chunks[:-1]:
            _take(source, place, inventory, file.limits)
        last = _take(source, file.chunks[-1], inventory, file.limits, at=end)
    finally:
        source.close()
    data_end = layout.record(Op.DATA_END, bytes(4))
    start = end + len(last) + len(data_end)
    schemas = sum(1 for opcode, _ in inventory.definitions if opcode == Op.SCHEMA)
    statistics = summary.statistics(
        inventory.counts, schemas, len(file.chunks), inventory.first, inventory.last
    )
    definitions = [(opcode, data) for (opcode, _), data in inventory.definitions.items()]
    ending = summary.pack(definitions, statistics, bytes(inventory.indexes), start)
    _write_end(descriptor, end, last + data_end + ending)


def _write_end(descriptor: int, end: int, data: bytes) -> None:
    """Replace what is behind `end` by `data`; the tail stays as it was if that cannot be done."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, min(size - end, 64 << 20), end)
    os.ftruncate(descriptor, end)
    try:
        written = os.pwrite(descriptor, data, end)
        if written != len(data):
            raise OSError(28, "no room for the end of the file")
        os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        os.pwrite(descriptor, tail, end)
        raise


def _take(
    source: Source, place: ChunkPlace, inventory: _Inventory, limits: Limits, at: int | None = None
) -> bytes:
    """Add a chunk to the inventory.

    Args:
        at: where its Message Indexes are to be written (they are returned); by default they are there.
    """
    chunk = ChunkHeader.parse(source.read(place.offset, layout.CHUNK_HEADER_MAX))
    index: dict[int, list[int]] = {}
    for opcode, record, offset in _records(source, place, chunk, limits):
        if opcode in (Op.SCHEMA, Op.CHANNEL):
            identifier = int.from_bytes(record[9:11], "little")
            inventory.definitions.setdefault((opcode, identifier), bytes(record))
        elif opcode == Op.MESSAGE:
            _, _, channel, _, when, _ = layout.MESSAGE.unpack_from(record)
            index.setdefault(channel, []).extend((when, offset))
    offsets: dict[int, int] = {}
    written = b""
    if at is None:
        size = _find_indexes(source, place.offset + place.length, index, offsets)
    else:
        for channel, entries in index.items():
            offsets[channel] = at + len(written)
            written += layout.message_index(channel, entries)
        size = len(written)
    inventory.indexes += summary.chunk_index(chunk, place.offset, offsets, size)
    inventory.first = min(inventory.first, chunk.first_time)
    inventory.last = max(inventory.last, chunk.last_time)
    for channel, entries in index.items():
        inventory.counts[channel] = inventory.counts.get(channel, 0) + len(entries) // 2
    return written


def _records(
    source: Source, place: ChunkPlace, chunk: ChunkHeader, limits: Limits
) -> Iterator[tuple[int, memoryview, int]]:
    """(opcode, whole record, offset in the chunk) of a chunk's records; tensor bytes are not touched."""
    view = source.view(place.offset, place.length)
    if chunk.compression or place.chunk_class is not ChunkClass.TENSOR:
        most = limits.tensor_chunk_bytes if place.chunk_class is ChunkClass.TENSOR else None
        body = memoryview(unpack(view, limits, most))
    else:
        body = view[chunk.size :]
    for opcode, content, offset in layout.records(body):
        yield opcode, body[offset : offset + layout.RECORD.size + len(content)], offset


def _find_indexes(source: Source, at: int, index: dict[int, list[int]], offsets: dict[int, int]) -> int:
    """Offsets of the Message Indexes behind a chunk; their size together.

    Raises:
        NszError: they are not those of this chunk.
    """
    position = at
    for _ in index:
        head = source.peek(position, _CHANNEL_AND_SIZE)
        if len(head) < _CHANNEL_AND_SIZE or head[0] != Op.MESSAGE_INDEX:
            raise NszError("a message index is missing")
        channel = int.from_bytes(head[9:11], "little")
        expected = layout.message_index(channel, index.get(channel, []))
        if source.read(position, len(expected)) != expected:
            raise NszError("a message index is damaged")
        offsets[channel] = position
        position += len(expected)
    return position - at
