"""The records of a chunk, decompressed and checked, whatever its header claims."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import zstandard

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.damage import Limits
from neuronscope_exporters.nsz.layout import ChunkHeader

_ZSTD_WINDOW: Final = 128 << 20


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
