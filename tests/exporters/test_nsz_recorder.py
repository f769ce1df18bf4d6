"""The recorder: rotation, retention, orphans, and directories that others look after."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from neuronscope.exporters import Recorder
from neuronscope.signals.records import (
    Batch,
)
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout, sink
from neuronscope_exporters.nsz.keeper import Keeper, Retention
from neuronscope_exporters.nsz.repair import BusyError, repair
from recorders import Host, layer, span, wait_for

# --- segments -------------------------------------------------------------------------------------


def test_segments_end_at_their_size_and_read_as_one(tmp_path: Path) -> None:
    """Open ones end in .open; each says which was before it; nothing is lost between them."""
    host = Host(tmp_path, nsz_segment_bytes=1 << 16)
    exporter = host.make()
    for number in range(40):
        exporter.export(Batch({}, [span(number + 1)], [layer(number, 2048)]))
    open_ones = list(tmp_path.glob("*.nsz.open"))
    assert len(open_ones) >= 1
    assert len(nsz.read(tmp_path).spans) == 40
    exporter.shutdown(60.0)
    assert list(tmp_path.glob("*.open")) == []
    recording = nsz.read(tmp_path)
    assert recording.finished
    assert len(recording.segments) > 4
    assert [item.span_id for item in recording.spans] == list(range(1, 41))
    manifests = [segment.manifest for segment in recording.segments]
    assert [manifest.segment for manifest in manifests if manifest] == list(range(len(manifests)))
    assert [manifest.previous_segment for manifest in manifests[1:] if manifest] == [
        manifest.file_id for manifest in manifests[:-1] if manifest
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert host.exported == {"span": 40, "layer": 40}


def test_segments_end_at_their_age(tmp_path: Path) -> None:
    """A quiet service's records get a name, too."""
    exporter = Host(tmp_path, nsz_segment_age_s=1.0).make()
    exporter.export(Batch({}, [span(1)]))
    time.sleep(1.05)
    exporter.export(Batch({}, [span(2)]))
    wait_for(lambda: len(list(tmp_path.glob("*.nsz"))) == 1)
    exporter.shutdown(60.0)
    assert len(nsz.read(tmp_path).segments) == 2


def test_losses_of_the_agent_are_noted_in_the_file(tmp_path: Path) -> None:
    """The queue's as well as the disk's, each once."""
    host = Host(tmp_path)
    exporter = host.make()
    exporter.export(Batch({}, [span(1)]))
    host.dropped["span", "queue_full"] = 12
    exporter.shutdown(60.0)
    (event,) = nsz.read(tmp_path).events
    assert event.name == "nsz.lost"
    assert event.attributes == {"item": "span", "reason": "queue_full", "count": 12}


def test_old_and_surplus_segments_are_deleted_others_never(tmp_path: Path) -> None:
    """The oldest first; only files that a recorder named."""
    path = tmp_path
    for number in range(5):
        path = tmp_path / f"rag-1-{number:019}.0000.nsz"
        nsz.write(path, [span(1)], [], {})
        os.utime(path, (1e9 + number, 1e9 + number))
    size = path.stat().st_size
    nsz.write(tmp_path / "mine.nsz", [span(1)], [], {})
    os.utime(tmp_path / "mine.nsz", (1, 1))
    Keeper(tmp_path, Retention(max_bytes=int(2.5 * size)), 0).sweep()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["mine.nsz", f"rag-1-{3:019}.0000.nsz", f"rag-1-{4:019}.0000.nsz"]
    Keeper(tmp_path, Retention(max_age_s=3600), 0).sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.nsz"]


def test_shutdown_waits_for_segments_that_were_closed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none is being written: after a dump, or after a beginning that failed."""
    rename = os.rename

    def slow(source: str | Path, target: str | Path) -> None:
        time.sleep(0.2)
        rename(source, target)

    monkeypatch.setattr(os, "rename", slow)
    exporter = Host(tmp_path).make()
    assert isinstance(exporter, Recorder)
    exporter.export(Batch({}, [span(1)]))
    exporter.request_dump("now", lambda _: None)
    exporter.export(Batch({}))
    exporter.shutdown(60.0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".nsz"]


# --- orphans --------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import numpy as np
from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
from opentelemetry.trace import SpanKind
writer = nsz.NszWriter(sys.argv[1])
for n in range(50):
    writer.append_span(SpanRecord(1, n + 1, "s", SpanKind.CLIENT, n, n, {}))
    tensor = TensorSnapshot.from_numpy(np.full(500, n, "f4"))
    writer.append_layer(LayerRecord("m", f"layers.{n % 7}", n, n, (500,), "F32", tensor=tensor))
    writer.flush()
if len(sys.argv) > 2:
    print("ready", flush=True)
    sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def orphan(path: Path, torn: bytes = b"") -> None:
    """A segment whose process was killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env=environment, timeout=250)
    with path.open("ab") as file:
        file.write(torn)


def test_a_killed_process_s_segment_is_finished_in_place(tmp_path: Path) -> None:
    """The torn tail goes, the summary comes; every MCAP reader finds everything by its index."""
    import mcap.reader

    path = tmp_path / "rag-1-0000000000000000001.0000.nsz.open"
    orphan(path, torn=b"\x80\x00half a record")
    inode = path.stat().st_ino
    Keeper(tmp_path, Retention(), 0).sweep()
    (finished,) = tmp_path.iterdir()
    assert finished.name == "rag-1-0000000000000000001.0000.nsz"
    assert finished.stat().st_ino == inode
    file = nsz.NszFile(finished)
    assert file.finished
    assert not file.damage
    assert (len(file.spans), len(file.layers)) == (50, 50)
    for record in file.layers:
        assert record.tensor is not None
        assert (record.tensor.numpy() == record.step).all()
    with finished.open("rb") as stream:
        reader = mcap.reader.make_reader(stream, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        counts = Counter(channel.topic for _, channel, _ in reader.iter_messages())
        assert counts.total() == summary.statistics.message_count
        assert sum(1 for _ in reader.iter_messages(topics=["nsz/tensor/layers.3"])) == 7


def test_a_living_process_s_segment_is_left_alone(tmp_path: Path) -> None:
    """It holds a lock; when it is gone, the sweep takes the file."""
    path = tmp_path / "rag-1-0000000000000000001.0000.nsz.open"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), "wait"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BusyError):
            repair(path)
        Keeper(tmp_path, Retention(), 0).sweep()
        assert path.exists()
        process.kill()
    Keeper(tmp_path, Retention(), 0).sweep()
    assert not path.exists()


def test_a_damaged_file_is_salvaged_and_the_original_kept(tmp_path: Path) -> None:
    """What is sound is copied; the report says what is not."""
    path = tmp_path / "rag-1-0000000000000000001.0000.nsz.open"
    orphan(path)
    data = bytearray(path.read_bytes())
    data[data.index(layout.GUARD_MARK, len(data) // 2) + 30] ^= 255
    path.write_bytes(data)
    done = repair(path)
    assert done.action == "salvaged"
    assert done.damage.count >= 1
    assert done.original is not None
    assert done.original.read_bytes() == data
    file = nsz.NszFile(done.path)
    assert file.finished
    assert not file.damage
    assert 45 <= len(file.spans) <= 50
    assert repair(done.path).action == "none"


def test_the_next_process_finishes_what_the_last_one_left(tmp_path: Path) -> None:
    """In the background, with its first segment."""
    orphan(tmp_path / "rag-1-0000000000000000001.0000.nsz.open")
    exporter = Host(tmp_path).make()
    exporter.export(Batch({}, [span(99)]))
    wait_for(lambda: len(list(tmp_path.glob("rag-1-*.nsz"))) == 1)
    exporter.shutdown(60.0)
    assert len(nsz.read(tmp_path).spans) == 51


# --- a directory that others look after -------------------------------------------------------------


def test_a_sweep_that_looks_at_a_file_just_created_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock it looks like a dead process's: empty, and nobody's."""
    lock_new, sweeps = sink.lock_new, [3]

    def lock_late(fd: int) -> None:
        if sweeps[0]:
            sweeps[0] -= 1
            Keeper(tmp_path, Retention(), 0).sweep()
        lock_new(fd)

    monkeypatch.setattr(sink, "lock_new", lock_late)
    path = tmp_path / "a.nsz.open"
    writer = nsz.NszWriter(path)
    writer.append_span(span(1))
    assert writer.flush()
    assert sweeps == [0]
    Keeper(tmp_path, Retention(), 0).sweep()
    assert [item.span_id for item in nsz.read(path).spans] == [1]
    writer.close()


def test_a_new_file_waits_until_others_let_go_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be without its lock for good, and the next sweep would finish it under its writer."""
    lock_new = sink.lock_new
    others: list[int] = []

    def lock_late(fd: int) -> None:
        others.append(os.open(path, os.O_RDWR))
        assert sink.lock(others[0])
        threading.Timer(0.05, os.close, others).start()
        lock_new(fd)

    path = tmp_path / "a.nsz.open"
    monkeypatch.setattr(sink, "lock_new", lock_late)
    writer = nsz.NszWriter(path)
    with pytest.raises(BusyError):
        repair(path)
    writer.close()


def test_a_file_that_others_hold_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as with every file that cannot be had: nothing is left, and it is told."""
    lock_new = sink.lock_new
    path = tmp_path / "a.nsz.open"

    def never(fd: int) -> None:
        with path.open("rb") as other:
            assert sink.lock(other.fileno())
            lock_new(fd)

    monkeypatch.setattr(sink, "_LOCK_WAIT_S", 0.02)
    monkeypatch.setattr(sink, "lock_new", never)
    with pytest.raises(BlockingIOError):
        nsz.NszWriter(path)
    assert not path.exists()
