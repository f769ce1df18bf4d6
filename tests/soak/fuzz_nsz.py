"""Coverage-guided fuzzing of the `.nsz` reader: ``python tests/soak/fuzz_nsz.py CORPUS [libFuzzer options]``.

Random bytes seldom get past a checksum.  So most inputs are not a file but a recipe for one: chunks with
right guards and checksums around fuzzed records, documents and tensor headers.  Nothing but `NszError` may
come out, and memory stays within the limits asked for plus 64 MiB.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import zstandard

atheris: Final[Any] = import_module("atheris")  # without types
lz4: Final[Any] = import_module("lz4.frame")

with atheris.instrument_imports(include=["neuronscope_exporters.nsz"]):
    from neuronscope.exceptions import NszError
    from neuronscope_exporters import nsz
    from neuronscope_exporters.nsz import layout
    from neuronscope_exporters.nsz.layout import ChunkHeader, Guard

MIB: Final = 1 << 20
LIMITS: Final = nsz.Limits(
    chunks=10_000,
    damaged=10_000,
    inflated_bytes=32 * MIB,
    summary_bytes=8 * MIB,
    small_chunk_bytes=8 * MIB,
    tensor_chunk_bytes=32 * MIB,
)
ALLOWED: Final = (32 + 64) * MIB
START: Final = layout.MAGIC + layout.header("fuzz")
# In memory, by its name in /proc: libFuzzer ends the process without a chance to delete anything.
FILE: Final = Path(f"/proc/self/fd/{os.memfd_create('fuzzed.nsz')}")
FILE_ID: Final = bytes(16)


def main() -> None:
    """Fuzz until libFuzzer's options say stop."""
    atheris.Setup(sys.argv, fuzz_one)
    atheris.Fuzz()


def fuzz_one(data: bytes) -> None:
    """Read one input; anything unexpected is raised."""
    whole = data.startswith(layout.MAGIC)  # else a recipe
    content = data if whole else recipe(atheris.FuzzedDataProvider(data))
    FILE.write_bytes(content)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = memory("VmRSS")
    read_everything()
    grown = memory("VmHWM") - before
    if grown > ALLOWED:
        raise MemoryError(f"an input of {len(content)} bytes took {grown >> 20} MiB")


def read_everything() -> None:
    """Whatever a user could ask of a file."""
    try:
        file = nsz.NszFile(FILE, LIMITS)
        _ = file.spans, file.logs, file.events, file.span_heads, file.damage
        file.find_spans(span_id=1, start=5)
        file.find_layers("l*", step=0)
        file.find_logs("e", span_id=1)
        layers = file.layers
        _ = [*file.indexes()], file.refresh(), sum(1 for _ in file.records())
    except NszError:
        return
    for layer in layers[:50]:
        if layer.tensor is not None:
            try:
                layer.tensor.numpy()
            except NszError:
                continue
    file.close()


def recipe(provider: Any) -> bytes:
    """A file whose checksums are right, around fuzzed content."""
    parts = [START]
    size = len(START)
    for number in range(provider.ConsumeIntInRange(1, 4)):
        kind = provider.ConsumeIntInRange(0, 4)
        body = b"".join(record(provider, size) for _ in range(provider.ConsumeIntInRange(1, 4)))
        chunk = guarded(body, kind, number, provider.ConsumeIntInRange(0, 255))
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)


def record(provider: Any, position: int) -> bytes:
    """A message of some topic, or any record."""
    choice = provider.ConsumeIntInRange(0, 3)
    data: bytes = provider.ConsumeBytes(provider.ConsumeIntInRange(0, 600))
    if choice == 0:
        return layout.record(provider.ConsumeIntInRange(0, 255), data)
    channel = provider.ConsumeIntInRange(1, 20)
    if choice == 1 and channel >= 16:  # a tensor: header with its length before it
        data = len(data).to_bytes(8, "little") + data + bytes(provider.ConsumeIntInRange(0, 64))
    if choice == 2:  # where the next chunk may be
        data = data.replace(b"OFFSET", str(position).encode())
    return layout.message_header(channel, 0, provider.ConsumeIntInRange(0, 100), len(data)) + data


def guarded(body: bytes, kind: int, number: int, how: int) -> bytes:
    """A chunk with a right guard and checksum; compressed by `how`, which may also make its header lie."""
    compression, stored, size = "", body, len(body)
    if how >= 224:
        compression, stored = "lz4", lz4.compress(body)
    elif how % 2:
        compression, stored = "zstd", zstandard.ZstdCompressor(level=1).compress(body)
    if 192 <= how < 224 or how >= 248:
        size += how % 5 - 2
    header = ChunkHeader(0, 100, max(size, 0), layout.crc32(body, 0), compression, len(stored)).pack()
    return Guard(FILE_ID, number, 0, kind).pack(header) + header + stored


def memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
