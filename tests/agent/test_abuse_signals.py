"""What a signal handler of the service raises while our code runs is the service's, and reaches it."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace

import fakelib
import neuronscope as ns
from neuronscope.engine.guard import GUARD
from neuronscope.signals.records import Batch
from neuronscope.testing import InMemoryExporter

Handler = Callable[[int, FrameType | None], Any]


class TimeLimitError(Exception):
    """As Celery's soft time limit: an ordinary exception."""


class Exceeded:
    """A handler that is an object."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeLimitError

    def told(self, kind: type[BaseException], number: int, frame: FrameType | None) -> None:
        """A handler that is a method, with more arguments."""
        raise kind


def leave(number: int, frame: FrameType | None) -> None:
    """What containers' programs do at SIGTERM."""
    raise SystemExit(3)


class Signalled(InMemoryExporter):
    """A signal comes while a batch is exported, in the caller's thread."""

    due = True

    def export(self, batch: Batch) -> None:
        """Take it."""
        if self.due:
            self.due = False
            signal.raise_signal(signal.SIGUSR1)
        super().export(batch)


@pytest.fixture
def exporter() -> Iterator[Signalled]:
    """The fake library observed, everything done in the caller's thread."""
    GUARD.reraise = False
    before = signal.getsignal(signal.SIGUSR1)
    memory = Signalled()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("fake")
    yield memory
    ns.registry.unregister_adapter("fake")
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (leave, SystemExit),
        (Exceeded(), TimeLimitError),
        (functools.partial(Exceeded().told, SystemExit), SystemExit),
    ],
    ids=["function", "object", "method"],
)
def test_a_signal_during_an_export(exporter: Signalled, handler: Handler, kind: type[BaseException]) -> None:
    """A limit of time, or the order to end: the service gets it, and the next call is observed."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(kind):
        fakelib.Client().chat("a")
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert not GUARD.faults
    exporter.clear()
    assert fakelib.Client().chat("a")["tokens"] == 1
    assert len(exporter.spans) == 1


def _signalled(*_: Any) -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("reader", ["read_request", "read_response"])
def test_a_signal_during_a_reader(exporter: Signalled, monkeypatch: Any, reader: str) -> None:
    """The same in the depths of our code."""
    exporter.due = False
    signal.signal(signal.SIGUSR1, Exceeded())
    signalled: dict[str, Any] = {reader: _signalled}
    monkeypatch.setattr(fakelib, "CHAT", replace(fakelib.CHAT, **signalled))
    with pytest.raises(TimeLimitError):
        fakelib.Client().chat("a")
    assert not GUARD.faults


def test_a_fault_of_ours_is_contained_beside_handlers(exporter: Signalled, monkeypatch: Any) -> None:
    """That there is a handler makes no fault the service's."""
    exporter.due = False
    signal.signal(signal.SIGUSR1, Exceeded())

    def broken(*_: Any) -> Any:
        raise TimeLimitError

    monkeypatch.setattr(fakelib, "CHAT", replace(fakelib.CHAT, read_request=broken))
    assert fakelib.Client().chat("a")["tokens"] == 1
    assert GUARD.faults
