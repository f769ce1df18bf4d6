"""The worker's queue: bounded by count and bytes, in the right order, counted exactly."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

import fakelib
import neuronscope as ns
from neuronscope import native
from neuronscope.engine import ENGINE
from neuronscope.engine.intake import LAYER_BYTES, SPAN_BYTES
from neuronscope.engine.sizes import held_bytes
from neuronscope.engine.worker import Worker
from neuronscope.signals.records import Fidelity, LayerRecord, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope.testing import InMemoryExporter

RECORD = SpanRecord(1, 2, "span", SpanKind.INTERNAL, 1, 2, {})


def return_record(item: Any) -> SpanRecord:
    return RECORD


def large(result: Any) -> int:
    return 600_000


class Rig:
    """A worker that does nothing until it is flushed, and what it lost."""

    def __init__(self, *, max_spans: int = 1000, max_bytes: int = 1 << 20, **changes: Any) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.memory = InMemoryExporter()
        self.worker = Worker(
            changes.pop("finish", return_record),
            [self.memory],
            {},
            interval_s=60,
            max_spans=max_spans,
            max_bytes=max_bytes,
            count_lost=lambda item, reason, n: self.lost.update({(item, reason): n}),
            on_cpu=lambda nanoseconds: None,
        )
        assert self.worker.pause(60)  # the test does the work

    def flush(self) -> None:
        self.worker.resume()
        assert self.worker.flush(60)
        assert self.worker.pause(60)

    def layer(self, nbytes: int) -> None:
        array = np.zeros(nbytes // 4, dtype=np.float32)
        record = LayerRecord(
            "m",
            "layer",
            0,
            1,
            array.shape,
            "float32",
            fidelity=Fidelity.FULL,
            tensor=TensorSnapshot.from_numpy(array),
        )
        self.worker.put_layer(record, None)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """One, taken down afterwards."""
    made = Rig()
    yield made
    made.worker.resume()
    made.worker.stop(60)


def test_spans_are_bounded_by_count_and_by_bytes(rig: Rig) -> None:
    """What goes in is held; what does not is counted; then there is room again."""
    room = (1 << 20) // SPAN_BYTES
    for _ in range(room + 10):
        rig.worker.put(object())
    assert rig.worker.pending == room
    assert rig.lost == {("span", "queue_full"): 10}
    rig.flush()
    assert len(rig.memory.spans) == room
    rig.worker.put(object())
    assert rig.worker.pending == 1


def test_large_spans_take_the_room_they_need(rig: Rig) -> None:
    """Four of 300 KB do not fit into a megabyte; after them small ones still may."""
    for _ in range(4):
        rig.worker.put(object(), 300_000)
    assert rig.worker.pending == 3
    assert rig.lost == {("span", "queue_full"): 1}
    assert rig.worker.pending_bytes == 900_000
    for _ in range(100):
        rig.worker.put(object())
    assert rig.worker.pending_bytes <= 1 << 20
    rig.flush()
    assert rig.worker.pending_bytes == 0
    assert len(rig.memory.spans) + sum(rig.lost.values()) == 104


def test_tensors_go_first_then_summaries_then_spans(rig: Rig) -> None:
    """The newest ones; each drop counted as what it was."""
    for _ in range(10):
        rig.layer(100_000)
    kept = rig.lost[("tensor", "queue_full")]
    assert kept == 5
    while not rig.lost[("layer", "queue_full")]:
        rig.layer(4)
    before = rig.worker.pending
    rig.worker.put(object())
    assert rig.worker.pending == before + 1
    assert not rig.lost[("span", "queue_full")]
    rig.flush()
    layers = rig.memory.layers
    assert sum(layer.tensor is not None and layer.nbytes > 1000 for layer in layers) == 5
    assert all(layer.fidelity is Fidelity.SUMMARY for layer in layers if layer.tensor is None)
    assert len(rig.memory.spans) == 1
    assert LAYER_BYTES < SPAN_BYTES


def test_a_fault_in_finishing_is_one_lost_span() -> None:
    """Not the batch."""
    from neuronscope.engine.guard import GUARD

    GUARD.reraise = False

    def finish(item: Any) -> SpanRecord:
        if item == "bad":
            raise RuntimeError("ours")
        return RECORD

    rig = Rig(finish=finish)
    for item in ("good", "bad", "good"):
        rig.worker.put(item)
    rig.flush()
    rig.worker.resume()
    rig.worker.stop(60)
    assert len(rig.memory.spans) == 2
    assert rig.lost == {("span", "fault"): 1}


def test_after_stop_everything_is_counted() -> None:
    """Whatever comes too late."""
    rig = Rig()
    rig.worker.put(object())
    rig.worker.resume()
    rig.worker.stop(60)
    rig.worker.put(object())
    rig.worker.put(object(), 10_000)
    rig.layer(100)
    assert len(rig.memory.spans) == 1
    assert rig.lost[("span", "stopped")] == 2
    assert sum(n for (item, _), n in rig.lost.items() if item in ("layer", "tensor")) >= 1
    assert rig.worker.pending == 0


def test_flush_does_not_wait_for_an_exporter_longer_than_asked() -> None:
    """An exporter that takes until afterwards."""
    go_on = threading.Event()

    class Slow(InMemoryExporter):
        def export(self, batch: Any) -> None:
            go_on.wait(60)
            super().export(batch)

    exporter = Slow()
    with ns.Platform(exporters=[exporter]):
        with ns.Scope("s"):
            pass
        assert not ENGINE.flush(0.1)
        assert not exporter.spans
        go_on.set()
        assert ENGINE.flush(60)
    assert len(exporter.spans) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread has slept")
def test_an_idle_worker_sleeps() -> None:
    """No wake-ups, no CPU, while there is nothing to do: its own, whatever else runs in this process."""

    class Telling(InMemoryExporter):
        thread = 0

        def export(self, batch: Any) -> None:
            self.thread = threading.get_native_id()
            super().export(batch)

        def sleeps(self) -> int:
            status = Path(f"/proc/self/task/{self.thread}/status").read_text()
            return int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)$", status, re.MULTILINE)[0])

    exporter = Telling()
    with ns.Platform(exporters=[exporter], export_interval_s=0.05):
        with ns.Scope("s"):
            pass
        assert ENGINE.flush(60)
        # A worker that looked at its queue each interval would wake up ten times a while.
        until, before, woken = time.monotonic() + 60, 0, 10
        while woken >= 5 and time.monotonic() < until:
            before = exporter.sleeps()
            time.sleep(0.5)
            woken = exporter.sleeps() - before
        assert before > 0
        assert woken < 5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, 0),
        ("x" * 1000, 1000),
        ({"messages": ["x" * 100] * 300}, 30_000),
        ([{"role": "user", "content": [{"text": "y" * 50}]}], 54),
        (["a", "b" * 999], 1000),
    ],
)
def test_how_much_is_held_is_estimated(value: Any, expected: int) -> None:
    """Lengths only."""
    assert held_bytes(value) == expected


def test_calls_with_large_results_are_bounded_by_bytes() -> None:
    """The adapter tells the size; 1 MB of results in a queue of 1 MB leaves no room for the next."""
    import dataclasses

    big = dataclasses.replace(fakelib.CHAT, size=large)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakelib, "CHAT", big)
        ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
        memory = InMemoryExporter()
        with ns.Platform(exporters=[memory], queue_max_bytes=1 << 20, export_interval_s=60):
            ns.instrument("fake")
            engine: Any = ENGINE
            worker: Worker = engine._worker
            assert worker.pause(60)
            for _ in range(3):
                fakelib.Client().chat("x")
            assert worker.pending == 1
            worker.resume()
        ns.registry.unregister_adapter("fake")
    assert len(memory.spans) == 1


def test_the_gil_is_offered_when_others_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not while this thread is the only one that does anything."""
    clock = {"process": 600, "thread": 0}  # the second one is read a little later
    slept: list[float] = []
    monkeypatch.setattr(native, "_COARSE", False)
    monkeypatch.setattr(native, "_sleep", slept.append)
    monkeypatch.setattr(time, "process_time_ns", lambda: clock["process"])
    monkeypatch.setattr(time, "thread_time_ns", lambda: clock["thread"])
    courtesy = native.Courtesy()
    for _ in range(3):
        clock["thread"] += 100_000
        clock["process"] += 100_000
        courtesy.offer()
    assert not slept
    clock["process"] += 3_000  # another one has woken up
    courtesy.offer()
    assert slept == [0]
    courtesy.offer()
    assert slept == [0]
    monkeypatch.setattr(native, "_COARSE", True)
    courtesy.offer()
    assert slept == [0, 0]


@pytest.mark.timeout(120)
def test_a_thread_that_wakes_up_gets_the_gil_from_a_courteous_one() -> None:
    """Long before the interpreter would take it away: its switch interval is a minute here."""
    before, woken = sys.getswitchinterval(), threading.Event()

    def wake() -> None:
        time.sleep(0.05)
        woken.set()

    sys.setswitchinterval(60)
    try:
        threading.Thread(target=wake, daemon=True).start()
        courtesy = native.Courtesy()
        while not woken.is_set():
            sum(range(1_000))
            courtesy.offer()
    finally:
        sys.setswitchinterval(before)
