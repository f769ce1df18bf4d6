"""A second reader of `.nsz`, written from docs/reference/nsz-format.md alone; it shares no line with ours.

It shows that the document is enough.  Standard library and zstandard only.  It keeps to the walk from guard
to guard (§2), which reads finished and unfinished files alike.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

MAGIC = b"\x89MCAP0\r\n"
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class TinyFile:
    """Everything in a file.

    Attributes:
        manifest: the first sound checkpoint's.
        spans, layers, logs, events: JSON documents, in the order of the file.
        chunks: offsets of sound chunks.
        lost_chunks: gaps in their numbers.
    """

    def __init__(self, path: str | Path) -> None:
        self._data = Path(path).read_bytes()
        self.manifest: dict[str, Any] = {}
        self.spans: list[dict[str, Any]] = []
        self.layers: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.chunks: list[int] = []
        self.lost_chunks = 0
        assert self._data.startswith(MAGIC)
        expected = 0
        for number, chunk_class, offset, size in self._guarded():
            self.lost_chunks += number - expected
            expected = number + 1
            if chunk_class != 2:
                self._take(self._records(offset, size))
            self.chunks.append(offset)

    # --- §2: guards ------------------------------------------------------------------------------
    def _guarded(self) -> Iterator[tuple[int, int, int, int]]:
        """(number, class, offset of the Chunk record, its size) of every chunk behind a sound guard."""
        data, mark, at = self._data, b"NSZ\x01", 0
        while (found := data.find(mark, at)) >= 0:
            guard = found - 9
            at = found + 1
            if guard < 0 or data[guard] != 0x80 or len(data) < guard + 49:
                continue
            (length,) = struct.unpack_from("<Q", data, guard + 1)
            number, _previous, chunk_class = struct.unpack_from("<IQB", data, guard + 29)
            (crc,) = struct.unpack_from("<I", data, guard + 45)
            chunk = guard + 9 + length
            if not 40 <= length < 104 or len(data) < chunk + 49 or data[chunk] != 6:
                continue
            (name,) = struct.unpack_from("<I", data, chunk + 37)
            if (
                name > 16
                or zlib.crc32(data[chunk : chunk + 49 + name], zlib.crc32(data[found : guard + 45])) != crc
            ):
                continue
            (size,) = struct.unpack_from("<Q", data, chunk + 1)
            if chunk + 9 + size > len(data):
                continue
            mark = data[found : found + 20]  # from here on with the file's id
            at = chunk + 9 + size
            yield number, chunk_class, chunk, 9 + size

    # --- §3: chunks ------------------------------------------------------------------------------
    def _records(self, offset: int, size: int) -> bytes:
        data = self._data
        (unpacked, crc, name) = struct.unpack_from("<QII", data, offset + 25)
        compression = data[offset + 41 : offset + 41 + name].decode()
        stored = data[offset + 49 + name : offset + size]
        if compression == "zstd":
            stored = zstandard.ZstdDecompressor().decompress(stored, max_output_size=unpacked)
        assert len(stored) == unpacked
        assert zlib.crc32(stored) == crc != 0
        return stored

    @staticmethod
    def _messages(records: bytes) -> Iterator[tuple[int, bytes]]:
        at = 0
        while at < len(records):
            opcode, length = struct.unpack_from("<BQ", records, at)
            if opcode == 5:
                (channel,) = struct.unpack_from("<H", records, at + 9)
                yield channel, records[at + 31 : at + 9 + length]
            at += 9 + length

    # --- §4: topics ------------------------------------------------------------------------------
    def _take(self, records: bytes) -> None:
        for channel, data in self._messages(records):
            if channel == 1 and not self.manifest:
                self.manifest = json.loads(data)
                assert self.manifest["version"].startswith("1.")
            elif channel == 2:
                self.spans.append(json.loads(data))
            elif channel in (3, 4):
                self.layers.append(json.loads(data))
            elif channel == 5:
                self.events.append(json.loads(data))
            elif channel == 7:
                self.logs.append(json.loads(data))

    def tensor(self, layer: dict[str, Any]) -> tuple[str, list[int], bytes]:
        """(element type, shape, bytes) of the tensor that an `nsz/tensor_ref` points to."""
        reference = layer["tensor"]
        whole = b""
        for part in reference["parts"]:
            records = self._records(part["offset"], part["length"])
            assert zlib.crc32(records) == part["crc"]
            ((_, document),) = self._messages(records)
            (header_size,) = struct.unpack_from("<Q", document)
            header = json.loads(document[8 : 8 + header_size])["tensor"]
            values = document[8 + header_size :]
            assert header["data_offsets"] == [0, len(values)]
            if reference.get("planes"):
                size = SIZES[reference["dtype"]]
                joined = bytearray(len(values))
                for plane in range(size):
                    joined[plane::size] = values[
                        plane * len(values) // size : (plane + 1) * len(values) // size
                    ]
                values = bytes(joined)
            whole += values
        count = 1
        for size in reference["shape"]:
            count *= size
        assert len(whole) == reference["nbytes"] == count * SIZES.get(reference["dtype"], 16)
        return reference["dtype"], reference["shape"], whole


def plain(value: dict[str, Any]) -> Any:
    """What an OTLP AnyValue stands for."""
    if not value:
        return None
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "doubleValue":
        return float(content)
    if kind == "arrayValue":
        return [plain(item) for item in content.get("values", [])]
    if kind == "kvlistValue":
        return {pair["key"]: plain(pair["value"]) for pair in content.get("values", [])}
    return content
