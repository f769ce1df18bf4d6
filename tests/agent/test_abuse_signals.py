"""What a signal handler of the service raises while our code runs is the service's, and reaches it."""

from __future__ import annotations

import ctypes
import functools
import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context, get_current

import fakelib
import neuronscope as ns
from neuronscope.engine import calls, clock, invocation
from neuronscope.engine.current import attach, detach
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


def _reading() -> Callable[[], int]:
    """A clock whose first reading sends the signal, and that no frame of Python's is needed for."""
    send: Any = getattr(ctypes.CDLL(None), "raise")
    return itertools.chain(map(send, [signal.SIGUSR1]), itertools.count(1)).__next__


def test_a_signal_as_a_call_has_been_opened(exporter: Signalled, monkeypatch: Any) -> None:
    """Between the attaching of its context and the wrapper's knowing of it: nothing stays current."""
    exporter.due = False
    signal.signal(signal.SIGUSR1, Exceeded())
    client = fakelib.Client()
    client.chat("a")
    for _ in range(2):
        monkeypatch.setattr(clock, "wall_ns", _reading())
        with pytest.raises(TimeLimitError):
            client.chat("b")
        monkeypatch.undo()
        assert trace.get_current_span() is trace.INVALID_SPAN
    assert client.calls == ["a"]
    client.chat("c")
    assert [span.name for span in exporter.spans] == ["chat m"] * 2


class Within(list[Any]):
    """What a client was asked; while it is, it asks another one, and a signal comes."""

    def __init__(self) -> None:
        super().__init__()
        self.same: list[bool] = []

    def append(self, prompt: Any, /) -> None:
        """Ask: what is current then stays so."""
        before = get_current()
        with pytest.raises(TimeLimitError):
            fakelib.Client().chat("inner")
        self.same.append(get_current() is before)


def test_a_signal_as_a_call_within_another_begins(exporter: Signalled, monkeypatch: Any) -> None:
    """Not the one around it is given up."""
    exporter.due = False
    signal.signal(signal.SIGUSR1, Exceeded())
    monkeypatch.setattr(calls, "covered", _signalled)  # of a call within another one: is it a part of that?
    asked = Within()
    fakelib.Client(asked).chat("outer")
    assert asked.same == [True]
    assert len(exporter.spans) == 1


def test_a_signal_as_a_context_is_attached(exporter: Signalled, monkeypatch: Any) -> None:
    """In a call that asks for more than compiled code does."""
    exporter.due = False
    signal.signal(signal.SIGUSR1, Exceeded())

    def attach_and_signal(context: Context) -> Any:
        attach(context)
        signal.raise_signal(signal.SIGUSR1)

    with ns.tenant("a"):
        before = get_current()
        monkeypatch.setattr(calls, "attach", attach_and_signal)
        with pytest.raises(TimeLimitError):
            fakelib.Client().chat("a")
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert dict(get_current()) == dict(before)
    assert not exporter.spans


@pytest.mark.parametrize("how", ["fail", "stream"])
def test_a_signal_as_the_context_is_given_back(exporter: Signalled, monkeypatch: Any, how: str) -> None:
    """It is, all the same."""
    exporter.due = False
    signal.signal(signal.SIGUSR1, Exceeded())
    signals = iter([signal.raise_signal])

    def signal_and_detach(token: Any) -> None:
        for send in signals:
            send(signal.SIGUSR1)
        detach(token)

    monkeypatch.setattr(invocation, "detach", signal_and_detach)
    with pytest.raises(TimeLimitError):
        fakelib.Client().chat("a", fail=how == "fail", stream=how == "stream")
    assert trace.get_current_span() is trace.INVALID_SPAN
    monkeypatch.undo()
    exporter.clear()
    fakelib.Client().chat("b")
    assert len(exporter.spans) == 1
