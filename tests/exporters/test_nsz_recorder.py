"""The recorder: rotation, retention, orphans, and the flight recorder with its triggers."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanKind, StatusCode

import neuronscope as ns
from neuronscope.diagnosis.findings import Finding
from neuronscope.diagnosis.kinds import Kind
from neuronscope.diagnosis.reports import Reporter
from neuronscope.engine import ENGINE
from neuronscope.exporters import Exporter, ExporterContext, Recorder
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import (
    Batch,
    LayerRecord,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
    SpanRecord,
)
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope.testing.fake_openai import FakeOpenAI
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import exporter as exporter_module
from neuronscope_exporters.nsz import layout, sink
from neuronscope_exporters.nsz.keeper import Keeper, Retention
from neuronscope_exporters.nsz.repair import BusyError, repair
from neuronscope_exporters.nsz.triggers import Percentile, Triggers
from neuronscope_exporters.nsz.unpacking import unpack
from openai_cases import CANARY, sync_client


def span(number: int, *, parent: int | None = None, trace: int = 1, **changes: Any) -> SpanRecord:
    attributes = {"n": number, **changes.pop("attributes", {})}
    return SpanRecord(
        trace,
        number,
        "chat",
        SpanKind.CLIENT,
        number,
        number + 5,
        attributes,
        parent_span_id=parent,
        **changes,
    )


def layer(step: int, size: int = 1024) -> LayerRecord:
    tensor = TensorSnapshot.from_numpy(np.full(size, step, "f4"))
    return LayerRecord("m", "layers.0", step, step, (size,), "F32", tensor=tensor)


class Host:
    """The platform, as an exporter sees it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.exported: Counter[str] = Counter()
        self.dropped: dict[tuple[str, str], int] = {}
        self.settings = Settings(nsz=str(directory), service_name="rag", nsz_sync_s=0.0, **settings)

    def make(self) -> Exporter:
        context = ExporterContext(self.settings, {}, self.collect, self.count_lost, self.count_exported)
        exporter = nsz.create(context)
        assert exporter is not None
        return exporter

    def collect(self) -> MetricsSnapshot:
        totals = Counter(self.dropped) + self.lost
        points = [MetricPoint((("item", item), ("reason", why)), n) for (item, why), n in totals.items()]
        return MetricsSnapshot([MetricFamily(names.DROPPED, points)], 0, 7)

    def count_lost(self, item: str, reason: str, n: int) -> None:
        self.lost[item, reason] += n

    def count_exported(self, item: str, n: int) -> None:
        self.exported[item] += n


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


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
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env=environment, timeout=100)
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


# --- the flight recorder --------------------------------------------------------------------------


def flight(tmp_path: Path, **settings: Any) -> tuple[Host, Exporter]:
    host = Host(tmp_path, nsz_mode="flight", **settings)
    return host, host.make()


def test_nothing_is_written_while_all_is_well(tmp_path: Path) -> None:
    """Not even at the end."""
    host, recorder = flight(tmp_path)
    for number in range(1, 50):
        recorder.export(Batch({}, [span(number)], [layer(number)]))
    assert recorder.flush(60.0)
    recorder.shutdown(60.0)
    assert list(tmp_path.iterdir()) == []
    assert not host.lost


NAN = TensorSummary.of(np.array([1, np.nan]))
BROKEN = LayerRecord("m", "layers.0", 0, 1, (2,), "F32", trace_id=1, summary=NAN)
BAD: dict[str, Batch] = {
    "error": Batch({}, [span(3, parent=2, attributes={names.ERROR_TYPE: "Timeout"})]),
    "error in status": Batch({}, [span(3, parent=2, status=StatusCode.ERROR)]),
    "empty_retrieval": Batch({}, [span(3, parent=2, attributes={names.RETRIEVAL_EMPTY: True})]),
    "low_margin": Batch(
        {}, [span(3, parent=2, attributes={names.RETRIEVAL_MARGIN: 0.001, names.RETRIEVAL_RETURNED: 5})]
    ),
    "nan": Batch({}, [span(3, parent=2, attributes={names.LAYERS_NON_FINITE: 4})]),
    "nan in a layer": Batch({}, [], [BROKEN]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_wrong_is_dumped_at_the_end_of_its_root_span(tmp_path: Path, name: str) -> None:
    """With everything of the last seconds, the trace's root included; the file says why."""
    _, recorder = flight(tmp_path)
    recorder.export(Batch({}, [span(9, trace=2)], [layer(1)]))
    recorder.export(BAD[name])
    assert list(tmp_path.iterdir()) == []
    recorder.export(Batch({}, [span(2)]))
    wait_for(lambda: len(list(tmp_path.glob("*.flight0000.nsz"))) == 1)
    recording = nsz.read(tmp_path)
    assert {9, 2} <= {item.span_id for item in recording.spans}
    assert recording.layers[0].tensor is not None
    (event,) = recording.events
    assert event.name == "nsz.flight"
    assert name.startswith(str(event.attributes["reason"]))
    assert event.attributes["trace_id"] == f"{1:032x}"
    recorder.shutdown(60.0)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_drift_alert_dumps_when_it_begins(tmp_path: Path) -> None:
    """As the diagnosis tells it; its end is no reason."""
    with ns.Platform(nsz=str(tmp_path), nsz_mode="flight", instrument=(), deferred=False):
        with ns.Scope("answer"):
            pass
        finding = Finding(Kind.QUERIES_SHIFTED, "qdrant", "docs", "questions are of another kind", 0.4, 0.99)
        reporter = Reporter(ENGINE)
        reporter.raised(finding, any_active=True)
        assert ns.flush(60.0)
        assert len(list(tmp_path.iterdir())) == 1
        reporter.cleared(finding, any_active=False)
    (path,) = tmp_path.iterdir()
    recording = nsz.read(path)
    assert [item.name for item in recording.spans] == ["answer"]
    assert [log.body for log in recording.logs] == ["questions are of another kind"]
    (why,) = [event.attributes for event in recording.events if event.name == "nsz.flight"]
    assert why["reason"] == "drift"
    assert "questions are of another kind" in str(why["detail"])


def test_content_is_masked_before_it_is_written(tmp_path: Path) -> None:
    """No byte of it is in the file, compressed or not; and what a redactor changes is changed there."""
    for folder, settings in {
        "off": {}, "on": {"capture_content": "span_and_event", "redactor": redact}
    }.items():  # fmt: skip
        with FakeOpenAI() as server:
            options: Any = {"nsz": str(tmp_path / folder), "deferred": False, **settings}
            with ns.Platform(**options), sync_client(server) as client:
                ns.instrument("openai")
                create: Any = client.chat.completions.create
                create(model="gpt-4o-mini", messages=[{"role": "user", "content": f"say {CANARY}"}])
        (path,) = (tmp_path / folder).iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        stored = everything_in(path)
        assert b"gpt-4o-mini" in stored
        assert CANARY.encode() not in stored
        assert (b"SOMETHING" in stored) == (folder == "on")


def redact(_key: str, text: str) -> str:
    return text.replace(CANARY, "SOMETHING")


def everything_in(path: Path) -> bytes:
    """All bytes of a file, and all that its chunks unpack to."""
    data = path.read_bytes()
    file = nsz.NszFile(path)
    chunks = [unpack(data[place.offset : place.offset + place.length], file.limits) for place in file.chunks]
    return data + b"".join(map(bytes, chunks))


def test_good_results_are_no_reason(tmp_path: Path) -> None:
    """A clear margin, a single hit (its margin is 0 by definition), a quick call."""
    _, recorder = flight(tmp_path)
    for number, attributes in enumerate([
        {names.RETRIEVAL_MARGIN: 0.3, names.RETRIEVAL_RETURNED: 5},
        {names.RETRIEVAL_MARGIN: 0.0, names.RETRIEVAL_RETURNED: 1},
        {names.LAYERS_NON_FINITE: 0},
    ]):  # fmt: skip
        recorder.export(Batch({}, [span(number + 1, attributes=attributes)]))
    recorder.shutdown(60.0)
    assert list(tmp_path.iterdir()) == []


def test_the_window_is_bounded_by_bytes_and_seconds(tmp_path: Path) -> None:
    """The oldest go; a dump holds the newest."""
    _, recorder = flight(tmp_path, flight_bytes=1 << 20)
    for number in range(1, 101):
        recorder.export(Batch({}, [span(number)], [layer(number, 10_000)]))
        assert getattr(recorder, "held_bytes") <= 1 << 20  # noqa: B009 - beyond the contract
    assert isinstance(recorder, Recorder)
    paths: list[str] = []
    recorder.request_dump("test", paths.append)
    assert recorder.flush(60.0)
    recording = nsz.read(paths)
    assert 15 < len(recording.spans) < 30
    assert recording.spans[-1].span_id == 100
    assert [item.step for item in recording.layers] == [item.span_id for item in recording.spans]
    recorder.shutdown(60.0)


def test_two_dumps_never_hold_the_same_record(tmp_path: Path) -> None:
    """Read as one they are a recording without doubles; the same reason has to wait its pause."""
    _, recorder = flight(tmp_path, flight_pause_s=0.0)
    for number in range(1, 4):
        recorder.export(Batch({}, [span(number, status=StatusCode.ERROR)]))
    recorder.shutdown(60.0)
    assert len(list(tmp_path.iterdir())) == 3
    assert [item.span_id for item in nsz.read(tmp_path).spans] == [1, 2, 3]
    _, recorder = flight(tmp_path / "paused", flight_pause_s=60.0)
    for number in range(1, 4):
        recorder.export(Batch({}, [span(number, status=StatusCode.ERROR)]))
    recorder.shutdown(60.0)
    assert len(list((tmp_path / "paused").iterdir())) == 1


def test_a_trace_without_a_root_is_dumped_all_the_same() -> None:
    """Its root may be in a process that we do not see."""
    triggers = Triggers(0.02, 0.0)
    bad = Batch({}, [span(3, parent=2, status=StatusCode.ERROR)])
    assert triggers.fired(bad, 100.0) == []
    assert triggers.fired(Batch({}), 104.0) == []
    assert [trigger.reason for trigger in triggers.fired(Batch({}), 105.1)] == ["error"]


def test_latency_is_measured_against_the_calls_own_past() -> None:
    """Above its p99, once there is enough to tell one; the estimate is within 9 %."""
    durations = Percentile()
    values = [int(value) for value in np.random.default_rng(3).lognormal(16, 0.5, 5000)]
    exceeded = [durations.exceeded_by(value) for value in values]
    assert not any(exceeded[:500])
    assert 0.005 < sum(exceeded[500:]) / 4500 < 0.012
    assert 1 <= durations.value() / float(np.quantile(values, 0.99)) < 1.1
    triggers = Triggers(0.02, 0.0)
    for number in range(600):
        assert not triggers.fired(Batch({}, [span(number + 1)]), 0.0)
    slow = SpanRecord(7, 1, "chat", SpanKind.CLIENT, 0, 10**9, {})
    assert [trigger.reason for trigger in triggers.fired(Batch({}, [slow]), 0.0)] == ["latency"]


# --- ns.dump and the signal -----------------------------------------------------------------------


def reasons(recording: nsz.Recording | nsz.NszFile) -> list[Any]:
    """Why it was dumped; the agent tells other things about itself as well."""
    return [event.attributes["reason"] for event in recording.events if event.name == "nsz.flight"]


@pytest.mark.parametrize("mode", ["flight", "continuous"])
def test_dump_gives_a_finished_file_and_recording_goes_on(tmp_path: Path, mode: str) -> None:
    """In both modes."""
    with ns.Platform(nsz=str(tmp_path), nsz_mode=mode, instrument=()):
        with ns.Scope("first"):
            pass
        (first,) = ns.dump("because", timeout_s=60.0)
        with ns.Scope("second"):
            pass
        (second,) = ns.dump(timeout_s=60.0)
        assert ns.dump() == [] or mode == "flight"
    for path, name in ((first, "first"), (second, "second")):
        file = nsz.NszFile(path)
        assert file.finished
        assert [item.name for item in file.spans] == [name]
    if mode == "flight":
        assert reasons(nsz.NszFile(first)) == ["because"]


def test_without_a_recorder_there_is_nothing_to_dump() -> None:
    """No platform, or one without files."""
    assert ns.dump() == []


def test_sigusr2_dumps_and_a_service_s_own_handler_is_left_alone(tmp_path: Path) -> None:
    """Its default, which would end the process, comes back afterwards."""
    with ns.Platform(nsz=str(tmp_path), nsz_mode="flight", instrument=()):
        with ns.Scope("answer"):
            pass
        os.kill(os.getpid(), signal.SIGUSR2)
        wait_for(lambda: len(list(tmp_path.glob("*.nsz"))) == 1)
        assert reasons(nsz.read(tmp_path)) == ["signal"]
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with ns.Platform(nsz=str(tmp_path), instrument=()):
            assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


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


def test_a_dump_for_which_there_is_no_file_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next batch, or at the end; what could not be written even then is counted."""
    host, recorder = flight(tmp_path / "a")
    monkeypatch.setattr(exporter_module, "RETRY_NS", 0)
    monkeypatch.setattr(exporter_module, "NszWriter", no_room)
    recorder.export(Batch({}, [span(1, status=StatusCode.ERROR)]))
    monkeypatch.undo()
    recorder.export(Batch({}, [span(2)]))
    recorder.shutdown(60.0)
    recording = nsz.read(tmp_path / "a")
    assert [item.span_id for item in recording.spans] == [1, 2]
    assert [event.attributes["reason"] for event in recording.events] == ["error"]
    assert not host.lost

    host, recorder = flight(tmp_path / "b")
    monkeypatch.setattr(exporter_module, "NszWriter", no_room)
    recorder.export(Batch({}, [span(1, status=StatusCode.ERROR)]))
    monkeypatch.undo()
    recorder.shutdown(60.0)  # however short ago it failed
    assert [item.span_id for item in nsz.read(tmp_path / "b").spans] == [1]
    assert not host.lost

    host, recorder = flight(tmp_path / "c")
    monkeypatch.setattr(exporter_module, "NszWriter", no_room)
    recorder.export(Batch({}, [span(1, status=StatusCode.ERROR)], [layer(1)]))
    recorder.shutdown(60.0)
    assert host.lost == {("span", "io_error"): 1, ("layer", "io_error"): 1}


def no_room(*_: object, **__: object) -> nsz.NszWriter:
    raise OSError(errno.ENOSPC, "no room")
