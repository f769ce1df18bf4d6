"""The flight recorder: what it holds, what makes it write, and dumps on demand."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections import Counter
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
from neuronscope.exporters import Exporter, Recorder
from neuronscope.signals import names
from neuronscope.signals.records import (
    Batch,
    LayerRecord,
    SpanRecord,
)
from neuronscope.signals.tensors import TensorSummary
from neuronscope.testing.fake_openai import FakeOpenAI
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import exporter as exporter_module
from neuronscope_exporters.nsz.triggers import Percentile, Triggers
from neuronscope_exporters.nsz.unpacking import unpack
from openai_cases import CANARY, sync_client
from recorders import Host, layer, span, wait_for

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


@pytest.mark.parametrize("mode", ["flight", "continuous"])
def test_dumps_under_load_lose_and_repeat_nothing(tmp_path: Path, mode: str) -> None:
    """Threads at work, dumps from two threads and by signal, all at once."""
    workers, each = 4, 150

    def work(worker: int) -> None:
        for number in range(each):
            with ns.Scope(f"{worker}/{number}"):
                pass

    dumped: list[str] = []

    def dump() -> None:
        for _ in range(5):
            dumped.extend(ns.dump("asked", timeout_s=60.0))
            os.kill(os.getpid(), signal.SIGUSR2)

    settings: dict[str, Any] = {"nsz_mode": mode, "flight_s": 600.0, "export_interval_s": 0.01}
    with ns.Platform(nsz=str(tmp_path), instrument=(), **settings):
        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
        threads += [threading.Thread(target=dump) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert not any(thread.is_alive() for thread in threads)
        ns.flush(60.0)
        dumped.extend(ns.dump("the rest", timeout_s=60.0))
    assert all(nsz.NszFile(path).finished for path in dumped)
    found = Counter(item.name for path in nsz.recordings(tmp_path) for item in nsz.NszFile(path).spans)
    assert found == Counter(f"{worker}/{number}" for worker in range(workers) for number in range(each))


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
