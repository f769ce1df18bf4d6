"""Files made to do harm: refused in bounded memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fresh import FRESH_PYTHON
from neuronscope.exceptions import NszLimitError
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.layout import ChunkClass, ChunkHeader, Guard, Op, Topic
from samples import sample

pytestmark = pytest.mark.exhaustive

FILE_ID = bytes(range(16))
NOISE = random.Random(1).randbytes(64 << 10)
START = layout.MAGIC + layout.header("hostile")


def guarded(
    stored: bytes,
    *,
    crc: int | None = None,
    size: int | None = None,
    compression: str = "",
    kind: int = ChunkClass.SMALL,
    claimed: int | None = None,
) -> bytes:
    """A chunk whose guard is right, whatever its header says."""
    checksum = layout.crc32(stored, 0) if crc is None else crc
    header = ChunkHeader(
        0, 0, len(stored) if size is None else size, checksum, compression,
        len(stored) if claimed is None else claimed,
    ).pack()  # fmt: skip
    return Guard(FILE_ID, 0, 0, kind).pack(header) + header + stored


def message(topic: int, data: bytes) -> bytes:
    return layout.message_header(topic, 0, 0, len(data)) + data


def span_with(attribute: str) -> bytes:
    text = (
        '{"traceId":"%032x","spanId":"%016x","name":"n","kind":1,"startTimeUnixNano":"1",'
        '"endTimeUnixNano":"2","attributes":[{"key":"k","value":%s}]}'
    )
    return message(Topic.SPAN, (text % (1, 1, attribute)).encode())


def zstd(data: bytes, *, repeat: int = 1) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=len(data) * repeat)
    return b"".join([compressor.compress(data) for _ in range(repeat)] + [compressor.flush()])


def inflating(records: bytes, more: bytes = b"") -> bytes:
    """A chunk of compressed records, its size and checksum right."""
    checksum = layout.crc32(records, 0)
    return guarded(zstd(records) + more, crc=checksum, size=len(records), compression="zstd")


def reference(tensor: dict[str, Any]) -> bytes:
    layer = {
        "model": "m", "module": "l", "step": 0, "timeUnixNano": "1", "shape": [4], "dtype": "F32",
        "tensor": {"dtype": "F32", "shape": [4], "nbytes": 16, "parts": [], **tensor},
    }  # fmt: skip
    return guarded(message(Topic.TENSOR_REF, json.dumps(layer).encode()))


def tensor_file(header: bytes, *, header_size: int | None = None, **tensor: Any) -> bytes:
    """A file whose reference and checksum are right and whose document is not."""
    document = (len(header) if header_size is None else header_size).to_bytes(8, "little") + header
    stored = message(20, document + bytes(16))
    chunk = guarded(stored, kind=ChunkClass.TENSOR)
    offset = len(START) + len(chunk) - len(stored) - ChunkHeader(0, 0, 0, 0, "", 0).size
    part = {"offset": offset, "length": len(START) + len(chunk) - offset, "crc": layout.crc32(stored, 0)}
    return START + chunk + reference({"parts": [part], **tensor})


def document(dtype: str = "F32", shape: str = "[4]", offsets: str = "[0,16]") -> bytes:
    return f'{{"tensor":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'.encode()


def with_footer(summary: bytes, start: int | None = None) -> bytes:
    head = START + layout.record(Op.DATA_END, bytes(4))
    at = len(head) if start is None else start
    tail = layout.RECORD.pack(Op.FOOTER, 20) + at.to_bytes(8, "little") + bytes(8)
    checksum = layout.crc32(tail, layout.crc32(summary, 0))
    return head + summary + tail + checksum.to_bytes(4, "little") + layout.MAGIC


def chunk_index(offset: int, length: int, channels: int = 1) -> bytes:
    import struct

    fixed = struct.pack("<4QI", 0, 0, offset, length, 10 * channels) + struct.pack("<HQ", 2, 0) * channels
    return layout.record(Op.CHUNK_INDEX, fixed + bytes(8) + layout.string("") + bytes(16))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "record of 2^62 bytes": lambda: START + layout.RECORD.pack(5, 1 << 62) + bytes(100),
    "chunk of 3 GiB in 200 bytes": lambda: START + guarded(b"", claimed=3 << 30),
    "record in a chunk longer than it": lambda: START + guarded(layout.RECORD.pack(5, 1 << 40) + bytes(50)),
    "message shorter than its header": lambda: START + guarded(layout.record(5, b"xx")),
    "zstd frame that declares a terabyte": lambda: (
        START + guarded(bytes.fromhex("28b52ffde06c06060663636363"), size=1000, compression="zstd")
    ),
    "zstd frame without a size": lambda: (
        START + guarded(b"\x28\xb5\x2f\xfd\x00\x58", size=9, compression="zstd")
    ),
    "zstd bomb that claims 1000 bytes": lambda: (
        START + guarded(zstd(bytes(1 << 20), repeat=1024), size=1000, compression="zstd")
    ),
    "zstd bomb that tells its size": lambda: (
        START + guarded(zstd(bytes(1 << 20), repeat=1024), size=1 << 30, compression="zstd")
    ),
    "zstd bomb within the size limit": lambda: (
        START + inflating(layout.record(0x90, bytes(15 << 20)))
    ),
    "zstd of 20 MiB at a fair ratio": lambda: START + inflating(layout.record(0x90, NOISE * 320)),
    "two zstd frames": lambda: START + inflating(span_with("{}"), zstd(b"more")),
    "not zstd at all": lambda: START + guarded(b"garbage" * 9, size=20, compression="zstd"),
    "unknown compression": lambda: START + guarded(span_with('{"intValue":"1"}'), compression="brotli"),
    "no checksum": lambda: START + guarded(span_with('{"intValue":"1"}'), crc=0),
    "JSON nested 100,000 deep": lambda: START + guarded(span_with("[" * 100_000)),
    "attribute nested 500 deep": lambda: (
        START + guarded(span_with('{"arrayValue":{"values":[' * 500 + "{}" + "]}}" * 500))
    ),
    "JSON of 5 MiB": lambda: START + guarded(span_with('{"stringValue":"%s"}' % ("x" * (5 << 20)))),
    "JSON that is not UTF-8": lambda: START + guarded(message(Topic.SPAN, b'{"traceId":"\xff"}')),
    "integer of 10,000 digits": lambda: START + guarded(span_with('{"intValue":"%s"}' % ("9" * 10_000))),
    "number that is a word": lambda: START + guarded(span_with('{"doubleValue":"twelve"}')),
    "base64 that is none": lambda: START + guarded(span_with('{"bytesValue":"*"}')),
    "ids that are no hex": lambda: (
        START + guarded(message(Topic.SPAN, span_with("{}")[31:].replace(b"0", b"g")))
    ),
    "reference outside the file": lambda: (
        START + reference({"parts": [{"offset": 1 << 60, "length": 99, "crc": 1}]})
    ),
    "reference before the file": lambda: (
        START + reference({"parts": [{"offset": -9, "length": 99, "crc": 1}]})
    ),
    "reference of negative length": lambda: (
        START + reference({"parts": [{"offset": 9, "length": -1 << 70, "crc": 1}]})
    ),
    "reference to 2 GiB": lambda: START + reference({"parts": [{"offset": 0, "length": 2 << 30, "crc": 1}]}),
    "reference to no chunk": lambda: START + reference({"parts": [{"offset": 9, "length": 60, "crc": 1}]}),
    "reference to nothing": lambda: START + reference({}),
    "shape of 2^200 elements": lambda: START + reference({"shape": [1 << 60] * 4, "nbytes": 1 << 242}),
    "negative shape": lambda: START + reference({"shape": [-2, -2]}),
    "65 dimensions": lambda: START + reference({"shape": [1] * 65, "nbytes": 4}),
    "unknown element type": lambda: START + reference({"dtype": "O"}),
    "safetensors header of 2^60 bytes": lambda: tensor_file(document(), header_size=1 << 60),
    "safetensors header beyond its end": lambda: tensor_file(document(), header_size=5000),
    "safetensors header of 2 MiB": lambda: tensor_file(document() + b" " * (2 << 20)),
    "safetensors header that is no JSON": lambda: tensor_file(b"{" * 50_000),
    "safetensors offsets outside": lambda: tensor_file(document(offsets="[0,17]")),
    "safetensors offsets inside out": lambda: tensor_file(document(offsets="[16,0]")),
    "safetensors with another shape": lambda: tensor_file(document(shape="[2,2]")),
    "safetensors with another type": lambda: tensor_file(document(dtype="I32")),
    "safetensors with a type of text": lambda: tensor_file(document(dtype="object")),
    "manifest that is no JSON": lambda: (
        START + guarded(message(Topic.MANIFEST, b"{"), kind=ChunkClass.CHECKPOINT)
    ),
    "summary that starts beyond the file": lambda: with_footer(b"", start=1 << 60),
    "summary that names a chunk outside": lambda: with_footer(chunk_index(1 << 60, 100)),
    "summary with offsets that overflow": lambda: with_footer(chunk_index(2**64 - 1, 2**64 - 1)),
    "summary that names no chunk": lambda: with_footer(chunk_index(9, 20)),
    "summary record that is cut off": lambda: with_footer(layout.record(Op.CHUNK_INDEX, bytes(20))),
    "summary of one chunk a thousand times": lambda: with_footer(chunk_index(0, 40) * 1000),
    "20,000 false guards": lambda: START + layout.GUARD_MARK * 20_000,
    "20,000 guards of one chunk": lambda: START + guarded(b"", crc=1) * 20_000,
}  # fmt: skip

HARNESS = """
import json, re, resource, sys
from pathlib import Path
from neuronscope.exceptions import NszError
from neuronscope_exporters import nsz
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
nsz.read(Path(sys.argv[1]) / "warm.nsz").layers[0].tensor.numpy()
for path in sorted(Path(sys.argv[1]).glob("*.hostile")):
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = peak()
    try:
        file = nsz.NszFile(path)
        outcome = [len(file.spans), file.damage.count, 0, 0]
        for layer in file.layers:
            try:
                layer.tensor.numpy()
                outcome[2] += 1
            except NszError:
                outcome[3] += 1
    except NszError as error:
        outcome = [0, 1, 0, 0]
    growth = peak() - before
    print(json.dumps([path.name, *outcome, growth // 1024]), flush=True)
"""


@pytest.fixture(scope="module")
def hostile_outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """All hostile files, read by one process that may use 2 GiB of address space."""
    folder = tmp_path_factory.mktemp("hostile")
    sample(folder / "warm.nsz", close=True)
    names = list(HOSTILE)
    for number, name in enumerate(names):
        (folder / f"{number:03}.hostile").write_bytes(HOSTILE[name]())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [*FRESH_PYTHON, "-c", HARNESS, str(folder)],
        capture_output=True, text=True, check=False, timeout=250, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return {names[int(row[0][:3])]: row[1:] for row in rows}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_files_are_refused_in_bounded_memory(
    hostile_outcomes: dict[str, list[int]], name: str
) -> None:
    """No record, no tensor, a report, and no more than 64 MiB."""
    spans, damage, tensors, refused, megabytes = hostile_outcomes[name]
    assert (spans, tensors) == (0, 0)
    assert damage > 0 or refused > 0
    assert megabytes <= 64


def test_the_builders_of_hostile_files_can_build_good_ones(tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    (tmp_path / "a.nsz").write_bytes(START + guarded(span_with('{"intValue":"1"}')))
    assert nsz.read(tmp_path / "a.nsz").spans[0].attributes == {"k": 1}
    (tmp_path / "b.nsz").write_bytes(START + inflating(span_with("{}") + layout.record(0x90, NOISE)))
    assert len(nsz.read(tmp_path / "b.nsz").spans) == 1
    (tmp_path / "c.nsz").write_bytes(tensor_file(document()))
    tensor = nsz.read(tmp_path / "c.nsz").layers[0].tensor
    assert tensor is not None
    assert tensor.numpy().tolist() == [0, 0, 0, 0]
    good = START + guarded(span_with("{}"))
    (tmp_path / "d.nsz").write_bytes(with_footer(chunk_index(len(START) + 49, len(good) - len(START) - 49)))
    assert nsz.NszFile(tmp_path / "d.nsz").finished


def test_topics_count_where_no_record_is_kept(tmp_path: Path) -> None:
    """What reads a file record by record keeps its topics: those of a hostile file fill no memory."""
    chunks = b"".join(
        guarded(layout.channel(number, 0, f"{number}" + "x" * 60_000, "json")) for number in range(16, 24)
    )
    (tmp_path / "a.nsz").write_bytes(START + chunks)
    with pytest.raises(NszLimitError):
        nsz.check(tmp_path / "a.nsz", limits=nsz.Limits(inflated_bytes=200_000))
    assert nsz.check(tmp_path / "a.nsz").chunks == 8
