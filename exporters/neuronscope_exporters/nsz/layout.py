"""The bytes of `.nsz`: MCAP records, the guard record, chunk classes, topics and limits.

Everything here is a pure function of its arguments; `docs/reference/nsz-format.md` is the text
these functions follow.  All integers are little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, cast

from msgspec import Struct

from neuronscope.exceptions import NszError

Buffer = bytes | bytearray | memoryview


def _load_crc32() -> Callable[[Buffer, int], int]:
    """CRC-32 (IEEE) as MCAP uses it: ISA-L's is three times as fast as zlib's, both give the same."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return cast(Callable[[Buffer, int], int], isal_zlib.crc32)


crc32: Final = _load_crc32()

MAGIC: Final = b"\x89MCAP0\r\n"
PROFILE: Final = "nsz"
VERSION: Final = "1.2"
MAJOR: Final = VERSION.partition(".")[0]

# Tensor bytes start at a multiple of this many bytes from the start of the file.
ALIGNMENT: Final = 64
# A small-record chunk is closed before its records outgrow this.
SMALL_CHUNK_BYTES: Final = 256 << 10
# A tensor is cut into parts of at most this size: MCAP readers fail near 2 GiB records.
TENSOR_PART_BYTES: Final = 256 << 20
MAX_RECORD_JSON: Final = 4 << 20
MAX_RATIO: Final = 1024


class Op(IntEnum):
    """MCAP opcodes; GUARD is ours, from the range that MCAP leaves to applications."""

    HEADER = 0x01
    FOOTER = 0x02
    SCHEMA = 0x03
    CHANNEL = 0x04
    MESSAGE = 0x05
    CHUNK = 0x06
    MESSAGE_INDEX = 0x07
    CHUNK_INDEX = 0x08
    STATISTICS = 0x0B
    SUMMARY_OFFSET = 0x0E
    DATA_END = 0x0F
    GUARD = 0x80


_MESSAGE: Final = int(Op.MESSAGE)
_MESSAGE_INDEX: Final = int(Op.MESSAGE_INDEX)
_CHANNEL: Final = int(Op.CHANNEL)
_CHUNK: Final = int(Op.CHUNK)  # plain numbers are packed faster
_GUARD: Final = int(Op.GUARD)


class ChunkClass(IntEnum):
    """What a chunk holds; the classes never mix, so that listing never reads tensor bytes."""

    SMALL = 1
    TENSOR = 2
    CHECKPOINT = 3


class Topic(IntEnum):
    """Channel ids that the profile fixes, so that a lost definition orphans no record."""

    MANIFEST = 1
    SPAN = 2
    TENSOR_SUMMARY = 3
    TENSOR_REF = 4
    AGENT = 5
    INDEX = 6
    LOG = 7


TOPIC_NAMES: Final[Mapping[int, str]] = {
    Topic.MANIFEST: "nsz/manifest",
    Topic.SPAN: "nsz/span",
    Topic.TENSOR_SUMMARY: "nsz/tensor_summary",
    Topic.TENSOR_REF: "nsz/tensor_ref",
    Topic.AGENT: "nsz/agent",
    Topic.INDEX: "nsz/index",
    Topic.LOG: "nsz/log",
}
TENSOR_TOPIC: Final = "nsz/tensor/"
PLANES_SUFFIX: Final = "#planes"
PLANES_ENCODING: Final = "nsz.planes.v1"
TENSOR_OVERFLOW_TOPIC: Final = "nsz/tensor/_overflow"
FIRST_TENSOR_CHANNEL: Final = 16
MAX_TENSOR_CHANNELS: Final = 60_000
MAX_TOPIC_CHARACTERS: Final = 160

RECORD: Final = struct.Struct("<BQ")  # opcode, length
MESSAGE: Final = struct.Struct("<BQHIQQ")  # …, channel, sequence, log time, publish time
_MESSAGE_START: Final = struct.Struct("<BQH")  # opcode, length, channel
ONE_ENTRY: Final = struct.Struct("<BQHIQQ")  # opcode, length, channel, size of the entries, time, offset
MESSAGE_FIXED: Final = MESSAGE.size - RECORD.size
SEQUENCE_AT: Final = RECORD.size + 2
CHUNK: Final = struct.Struct("<BQQQQI")  # …, first time, last time, size, CRC-32; then name, length
GUARD: Final = struct.Struct("<4s16sIQB3x")  # mark, file id, sequence, previous chunk, class; then CRC-32
GUARD_MARK: Final = b"NSZ\x01"
GUARD_FIXED: Final = GUARD.size + 4
GUARD_SIZE: Final = RECORD.size + GUARD_FIXED  # without padding
# A Chunk without compression, as far as its records: …, first time, last time, size, CRC-32, "", size.
PLAIN_CHUNK: Final = struct.Struct("<BQQQQIIQ")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
LAST_TIME: Final = 2**64 - 1


def clamp_time(nanoseconds: int) -> int:
    """A time as MCAP can hold it (the JSON of a record keeps the exact one)."""
    return min(max(nanoseconds, 0), LAST_TIME)


def string(text: str) -> bytes:
    """A length-prefixed UTF-8 string."""
    data = text.encode()
    return _U32.pack(len(data)) + data


def string_map(pairs: Mapping[str, str]) -> bytes:
    """MCAP's ``Map<string, string>``."""
    data = b"".join(string(key) + string(value) for key, value in pairs.items())
    return _U32.pack(len(data)) + data


def record(opcode: int, body: bytes) -> bytes:
    """One record with its header."""
    return RECORD.pack(opcode, len(body)) + body


def header(library: str) -> bytes:
    """The file's first record."""
    return record(Op.HEADER, string(PROFILE) + string(library))


def schema(schema_id: int, name: str, encoding: str, data: bytes) -> bytes:
    """A Schema record."""
    body = _U16.pack(schema_id) + string(name) + string(encoding) + _U32.pack(len(data)) + data
    return record(Op.SCHEMA, body)


def channel(channel_id: int, schema_id: int, topic: str, encoding: str) -> bytes:
    """A Channel record without metadata."""
    body = struct.pack("<HH", channel_id, schema_id) + string(topic) + string(encoding) + string_map({})
    return record(Op.CHANNEL, body)


def message_header(channel_id: int, sequence: int, time: int, length: int) -> bytes:
    """Everything of a Message record before its data of `length` bytes."""
    return MESSAGE.pack(_MESSAGE, MESSAGE_FIXED + length, channel_id, sequence & 0xFFFFFFFF, time, time)


def message_index(channel_id: int, entries: list[int]) -> bytes:
    """A Message Index; `entries` alternates time and offset in the uncompressed chunk."""
    size = 8 * len(entries)
    if size == 16:
        return ONE_ENTRY.pack(_MESSAGE_INDEX, 22, channel_id, 16, *entries)
    return RECORD.pack(_MESSAGE_INDEX, 6 + size) + struct.pack(
        f"<HI{len(entries)}Q", channel_id, size, *entries
    )


class ChunkHeader(Struct, frozen=True, gc=False):
    """The fields of a Chunk record that precede its records."""

    first_time: int
    last_time: int
    uncompressed_size: int
    crc: int
    compression: str
    stored_size: int

    @property
    def size(self) -> int:
        """Bytes of the record before its (compressed) records."""
        return CHUNK.size + 4 + len(self.compression) + 8

    @property
    def total_size(self) -> int:
        """Bytes of the whole Chunk record."""
        return self.size + self.stored_size

    def pack(self) -> bytes:
        """The bytes."""
        name = self.compression.encode()
        return (
            CHUNK.pack(
                _CHUNK,
                CHUNK.size + 12 + len(name) + self.stored_size - RECORD.size,
                self.first_time,
                self.last_time,
                self.uncompressed_size,
                self.crc,
            )
            + _U32.pack(len(name))
            + name
            + _U64.pack(self.stored_size)
        )

    @classmethod
    def parse(cls, data: Buffer) -> ChunkHeader:
        """Read a chunk's header from the start of `data`.

        Raises:
            NszError: it is not one, or its lengths contradict each other.
        """
        if len(data) < CHUNK.size + 4:
            raise NszError("chunk header is cut off")
        opcode, length, first, last, size, crc = CHUNK.unpack_from(data)
        name_size: int = _U32.unpack_from(data, CHUNK.size)[0]
        if opcode != Op.CHUNK or name_size > 16 or len(data) < CHUNK.size + name_size + 12:
            raise NszError("no chunk header here")
        name = bytes(data[CHUNK.size + 4 : CHUNK.size + 4 + name_size])
        stored: int = _U64.unpack_from(data, CHUNK.size + 4 + name_size)[0]
        if not name.isascii():
            raise NszError("chunk names no known compression")
        found = cls(first, last, size, crc, name.decode("ascii"), stored)
        if found.total_size != RECORD.size + length:
            raise NszError("lengths of a chunk contradict each other")
        return found


CHUNK_HEADER_MAX: Final = CHUNK.size + 4 + 16 + 8


class Guard(Struct, frozen=True, gc=False):
    """The record before every chunk: sync mark, identity, checksum of both headers, alignment."""

    file_id: bytes
    sequence: int
    previous: int
    chunk_class: int

    def pack(self, chunk_header: bytes, padding: int = 0) -> bytes:
        """The record's bytes; its CRC covers its own fields and the chunk's header."""
        fields = GUARD.pack(GUARD_MARK, self.file_id, self.sequence, self.previous, self.chunk_class)
        checksum = zlib.crc32(chunk_header, zlib.crc32(fields))
        head = RECORD.pack(_GUARD, GUARD_FIXED + padding)
        return head + fields + _U32.pack(checksum) + bytes(padding)

    @classmethod
    def parse(cls, data: Buffer) -> tuple[Guard, ChunkHeader, int]:
        """Read a guard and the chunk header behind it: (guard, chunk header, bytes of the guard).

        Raises:
            NszError: not a guard, or a byte of the two headers has changed.
        """
        if len(data) < RECORD.size + GUARD_FIXED:
            raise NszError("guard record is cut off")
        opcode, length = RECORD.unpack_from(data)
        mark, file_id, sequence, previous, chunk_class = GUARD.unpack_from(data, RECORD.size)
        if opcode != Op.GUARD or mark != GUARD_MARK or not GUARD_FIXED <= length < GUARD_FIXED + ALIGNMENT:
            raise NszError("no guard record here")
        size = RECORD.size + length
        found = ChunkHeader.parse(data[size:])
        checksum: int = _U32.unpack_from(data, RECORD.size + GUARD.size)[0]
        fields = data[RECORD.size : RECORD.size + GUARD.size]
        if zlib.crc32(data[size : size + found.size], zlib.crc32(fields)) != checksum:
            raise NszError("guard record does not match its chunk")
        return cls(file_id, sequence, previous, chunk_class), found, size


GUARDED_HEADER_MAX: Final = RECORD.size + GUARD_FIXED + ALIGNMENT + CHUNK_HEADER_MAX


def parse_channel(body: Buffer) -> tuple[int, str]:
    """(channel id, topic) of a Channel record."""
    if len(body) < 8:
        raise NszError("channel record is cut off")
    topic, _ = read_string(body, 4)
    return _U16.unpack_from(body)[0], topic


def read_string(body: Buffer, at: int) -> tuple[str, int]:
    """(string at `at`, offset behind it); strings of more than 64 KiB are refused."""
    if at + 4 > len(body):
        raise NszError("string is cut off")
    size: int = _U32.unpack_from(body, at)[0]
    if size > 65536 or at + 4 + size > len(body):
        raise NszError("string is longer than its record")
    try:
        return bytes(body[at + 4 : at + 4 + size]).decode(), at + 4 + size
    except UnicodeDecodeError:
        raise NszError("string is not UTF-8") from None


def records(data: Buffer) -> Iterator[tuple[int, memoryview, int]]:
    """Walk records: (opcode, body, offset of the record).

    Raises:
        NszError: a record is longer than what holds it.
    """
    view = memoryview(data)
    position, end = 0, len(view)
    while position < end:
        if position + RECORD.size > end:
            raise NszError("record header is cut off")
        opcode, length = RECORD.unpack_from(view, position)
        body = position + RECORD.size
        if length > end - body:
            raise NszError("record is longer than what holds it")
        yield opcode, view[body : body + length], position
        position = body + length


def messages(data: Buffer) -> tuple[list[tuple[int, memoryview]], list[memoryview]]:
    """Of a chunk's records: (channel id, data) of each message, and the bodies of Channel records.

    Raises:
        NszError: a record is longer than what holds it, or a message shorter than its header.
    """
    view = memoryview(data)
    found: list[tuple[int, memoryview]] = []
    channels: list[memoryview] = []
    position, end = 0, len(view)
    unpack, header = _MESSAGE_START.unpack_from, RECORD.size
    while position < end:
        if end - position < _MESSAGE_START.size:  # shorter than any message: the rest cannot be one
            channels.extend(body for opcode, body, _ in records(view[position:]) if opcode == Op.CHANNEL)
            break
        opcode, length, channel_id = unpack(view, position)
        body = position + header
        position = body + length
        if position > end:
            raise NszError("record is longer than what holds it")
        if opcode == _MESSAGE:
            if length < MESSAGE_FIXED:
                raise NszError("message record is cut off")
            found.append((channel_id, view[body + MESSAGE_FIXED : position]))
        elif opcode == _CHANNEL:
            channels.append(view[body:position])
    return found, channels
