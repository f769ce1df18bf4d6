"""Killed processes, full disks, deleted directories: what `flush` promised is there, the rest is counted."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

from neuronscope.exceptions import NszError
from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz.sink import Sink

SPAN = SpanRecord(1, 2, "chat", SpanKind.CLIENT, 10, 20, {"text": "x" * 100})
LAYER = LayerRecord(
    "m", "layers.0", 0, 1, (64, 64), "F32", tensor=TensorSnapshot.from_numpy(np.ones((64, 64), "f4"))
)


def run(code: str, *arguments: str) -> list[list[int]]:
    """Run a program of its own; the JSON lines it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code, *arguments],
        capture_output=True, text=True, check=False, timeout=600, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


PREAMBLE = """
import json, os, random, resource, signal, sys, time
import numpy as np
from opentelemetry.trace import SpanKind
from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
def span(n): return SpanRecord(1, n + 1, "chat", SpanKind.CLIENT, n, n + 5, {"n": n, "text": "x" * 200})
def layer(n):
    tensor = TensorSnapshot.from_numpy(np.full((64, 64), n, "f4"))
    return LayerRecord("m", "layers.0", n, n, (64, 64), "F32", tensor=tensor)
"""
KILLED = """
folder, kills = sys.argv[1], int(sys.argv[2])
source = random.Random(kills)
for number in range(kills):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        writer = nsz.NszWriter(f"{folder}/{number:04}.nsz", [{"number": number}])
        count = 0
        while True:
            for _ in range(20):
                writer.append_span(span(count))
                count += 1
            writer.append_layer(layer(count // 20 - 1))
            if writer.flush():
                os.write(writing, count.to_bytes(8, "little"))
    os.close(writing)
    done = os.read(reading, 8)
    time.sleep(source.uniform(0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 65536):
        done += more
    os.close(reading)
    whole = done[: len(done) // 8 * 8]
    print(json.dumps([number, int.from_bytes(whole[-8:], "little")]), flush=True)
"""


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_kill_9_loses_nothing_that_was_flushed(tmp_path: Path, kills: int) -> None:
    """At random instants under load; nothing else than a torn tail is reported."""
    for number, flushed in run(KILLED, str(tmp_path), str(kills)):
        recording = nsz.read(tmp_path / f"{number:04}.nsz")
        spans = [span.attributes["n"] for span in recording.spans]
        assert spans == list(range(len(spans)))
        assert len(spans) >= flushed > 0
        assert len(recording.layers) >= flushed // 20
        for layer in recording.layers:
            assert layer.tensor is not None
            assert (layer.tensor.numpy() == layer.step).all()
        damage = recording.damage
        assert (damage.stretches, damage.records, damage.lost_chunks) == (0, 0, 0)
        assert recording.resource == {"number": number}
        assert not recording.finished
    whole = nsz.read(tmp_path)
    assert len(whole.segments) == kills
    assert len({str(resource) for resource in whole.resources}) == kills


FULL = """
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
lost, written = {}, {}
def lose(item, reason, n): lost[item, reason] = lost.get((item, reason), 0) + n
def wrote(item, n): written[item] = written.get(item, 0) + n
writer = nsz.NszWriter(sys.argv[1], on_lost=lose, on_written=wrote)
for n in range(60):
    writer.append_span(span(n))
    writer.append_layer(layer(n))
    complete = writer.flush()
size = os.path.getsize(sys.argv[1])
reasons = {reason for _, reason in lost}
assert reasons == {"disk_full"} and not complete and not writer.closed, (reasons, complete)
first = [sum(written.values()), sum(lost.values()), size]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append_span(span(1000))
assert writer.flush()
assert writer.close()
print(json.dumps(first))
"""


def test_a_full_disk_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    """Every record is written or counted; the file says what it lacks once there is room again."""
    ((written, lost, size),) = run(FULL, str(tmp_path / "a.nsz"))
    assert written + lost == 120
    assert written > 20
    assert lost > 20
    assert size <= 300_000
    recording = nsz.read(tmp_path / "a.nsz")
    assert recording.finished
    assert not recording.damage
    assert len(recording.spans) + len(recording.layers) == written + 1
    assert recording.spans[-1].attributes["n"] == 1000
    assert sum(int(str(event.attributes["count"])) for event in recording.events) == lost
    assert {event.attributes["reason"] for event in recording.events} == {"disk_full"}
    for layer in recording.layers:
        assert layer.tensor is not None
        assert (layer.tensor.numpy() == layer.step).all()


def test_a_device_without_room_that_cannot_be_cut_back_closes_the_sink() -> None:
    """/dev/full refuses every byte."""
    sink = Sink(os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(OSError, match="could not be cut off"):
        sink.append([b"x" * 100])
    assert sink.position == 0
    assert sink.closed


def test_a_short_write_is_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take a part of an append: the file ends at the last whole record again."""
    writer = nsz.NszWriter(tmp_path / "a.nsz")
    writer.append_span(SPAN)
    assert writer.flush()
    size = (tmp_path / "a.nsz").stat().st_size
    real = os.writev

    def short(fd: int, buffers: Sequence[bytes]) -> int:
        return real(fd, [b"".join(buffers)[:37]])

    monkeypatch.setattr(os, "writev", short)
    writer.append_span(SPAN)
    assert not writer.flush()
    assert (tmp_path / "a.nsz").stat().st_size == size
    monkeypatch.undo()
    writer.append_span(SPAN)
    assert writer.close()
    recording = nsz.read(tmp_path / "a.nsz")
    assert len(recording.spans) == 2
    assert not recording.damage


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EDQUOT, "disk_full"),
        (errno.ENOSPC, "disk_full"),
        (errno.EFBIG, "disk_full"),
        (errno.EIO, "io_error"),
    ],
)
def test_a_refusal_is_counted_by_its_reason_and_noted_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """A used-up quota is a full disk; nothing is raised."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    writer = nsz.NszWriter(tmp_path / "a.nsz")
    monkeypatch.setattr(os, "writev", refuse)
    writer.append_layer(LAYER)
    writer.append_span(SPAN)
    assert not writer.flush()
    monkeypatch.undo()
    assert writer.flush()
    writer.append_span(SPAN)
    assert writer.close()
    recording = nsz.read(tmp_path / "a.nsz")
    assert (len(recording.spans), len(recording.layers)) == (1, 0)
    noted = {(str(event.attributes["item"]), event.attributes["reason"]) for event in recording.events}
    assert noted == {("span", reason), ("layer", reason)}
    assert not recording.damage


def test_a_deleted_file_is_noticed(tmp_path: Path) -> None:
    """Records written into a file that has no name any more are lost: they are counted as such."""
    lost: list[tuple[str, str, int]] = []

    def lose(item: str, reason: str, n: int) -> None:
        lost.append((item, reason, n))

    writer = nsz.NszWriter(tmp_path / "a.nsz", on_lost=lose)
    writer.append_span(SPAN)
    assert writer.flush()
    (tmp_path / "a.nsz").unlink()
    assert not writer.flush()
    writer.append_span(SPAN)
    writer.append_layer(LAYER)
    assert not writer.flush()
    assert writer.closed
    assert not writer.close()
    assert {(item, n) for item, _, n in lost} == {("span", 1), ("layer", 1)}


def test_a_file_that_cannot_be_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating a writer is the one moment that raises."""

    def short(_fd: int, _buffers: Sequence[bytes]) -> int:
        return 3

    monkeypatch.setattr(os, "writev", short)
    with pytest.raises(OSError, match="no room"):
        nsz.NszWriter(tmp_path / "a.nsz")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`write` replaces a file at once or not at all, and removes its own traces."""
    target = tmp_path / "a.nsz"
    nsz.write(target, [SPAN], [], {})
    before = target.read_bytes()
    real = os.writev
    calls = iter(range(100))

    def short_later(fd: int, buffers: Sequence[bytes]) -> int:
        return real(fd, buffers) if next(calls) < 2 else 1

    monkeypatch.setattr(os, "writev", short_later)
    with pytest.raises(OSError, match="no room"):
        nsz.write(target, [SPAN], [LAYER], {})
    monkeypatch.undo()
    assert target.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["a.nsz"]
    with pytest.raises(FileNotFoundError):
        nsz.write(tmp_path / "missing" / "a.nsz", [], [], {})
    nsz.write(target, [SPAN, SPAN], [], {})
    assert len(nsz.read(target).spans) == 2


def test_a_reader_follows_a_file_that_is_cut_short(tmp_path: Path) -> None:
    """Another process truncates while we hold the file: an error, never a fault."""
    nsz.write(tmp_path / "a.nsz", [SPAN], [LAYER], {})
    file = nsz.NszFile(tmp_path / "a.nsz")
    (layer,) = file.layers
    os.truncate(tmp_path / "a.nsz", 5000)
    assert file.spans == []
    assert file.damage
    assert layer.tensor is not None
    with pytest.raises(NszError, match="ends before"):
        layer.tensor.numpy()
