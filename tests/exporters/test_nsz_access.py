"""Reading a part: by span, layer, step and time, compressed tensors, other writers' chunks, ranks."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import mcap.reader
import numpy as np
import pytest
from opentelemetry.trace import SpanKind

from neuronscope.exceptions import NszError
from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout, source
from neuronscope_exporters.nsz.layout import ChunkClass, ChunkHeader, Guard

SECOND = 1_000_000_000


def span(number: int, trace: int = 1) -> SpanRecord:
    start = number * SECOND
    return SpanRecord(trace, number + 1, f"call {number}", SpanKind.CLIENT, start, start + 5, {"n": number})


def layer(step: int, name: str, values: np.ndarray[Any, Any] | None = None) -> LayerRecord:
    tensor = None if values is None else TensorSnapshot.from_numpy(values)
    shape = () if values is None else values.shape
    return LayerRecord(
        "m", name, step, step * SECOND, shape, "F32", trace_id=1, span_id=step % 3 + 1, tensor=tensor
    )


@pytest.fixture
def minutes(tmp_path: Path) -> nsz.NszFile:
    """A hundred seconds, a chunk for each ten."""
    writer = nsz.NszWriter(tmp_path / "a.nsz")
    for number in range(100):
        writer.append_span(span(number, trace=number // 50))
        for name in ("model.layers.0.mlp", "model.layers.0.attn", "model.layers.1.mlp"):
            writer.append_layer(layer(number, name, np.full(600, number, "f4")))
        if number % 10 == 9:
            writer.flush()
    writer.close()
    return nsz.NszFile(tmp_path / "a.nsz")


def test_spans_are_found_by_id_and_time(minutes: nsz.NszFile) -> None:
    """By trace, by span, by start in [start, end)."""
    assert [found.span_id for found in minutes.find_spans(span_id=42)] == [42]
    assert len(minutes.find_spans(trace_id=1)) == 50
    found = minutes.find_spans(start=20 * SECOND, end=25 * SECOND)
    assert [item.span_id for item in found] == [21, 22, 23, 24, 25]
    assert found[0] == span(20, trace=0)
    assert minutes.find_spans(trace_id=1, end=10 * SECOND) == []


def test_layers_are_found_by_name_step_span_and_time(minutes: nsz.NszFile) -> None:
    """Patterns as in probes; the tensor that comes is the right one."""
    (found,) = minutes.find_layers("model.layers.1.mlp", step=7)
    assert found.tensor is not None
    assert (found.tensor.numpy() == 7).all()
    assert len(minutes.find_layers("model.layers.0.*")) == 200
    assert len(minutes.find_layers(span_id=1, start=0, end=9 * SECOND)) == 9
    assert minutes.find_layers("model.layers.9.*") == []


def test_a_time_is_found_without_reading_the_rest(minutes: nsz.NszFile) -> None:
    """The index tells which chunks can hold it."""
    before = minutes.bytes_read
    assert len(minutes.find_spans(start=50 * SECOND, end=55 * SECOND)) == 5
    one = minutes.bytes_read - before
    _ = minutes.spans
    assert one < (minutes.bytes_read - before - one) / 5


def test_heads_tell_what_a_list_shows(minutes: nsz.NszFile) -> None:
    """In order of start, as the whole spans do."""
    for head, whole in zip(minutes.span_heads, minutes.spans, strict=True):
        assert int(head.start_time_unix_nano) == whole.start_unix_ns
        assert (head.name, int(head.span_id, 16)) == (whole.name, whole.span_id)


def test_records_come_one_by_one_in_the_order_of_the_file(minutes: nsz.NszFile) -> None:
    """For tools that keep none of them."""
    kinds = [type(record).__name__ for record, _ in minutes.records()]
    assert kinds[:5] == ["SpanRecord", "LayerRecord", "LayerRecord", "LayerRecord", "SpanRecord"]
    assert len(kinds) == 400


# --- compressed tensors -------------------------------------------------------------------------

NOISE = np.random.default_rng(0)
TENSORS: dict[str, np.ndarray[Any, Any]] = {
    "floats": NOISE.standard_normal((64, 100)).astype("f4"),
    "doubles": NOISE.standard_normal(5000),
    "halves": NOISE.standard_normal(5000).astype("f2"),
    "integers": NOISE.integers(0, 100, (50, 50)),
    "booleans": np.zeros(5000, bool),
    "bytes": NOISE.integers(0, 255, 5000).astype("u1"),
    "empty": np.zeros((0, 3), "f4"),
    "scalar": np.full((), 3, "f4"),
    "zeros": np.zeros((512, 1024), "f4"),
}


@pytest.mark.parametrize("part_bytes", [256 << 20, 7000])
@pytest.mark.parametrize("name", list(TENSORS))
def test_compressed_tensors_come_back_bit_by_bit(tmp_path: Path, name: str, part_bytes: int) -> None:
    """Whole and in parts; the mcap package unpacks and verifies the same chunks."""
    values = TENSORS[name]
    writer = nsz.NszWriter(tmp_path / "a.nsz", compress_tensors=True, tensor_part_bytes=part_bytes)
    writer.append_layer(layer(0, "layers.0", values))
    assert writer.close()
    file = nsz.NszFile(tmp_path / "a.nsz")
    (record,) = file.layers
    assert record.tensor is not None
    back = record.tensor.numpy()
    assert (back.dtype, back.shape) == (values.dtype, values.shape)
    assert back.tobytes() == values.tobytes()
    assert not file.damage
    with (tmp_path / "a.nsz").open("rb") as stream:
        encodings = {
            channel.message_encoding
            for _, channel, _ in mcap.reader.make_reader(stream, validate_crcs=True).iter_messages()
            if channel.topic.startswith("nsz/tensor/")
        }
    assert encodings == {"nsz.planes.v1" if values.dtype.kind == "f" else "safetensors"}


def test_floats_become_smaller(tmp_path: Path) -> None:
    """What byte planes are for."""
    values = NOISE.standard_normal((256, 1024)).astype("f4")
    writer = nsz.NszWriter(tmp_path / "a.nsz", compress_tensors=True)
    writer.append_layer(layer(0, "layers.0", values))
    writer.close()
    assert (tmp_path / "a.nsz").stat().st_size < values.nbytes / 1.15


def test_a_damaged_compressed_tensor_is_noticed(tmp_path: Path) -> None:
    """Any byte of it."""
    writer = nsz.NszWriter(tmp_path / "a.nsz", compress_tensors=True)
    writer.append_layer(layer(0, "layers.0", TENSORS["floats"]))
    writer.close()
    data = bytearray((tmp_path / "a.nsz").read_bytes())
    marks = [at for at in range(len(data)) if data.startswith(layout.GUARD_MARK, at)]
    for at in range(marks[1] + 200, marks[2] - 60, 997):
        damaged = bytearray(data)
        damaged[at] ^= 16
        (tmp_path / "b.nsz").write_bytes(damaged)
        tensor = nsz.NszFile(tmp_path / "b.nsz").layers[0].tensor
        assert tensor is not None
        with pytest.raises(NszError):
            tensor.numpy()


# --- other writers' chunks ------------------------------------------------------------------------


def lz4_file(path: Path, stored: bytes, size: int, crc: int) -> None:
    header = ChunkHeader(0, 0, size, crc, "lz4", len(stored)).pack()
    guard = Guard(bytes(16), 0, 0, ChunkClass.SMALL).pack(header)
    path.write_bytes(layout.MAGIC + layout.header("other") + guard + header + stored)


def test_lz4_chunks_are_read_within_what_they_claim(tmp_path: Path) -> None:
    """Other MCAP writers use it; a frame that holds more, less or something else is refused."""
    lz4: Any = import_module("lz4.frame")  # without types
    nsz.write(tmp_path / "plain.nsz", [span(n) for n in range(50)], [], {})
    with (tmp_path / "plain.nsz").open("rb") as stream:
        spans = [
            layout.message_header(2, 0, 0, len(message.data)) + message.data
            for _, channel, message in mcap.reader.make_reader(stream).iter_messages()
            if channel.topic == "nsz/span"
        ]
    records = b"".join(spans)
    crc = layout.crc32(records, 0)
    lz4_file(tmp_path / "a.nsz", lz4.compress(records), len(records), crc)
    assert len(nsz.NszFile(tmp_path / "a.nsz").spans) == 50
    for stored, size in [
        (lz4.compress(records), len(records) - 1),
        (lz4.compress(records), len(records) + 1),
        (lz4.compress(records) + b"more", len(records)),
        (lz4.compress(records)[:-9], len(records)),
        (lz4.compress(bytes(50 << 20)), 1000),
        (b"garbage" * 9, len(records)),
    ]:
        lz4_file(tmp_path / "b.nsz", stored, size, crc)
        file = nsz.NszFile(tmp_path / "b.nsz")
        assert file.spans == []
        assert file.damage.count == 1


def test_ranks_in_directories_of_their_own_are_one_recording(tmp_path: Path) -> None:
    """rank0/*.nsz, rank1/*.nsz; open and finished ones alike."""
    for rank in range(3):
        (tmp_path / f"rank{rank}").mkdir()
        nsz.write(tmp_path / f"rank{rank}/a.nsz", [span(rank)], [], {"rank": rank})
    (tmp_path / "rank1/a.nsz").rename(tmp_path / "rank1/a.nsz.open")
    recording = nsz.read(tmp_path)
    assert [recording.resource_of(item)["rank"] for item in recording.spans] == [0, 1, 2]


def test_ranks_whose_ids_clash_keep_their_resources(tmp_path: Path) -> None:
    """Two ranks with one seed: the same ids, and each span is still of its own process."""
    for rank in range(2):
        nsz.write(tmp_path / f"rank{rank}.nsz", [span(1)], [], {"rank": rank})
    recording = nsz.read(tmp_path)
    assert {recording.resource_of(item)["rank"] for item in recording.spans} == {0, 1}


def test_a_system_that_cannot_tell_what_it_has_is_asked_to_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a part of the file is in memory decides nothing but that."""
    nsz.write(tmp_path / "a.nsz", [], [layer(0, "layers.0", np.arange(5000.0))], {})
    asked: list[int] = []

    def read_ahead(_source: source.Source, offset: int, _length: int) -> None:
        asked.append(offset)

    monkeypatch.setattr(source.Source, "will_need", read_ahead)
    for flag in (getattr(os, "RWF_NOWAIT", 0), 0):
        asked.clear()
        monkeypatch.setattr(source, "_ONLY_FROM_MEMORY", flag)
        (record,) = nsz.NszFile(tmp_path / "a.nsz").layers
        asked.clear()
        assert record.tensor is not None
        assert record.tensor.numpy()[-1] == 4999
        assert flag or len(asked) == 1
