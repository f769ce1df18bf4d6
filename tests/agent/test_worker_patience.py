"""A worker that waits long for more: woken once for many items, or at once if they pile up, or are wanted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from neuronscope.engine.worker import PATIENCE, Worker
from neuronscope.signals.records import SpanRecord
from neuronscope.testing import InMemoryExporter

RECORD = SpanRecord(1, 2, "span", SpanKind.INTERNAL, 1, 2, {})
FOREVER_S = 600.0
WAIT_S = 60.0


class Rig:
    """A worker of endless patience."""

    def __init__(self, max_spans: int = 10 * PATIENCE) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.done = 0
        self.begun = threading.Event()
        self.worker = Worker(
            self.finish,
            [InMemoryExporter()],
            {},
            interval_s=FOREVER_S,
            max_spans=max_spans,
            max_bytes=1 << 30,
            count_lost=lambda item, reason, n: self.lost.update({(item, reason): n}),
            on_cpu=lambda _: None,
            linger_s=self.linger_s,
        )

    def linger_s(self) -> float:
        self.begun.set()
        return FOREVER_S

    def finish(self, item: Any) -> SpanRecord:
        self.done += 1
        return RECORD

    def lingers(self) -> None:
        """One item is there, and the worker waits for more."""
        self.worker.put(object())
        assert self.begun.wait(WAIT_S)

    def until_done(self, n: int) -> None:
        end = time.monotonic() + WAIT_S
        while self.done < n and time.monotonic() < end:
            time.sleep(0.01)
        assert self.done >= n


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.worker.stop(5)


def test_few_items_wait_for_more(rig: Rig) -> None:
    """They are worked on together, when somebody asks for them."""
    rig.lingers()
    for _ in range(20):
        rig.worker.put(object())
    assert rig.done == 0
    assert rig.worker.flush(WAIT_S)
    assert rig.done == 21


def test_many_items_end_the_waiting_and_none_is_lost(rig: Rig) -> None:
    """Whoever puts the one too many calls the worker, and has its place."""
    rig.lingers()
    for _ in range(2 * PATIENCE):
        rig.worker.put(object())
    rig.until_done(PATIENCE)
    assert rig.worker.flush(WAIT_S)
    assert rig.done == 2 * PATIENCE + 1
    assert not rig.lost


def test_a_short_queue_is_not_left_to_overflow() -> None:
    """Its half calls the worker; only what is beyond the whole is lost."""
    rig = Rig(max_spans=4)
    rig.lingers()
    for _ in range(3):
        rig.worker.put(object())
    rig.until_done(4)
    assert not rig.lost
    rig.worker.stop(5)
