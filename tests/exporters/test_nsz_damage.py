"""Damaged and hostile files: nothing wrong is returned, nothing but `NszError` is raised."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

from fresh import FRESH_PYTHON
from neuronscope.exceptions import NszError, NszLimitError
from neuronscope.signals.records import LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope.summaries.arrays import by_numpy
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.layout import ChunkClass, ChunkHeader, Guard, Op, Topic

pytestmark = pytest.mark.exhaustive

SPANS = {
    number: SpanRecord(
        7,
        number,
        f"chat {number}",
        SpanKind.CLIENT,
        number,
        number + 5,
        {"text": f"{number:x}" * 9},
    )
    for number in range(1, 121)
}


def values_of(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).random((16, 16)).astype("f4")


def sample(path: Path, *, close: bool) -> bytes:
    """A small file of several chunks of every class."""
    writer = nsz.NszWriter(path, [{"service.name": "sample"}])
    for step, group in enumerate(range(1, 121, 20)):
        for number in range(group, group + 20):
            writer.append_span(SPANS[number])
        tensor = TensorSnapshot.from_numpy(values_of(step))
        summary = by_numpy(values_of(step))  # the same bytes with every summary kernel
        writer.append_layer(
            LayerRecord("m", "layers.0", step, step, (16, 16), "F32", summary=summary, tensor=tensor)
        )
        assert writer.flush()
    writer.append_event(SpanEvent("last", 1))
    assert writer.flush()
    if close:
        assert writer.close()
    return path.read_bytes()


def examine(path: Path) -> tuple[int, int, bool]:
    """Read everything: (spans, readable tensors, whether anything was reported).  Fails on a wrong value."""
    try:
        recording = nsz.read(path)
        spans, layers, events = recording.spans, recording.layers, recording.events
        reported = bool(recording.damage)
    except NszError:
        return 0, 0, True
    for span in spans:
        assert span == SPANS[span.span_id]
    assert len({span.span_id for span in spans}) == len(spans)
    tensors = 0
    for record in layers:
        assert record.summary == by_numpy(values_of(record.step))
        assert record.tensor is not None
        try:
            array = record.tensor.numpy()
        except NszError:
            reported = True
            continue
        assert (array == values_of(record.step)).all()
        tensors += 1
    assert [event.name for event in events] in (["last"], [])
    return len(spans), tensors, reported


def test_a_file_cut_anywhere_gives_what_was_before_the_cut(tmp_path: Path) -> None:
    """At every 97th byte; the torn tail is reported with its size."""
    data = sample(tmp_path / "whole.nsz", close=True)
    cut = tmp_path / "cut.nsz"
    seen = 0
    for size in range(1, len(data), 97):
        cut.write_bytes(data[:size])
        spans, tensors, _ = examine(cut)
        assert spans >= seen, "a longer file gives fewer records"
        assert spans == 20 * tensors
        seen = spans
        if size > 4096:
            recording = nsz.read(cut)
            damage = recording.damage
            if recording.finished:  # the data is complete, only the summary is cut
                assert spans == 120
                assert "summary" in damage.reasons[0]
            elif damage:
                assert 0 < damage.truncated_bytes <= size
    assert seen == 120


@pytest.mark.parametrize("close", [True, False], ids=["finished", "unfinished"])
def test_flipped_bits_are_noticed_and_cost_one_chunk(tmp_path: Path, close: bool) -> None:
    """500 single flips: never a wrong value, never a silent loss, at most a chunk's records gone."""
    data = sample(tmp_path / "whole.nsz", close=close)
    flipped = tmp_path / "flipped.nsz"
    random_source = random.Random(11)
    lost: list[int] = []
    for _ in range(500):
        damaged = bytearray(data)
        damaged[random_source.randrange(len(data))] ^= 1 << random_source.randrange(8)
        flipped.write_bytes(damaged)
        spans, tensors, reported = examine(flipped)
        assert reported or (spans, tensors) == (120, 6)
        lost.append((120 - spans) // 20)
    assert sorted(lost)[len(lost) // 2] == 0
    assert sorted(lost)[-5] <= 1, "one flip cost more than one chunk"


@pytest.mark.parametrize("close", [True, False], ids=["finished", "unfinished"])
def test_every_flipped_bit_of_the_framing_is_noticed(tmp_path: Path, close: bool) -> None:
    """Each byte of guards, chunk headers, message indexes and lengths; a sample of the long summary."""
    writer = nsz.NszWriter(tmp_path / "whole.nsz")
    for number in (1, 2):
        writer.append_span(SPANS[number])
        writer.flush()
    if close:
        writer.close()
    data = (tmp_path / "whole.nsz").read_bytes()
    start = data.index(layout.GUARD_MARK, data.index(layout.GUARD_MARK) + 1) - 40
    end = data.index(layout.record(Op.DATA_END, bytes(4))) + 13 if close else len(data)
    flipped = tmp_path / "flipped.nsz"
    for position in [
        *range(start, end),
        *range(end, len(data) - 700, 61),
        *range(max(end, len(data) - 700), len(data)),  # statistics, chunk indexes, footer
    ]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        flipped.write_bytes(damaged)
        spans, _, reported = examine(flipped)
        assert reported or spans == 2, position


def test_random_blasts_and_zeroed_pages_are_survived(tmp_path: Path) -> None:
    """Overwritten stretches cost the chunks they touch; the reader goes on behind them."""
    data = sample(tmp_path / "whole.nsz", close=True)
    path = tmp_path / "blasted.nsz"
    random_source = random.Random(5)
    kept: list[int] = []
    for number in range(60):
        damaged = bytearray(data)
        size = 64 if number % 2 else 1024
        at = random_source.randrange(len(data) - size)
        damaged[at : at + size] = random_source.randbytes(size) if number % 2 else bytes(size)
        path.write_bytes(damaged)
        spans, tensors, reported = examine(path)
        assert reported or (spans, tensors) == (120, 6)
        kept.append(spans)
    assert sorted(kept)[len(kept) // 2] >= 100


def test_an_end_in_the_middle_and_a_length_that_leads_past_chunks_hide_nothing(tmp_path: Path) -> None:
    """Records between chunks have no checksum: the next guard and its number are what is believed."""
    data = sample(tmp_path / "a.nsz", close=False)
    guards = [at - 9 for at in range(len(data)) if data.startswith(layout.GUARD_MARK, at)]
    index = data.rindex(bytes([Op.MESSAGE_INDEX]) + (22).to_bytes(8, "little"), 0, guards[2])
    end = layout.record(Op.DATA_END, bytes(4))
    (tmp_path / "a.nsz").write_bytes(data[:index] + end + data[index + len(end) :])
    assert examine(tmp_path / "a.nsz") == (120, 6, True)
    length = (guards[4] - index - 9).to_bytes(8, "little")
    (tmp_path / "a.nsz").write_bytes(data[: index + 1] + length + data[index + 9 :])
    assert examine(tmp_path / "a.nsz") == (120, 6, True)


def test_damage_says_what_where_and_why(tmp_path: Path) -> None:
    """Count, bytes and a reason for people; the number of lost chunks from the gap in their numbers."""
    data = bytearray(sample(tmp_path / "a.nsz", close=False))
    guards = [at for at in range(len(data)) if data.startswith(layout.GUARD_MARK, at)]
    data[guards[4] + 30] ^= 1  # the second small chunk's guard
    (tmp_path / "a.nsz").write_bytes(data)
    damage = nsz.read(tmp_path / "a.nsz").damage
    assert (damage.count, damage.stretches, damage.lost_chunks) == (1, 1, 1)
    assert damage.bytes == guards[5] - guards[4] + 31  # and the message index before
    assert "guard record does not match" in damage.reasons[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(99), "looks like a ZIP"),
        (b"PFS0" + bytes(99), "Nintendo"),
        (b"hello", "begins with"),
        (layout.MAGIC[:5], "cut off"),
        (layout.MAGIC + layout.record(1, layout.string("ros2") + layout.string("x")), "profile 'ros2'"),
        (b"junk" + layout.MAGIC, "before its MCAP magic"),
    ],
)
def test_what_is_no_nsz_file_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    """One clear line each; also for what is not even a file."""
    (tmp_path / "a.nsz").write_bytes(content)
    with pytest.raises(NszError, match=message):
        nsz.read(tmp_path / "a.nsz")


def test_what_is_not_even_a_file_is_told(tmp_path: Path) -> None:
    """Missing, a FIFO (without waiting for a writer), an empty directory, no path at all."""
    with pytest.raises(FileNotFoundError, match="there is no file"):
        nsz.read(tmp_path / "missing.nsz")
    os.mkfifo(tmp_path / "pipe.nsz")
    with pytest.raises(NszError, match="not a regular file"):
        nsz.read(tmp_path / "pipe.nsz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NszError, match="holds no"):
        nsz.read(tmp_path / "empty")
    with pytest.raises(NszError, match="no file"):
        nsz.read([])


# --- hostile files ------------------------------------------------------------------------------

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
        capture_output=True, text=True, check=False, timeout=100, env=environment,
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


@pytest.mark.parametrize(
    "limits",
    [nsz.Limits(chunks=3), nsz.Limits(inflated_bytes=5000), nsz.Limits(summary_bytes=100)],
    ids=["chunks", "inflated", "summary"],
)
def test_limits_can_be_set_and_are_told(tmp_path: Path, limits: nsz.Limits) -> None:
    """A file that asks for more is refused as a whole."""
    sample(tmp_path / "a.nsz", close=True)
    with pytest.raises(NszLimitError):
        _ = nsz.read(tmp_path / "a.nsz", limits).spans


# --- many damages -----------------------------------------------------------------------------------


def damage_somehow(data: bytes, source: random.Random) -> bytes:
    """One of the ways in which a file goes bad."""
    kind = source.choice(("flip", "flips", "noise", "zeros", "hole", "cut", "tail"))
    damaged = bytearray(data)
    at = source.randrange(len(data))
    size = min(source.choice((1, 16, 64, 512, 4096)), len(data) - at)
    if kind == "flip":
        damaged[at] ^= 1 << source.randrange(8)
    elif kind == "flips":
        for _ in range(source.randrange(2, 20)):
            damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
    elif kind == "noise":
        damaged[at : at + size] = source.randbytes(size)
    elif kind == "zeros":
        damaged[at : at + size] = bytes(size)
    elif kind == "hole":
        del damaged[at : at + size]
    elif kind == "cut":
        del damaged[at:]
    else:
        damaged += source.randbytes(size)
    return bytes(damaged)


@pytest.mark.parametrize("damages", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_damage_returns_a_wrong_value(tmp_path: Path, damages: int) -> None:
    """Flips, noise, zeroed and missing stretches, cuts, rubbish at the end; median loss at most one chunk."""
    files = [sample(tmp_path / f"{close}.nsz", close=close) for close in (True, False)]
    path = tmp_path / "damaged.nsz"
    source = random.Random(damages)
    lost: list[int] = []
    for number in range(damages):
        whole = files[number % 2]
        damaged = damage_somehow(whole, source)
        path.write_bytes(damaged)
        spans, tensors, reported = examine(path)
        if not reported and (spans, tensors) != (120, 6):
            # Cut between two records it is the file of a process that was killed earlier, and unfinished.
            assert whole.startswith(damaged)
            assert not nsz.NszFile(path).finished
        lost.append((120 - spans) // 20 + 6 - tensors)
    assert sorted(lost)[len(lost) // 2] <= 1
