"""The bytes of `.nsz`: what other people's readers see, and what ours reads of a file."""

from __future__ import annotations

import json
import stat
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Any, cast

import mcap.exceptions
import mcap.reader
import numpy as np
import pytest
import safetensors
from opentelemetry.trace import SpanKind

from neuronscope.exceptions import NszError
from neuronscope.signals.records import LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import assembly, chunkfile, codec, documents, layout
from neuronscope_exporters.nsz.assembly import OpenChunk
from neuronscope_exporters.nsz.layout import ChunkClass, Topic


def span(number: int, **attributes: Any) -> SpanRecord:
    return SpanRecord(1 << 100, number + 1, "chat", SpanKind.CLIENT, 1000 + number, 2000 + number, attributes)


def layer(step: int, values: np.ndarray[Any, Any] | None = None, name: str = "layers.0") -> LayerRecord:
    summary = TensorSummary.of(np.ones(3) if values is None else values)
    tensor = None if values is None else TensorSnapshot.from_numpy(values)
    shape = () if values is None else values.shape
    return LayerRecord("m", name, step, 3000 + step, shape, "F32", summary=summary, tensor=tensor)


def fill(target: nsz.NszWriter) -> Counter[str]:
    """Some of everything; messages by topic."""
    for number in range(1500):
        target.append_span(span(number, text="x" * 300, n=number))
    for step in range(5):
        target.append_layer(layer(step))
        target.append_layer(layer(step, np.full((4, 5), step, "f4"), f"layers.{step % 2}"))
    target.append_event(SpanEvent("governor.reduced", 5))
    assert target.flush()
    return Counter({
        "nsz/manifest": 1, "nsz/index": 1, "nsz/span": 1500, "nsz/tensor_summary": 5,
        "nsz/tensor_ref": 5, "nsz/agent": 1, "nsz/tensor/layers.0": 3, "nsz/tensor/layers.1": 2,
    })  # fmt: skip


def chunks_of(path: Path) -> list[tuple[layout.Guard, layout.ChunkHeader, int, bytes]]:
    """Every guarded chunk of a file: (guard, header, offset of its records, stored records)."""
    data = path.read_bytes()
    found: list[tuple[layout.Guard, layout.ChunkHeader, int, bytes]] = []
    for opcode, _, offset in layout.records(memoryview(data)[8:-8]):
        if opcode == layout.Op.GUARD:
            guard, chunk, size = layout.Guard.parse(data[8 + offset :])
            start = 8 + offset + size + chunk.size
            found.append((guard, chunk, start, data[start : start + chunk.stored_size]))
    return found


def test_the_mcap_package_reads_a_finished_file_with_its_index(tmp_path: Path) -> None:
    """All checksums verified; schemas, channels and counts are in the summary."""
    target = nsz.NszWriter(tmp_path / "a.nsz", [{"service.name": "s"}])
    expected = fill(target)
    assert target.close()
    with (tmp_path / "a.nsz").open("rb") as file:
        reader = mcap.reader.make_reader(file, validate_crcs=True)
        assert isinstance(reader, mcap.reader.SeekingReader)
        assert reader.get_header().profile == "nsz"
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert summary.statistics.message_count == expected.total()
        counts = Counter(channel.topic for _, channel, _ in reader.iter_messages())
        assert counts == expected
        by_topic = list(reader.iter_messages(topics=["nsz/tensor/layers.1"]))
        assert [message.log_time for _, _, message in by_topic] == [3001, 3003]


def test_the_mcap_package_streams_an_unfinished_file(tmp_path: Path) -> None:
    """A killed process leaves no footer; a streaming reader gets everything before it stops."""
    target = nsz.NszWriter(tmp_path / "a.nsz")
    expected = fill(target)
    counts: Counter[str] = Counter()

    def stream(file: IO[bytes]) -> None:
        reader = mcap.reader.NonSeekingReader(file, validate_crcs=True)
        for _, channel, _ in reader.iter_messages(log_time_order=False):
            counts[channel.topic] += 1

    with (tmp_path / "a.nsz").open("rb") as file, pytest.raises(mcap.exceptions.EndOfFile):
        stream(file)
    assert counts == expected
    ours = nsz.read(tmp_path / "a.nsz")
    assert not ours.finished
    assert not ours.damage
    assert (len(ours.spans), len(ours.layers), len(ours.events)) == (1500, 10, 1)


def test_safetensors_opens_a_tensor_message(tmp_path: Path) -> None:
    """The payload is a complete document that says which tensor it is."""
    values = np.arange(20, dtype="f4").reshape(4, 5)
    nsz.write(tmp_path / "a.nsz", [], [layer(3, values)], {})
    with (tmp_path / "a.nsz").open("rb") as file:
        messages = list(mcap.reader.make_reader(file).iter_messages(topics=["nsz/tensor/layers.0"]))
    ((_, channel, message),) = messages
    ((name, tensor),) = cast(Any, safetensors).deserialize(message.data)  # it has no types
    assert channel.message_encoding == "safetensors"
    assert (name, tensor["dtype"], tensor["shape"]) == ("tensor", "F32", [4, 5])
    assert bytes(tensor["data"]) == values.tobytes()
    header = documents.decode(_Metadata, message.data[8 : 8 + struct.unpack_from("<Q", message.data)[0]])
    assert header.metadata["module"] == "layers.0"
    assert header.metadata["step"] == "3"


class _Metadata(documents.Document, rename={"metadata": "__metadata__"}):
    metadata: dict[str, str]


def test_chunk_classes_do_not_mix_and_every_chunk_is_guarded(tmp_path: Path) -> None:
    """Small chunks are zstd and at most 256 KiB; a tensor is alone, plain, and aligned in the file."""
    target = nsz.NszWriter(tmp_path / "a.nsz")
    fill(target)
    target.close()
    chunks = chunks_of(tmp_path / "a.nsz")
    assert [guard.sequence for guard, *_ in chunks] == list(range(len(chunks)))
    assert len({guard.file_id for guard, *_ in chunks}) == 1
    assert Counter(guard.chunk_class for guard, *_ in chunks)[layout.ChunkClass.TENSOR] == 5
    previous = 0
    for guard, chunk, start, stored in chunks:
        assert guard.previous == previous
        previous = start - chunk.size
        assert chunk.crc
        if guard.chunk_class == layout.ChunkClass.TENSOR:
            assert chunk.compression == ""
            assert zlib.crc32(stored) == chunk.crc
            assert (start + chunk.stored_size - 80) % 64 == 0  # 20 floats end the chunk
        else:
            assert chunk.compression == "zstd"
            assert chunk.uncompressed_size <= 256 << 10


def test_a_checkpoint_repeats_definitions_manifest_and_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever joins late, or lost the beginning, finds everything again."""
    monkeypatch.setattr(chunkfile, "CHECKPOINT_BYTES", 1)
    target = nsz.NszWriter(tmp_path / "a.nsz")
    target.append_layer(layer(0, np.zeros(4, "f4")))
    target.append_span(span(1))
    assert target.close()
    with (tmp_path / "a.nsz").open("rb") as file:
        messages = list(mcap.reader.make_reader(file).iter_messages(log_time_order=False))
    topics = [channel.topic for _, channel, _ in messages]
    assert topics == [
        "nsz/manifest", "nsz/index", "nsz/tensor/layers.0", "nsz/manifest", "nsz/index",
        "nsz/tensor_ref", "nsz/span", "nsz/manifest", "nsz/index",
    ]  # fmt: skip
    indexes = [
        documents.decode(documents.IndexDocument, message.data)
        for _, channel, message in messages
        if channel.topic == "nsz/index"
    ]
    places = [(start - chunk.size, chunk.total_size) for _, chunk, start, _ in chunks_of(tmp_path / "a.nsz")]
    assert [[entry[:2] for entry in index.chunks] for index in indexes] == [[], places[1:2], places[3:4]]
    assert indexes[2].previous == places[2][0]


def test_a_checksum_that_comes_out_zero_is_avoided(tmp_path: Path) -> None:
    """Zero means "no checksum" in MCAP: the writer raises a sequence number, the reader refuses zero."""
    values = np.arange(64, dtype=np.uint8)
    nsz.write(tmp_path / "a.nsz", [], [layer(0, values)], {})
    _, chunk, _, records = chunks_of(tmp_path / "a.nsz")[1]
    values[-4:] = np.frombuffer(patch_to_zero(zlib.crc32(records[:-4])), np.uint8)
    assert zlib.crc32(records[:-4] + values[-4:].tobytes()) == 0
    nsz.write(tmp_path / "b.nsz", [], [layer(0, values)], {})
    _, chunk, _, forced = chunks_of(tmp_path / "b.nsz")[1]
    # The summary differs as well, but not within the tensor's chunk.
    assert forced[-64:] == values.tobytes()
    assert chunk.crc == zlib.crc32(forced) != 0
    assert sum(a != b for a, b in zip(forced[:-64], records[:-64], strict=True)) == 1
    tensor = nsz.read(tmp_path / "b.nsz").layers[0].tensor
    assert tensor is not None
    assert (tensor.numpy() == values).all()


def patch_to_zero(checksum: int) -> bytes:
    """Four bytes that, appended to data of this CRC-32, make it zero."""
    table = [zlib.crc32(bytes([byte])) for byte in range(256)]
    table = [value ^ zlib.crc32(b"\0") ^ 0 for value in table]  # linear part: T[byte]
    register = 0xFFFFFFFF
    for _ in range(4):
        byte = next(number for number in range(256) if table[number] >> 24 == register >> 24)
        register = ((register ^ table[byte]) << 8 & 0xFFFFFFFF) | byte
    return struct.pack("<I", register ^ checksum ^ 0xFFFFFFFF)


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    """Zero-copy: aligned, read-only, and alive after the recording is gone."""
    values = np.random.default_rng(0).random((64, 33)).astype("f4")
    nsz.write(tmp_path / "a.nsz", [], [layer(step, values + step) for step in range(4)], {})
    recording = nsz.read(tmp_path / "a.nsz")
    tensors = [record.tensor for record in recording.layers]
    arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
    recording.close()
    del recording, tensors
    for step, array in enumerate(arrays):
        assert array.__array_interface__["data"][0] % 64 == 0
        assert not array.flags.owndata
        assert not array.flags.writeable
        assert (array == values + np.float32(step)).all()


@pytest.mark.parametrize("finished", [True, False])
def test_listing_reads_no_tensor_bytes(tmp_path: Path, finished: bool) -> None:
    """Spans, layers, events and the damage report of a file of tensors cost under 5 % of its bytes."""
    target = nsz.NszWriter(tmp_path / "a.nsz")
    for step in range(20):
        target.append_layer(layer(step, np.full(50_000, step, "f4")))
        target.append_span(span(step))
        target.flush()
    if finished:
        target.close()
    file = nsz.NszFile(tmp_path / "a.nsz")
    assert (len(file.spans), len(file.layers), file.finished) == (20, 20, finished)
    assert not file.damage
    assert file.bytes_read < 0.05 * (tmp_path / "a.nsz").stat().st_size
    tensor = file.layers[7].tensor
    assert tensor is not None
    assert tensor.nbytes == 200_000
    assert file.bytes_read < 0.05 * (tmp_path / "a.nsz").stat().st_size
    assert (tensor.numpy() == 7).all()


def test_files_are_private_new_and_no_links(tmp_path: Path) -> None:
    """0600 whatever the umask; never an existing file, never through a symbolic link."""
    nsz.NszWriter(tmp_path / "a.nsz").close()
    assert stat.S_IMODE((tmp_path / "a.nsz").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        nsz.NszWriter(tmp_path / "a.nsz")
    (tmp_path / "link.nsz").symlink_to(tmp_path / "b.nsz")
    with pytest.raises(OSError, match="exists"):
        nsz.NszWriter(tmp_path / "link.nsz")
    assert not (tmp_path / "b.nsz").exists()


def test_a_newer_major_version_is_refused_a_newer_minor_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown topics and fields are passed over, and copies say so; unknown required features are named."""
    monkeypatch.setattr(layout, "VERSION", "1.7")
    nsz.write(tmp_path / "minor.nsz", [span(0)], [], {})
    assert len(nsz.read(tmp_path / "minor.nsz").spans) == 1
    file = chunkfile.ChunkFile(
        tmp_path / "future.nsz", [{}], compress_tensors=False, segment=0, previous_segment=None
    )
    chunk = OpenChunk(layout.channel(9, 0, "nsz/future", "json"))
    chunk.add(9, 2, 5, b'{"unknown": []}')
    known = json.loads(codec.encode_span(span(1)))
    chunk.add(Topic.SPAN, 3, 5, json.dumps({**known, "unknown": {"deep": [1]}}).encode())
    file.append(ChunkClass.SMALL, chunk.body, chunk.last, chunk.index)
    file.finish(sync=False)
    file.close()
    damage = nsz.merge([tmp_path / "future.nsz", tmp_path / "minor.nsz"], tmp_path / "merged.nsz")
    assert damage.left_out == ("1 × nsz/future",)
    assert not damage
    assert nsz.read(tmp_path / "merged.nsz").spans == [span(0), span(1)]
    monkeypatch.setattr(layout, "VERSION", "1.6")  # whoever copies is the older one
    damage = nsz.cut(tmp_path / "future.nsz", tmp_path / "cut.nsz", nsz.Part(span_id=2))
    assert damage.left_out == ("whatever version 1.7 of the format adds to records", "1 × nsz/future")
    monkeypatch.setattr(layout, "VERSION", "1.7")
    for finished in (True, False):
        if not finished:
            data = (tmp_path / "future.nsz").read_bytes()
            (tmp_path / "future.nsz").write_bytes(data[:-8])
        future = nsz.read(tmp_path / "future.nsz")
        assert future.spans == [span(1)]
        assert not future.damage or not finished
    monkeypatch.setattr(layout, "VERSION", "2.0")
    nsz.write(tmp_path / "major.nsz", [span(0)], [], {})
    with pytest.raises(NszError, match=r"version 2\.0; this reader knows 1\.x"):
        nsz.read(tmp_path / "major.nsz")
    monkeypatch.undo()
    manifest = assembly.new_manifest

    def demanding(*arguments: Any) -> documents.ManifestDocument:
        made = manifest(*arguments)
        made.features_required = ["telepathy"]
        return made

    monkeypatch.setattr(chunkfile, "new_manifest", demanding)
    nsz.write(tmp_path / "features.nsz", [span(0)], [], {})
    with pytest.raises(NszError, match="does not know: telepathy"):
        nsz.read(tmp_path / "features.nsz")


def test_more_modules_than_channels_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channel ids are 16 bits; the document names its module anyway."""
    monkeypatch.setattr(layout, "MAX_TENSOR_CHANNELS", 2)
    records = [layer(step, np.full(3, step, "f4"), f"layers.{step}" + "x" * 300) for step in range(5)]
    nsz.write(tmp_path / "a.nsz", [], records, {})
    with (tmp_path / "a.nsz").open("rb") as file:
        topics = Counter(channel.topic for _, channel, _ in mcap.reader.make_reader(file).iter_messages())
    assert topics["nsz/tensor/_overflow"] == 3
    back = nsz.read(tmp_path / "a.nsz").layers
    assert [record.layer_id for record in back] == [record.layer_id for record in records]
    assert [float(record.tensor.numpy()[0]) for record in back if record.tensor] == [0, 1, 2, 3, 4]
