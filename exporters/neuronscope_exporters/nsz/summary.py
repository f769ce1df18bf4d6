"""What ends a finished file: the index of its chunks, its statistics, and the footer.

Pure functions, as in `layout`; `docs/reference/nsz-format.md` §1 is the text that they follow.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz.layout import MAGIC, RECORD, Buffer, ChunkHeader, Op, record, string

FOOTER_SIZE: Final = RECORD.size + 20
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


def chunk_index(chunk: ChunkHeader, offset: int, index_offsets: Mapping[int, int], index_size: int) -> bytes:
    """A Chunk Index record of the summary; `index_offsets` maps channels to their Message Index."""
    offsets = b"".join(struct.pack("<HQ", *item) for item in index_offsets.items())
    body = (
        struct.pack("<4Q", chunk.first_time, chunk.last_time, offset, chunk.total_size)
        + _U32.pack(len(offsets))
        + offsets
        + _U64.pack(index_size)
        + string(chunk.compression)
        + struct.pack("<QQ", chunk.stored_size, chunk.uncompressed_size)
    )
    return record(Op.CHUNK_INDEX, body)


def parse_chunk_index(body: Buffer) -> tuple[int, int, int, int, list[int]]:
    """(first time, last time, offset of the chunk, its length, channels it holds messages of)."""
    try:
        first, last, offset, length, size = struct.unpack_from("<4QI", body)
        if size > len(body) - 36 or size % 10:
            raise NszError("chunk index does not add up")
        channels = [entry[0] for entry in struct.iter_unpack("<HQ", body[36 : 36 + size])]
        return first, last, offset, length, channels
    except struct.error:
        raise NszError("chunk index is cut off") from None


def pack(
    definitions: Iterable[tuple[int, bytes]],
    statistics: bytes,
    chunk_indexes: bytes,
    start: int,
) -> bytes:
    """Summary section, summary offsets and footer for a summary that starts at file offset `start`."""
    groups = [
        (Op.SCHEMA, b"".join(data for opcode, data in definitions if opcode == Op.SCHEMA)),
        (Op.CHANNEL, b"".join(data for opcode, data in definitions if opcode == Op.CHANNEL)),
        (Op.STATISTICS, statistics),
        (Op.CHUNK_INDEX, chunk_indexes),
    ]
    body, offsets = bytearray(), bytearray()
    for opcode, data in groups:
        if data:
            offsets += record(Op.SUMMARY_OFFSET, struct.pack("<BQQ", opcode, start + len(body), len(data)))
            body += data
    offsets_start = start + len(body)
    body += offsets
    body += RECORD.pack(Op.FOOTER, 20) + struct.pack("<QQ", start, offsets_start)
    return bytes(body) + _U32.pack(zlib.crc32(body)) + MAGIC


def statistics(counts: Mapping[int, int], schemas: int, chunks: int, first: int, last: int) -> bytes:
    """The Statistics record; `counts` maps each channel to its messages."""
    per_channel = b"".join(struct.pack("<HQ", *item) for item in counts.items())
    fixed = struct.pack("<QHIIIIQQ", sum(counts.values()), schemas, len(counts), 0, 0, chunks, first, last)
    return record(Op.STATISTICS, fixed + _U32.pack(len(per_channel)) + per_channel)
