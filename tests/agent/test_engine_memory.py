"""What is kept of a call, and for how long: nothing waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fakelib
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.intake import Intake
from neuronscope.engine.span import LightSpan
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter


def succeed() -> None:
    fakelib.Client().chat("a b")


def fail() -> None:
    with pytest.raises(ValueError, match="no"):
        fakelib.Client().chat("a b", fail=True)


def read_a_stream() -> None:
    assert list(fakelib.Client().chat("a b c", stream=True)) == ["a", "b", "c"]


def leave_a_stream() -> None:
    for _ in fakelib.Client().chat("a b c", stream=True):
        break


def drop_a_stream() -> None:
    fakelib.Client().chat("a b c", stream=True)
    gc.collect()  # it is a cycle of its own: a stream that holds the generator that holds it


def await_one() -> None:
    asyncio.run(fakelib.Client().achat("a b"))


CALLS = (succeed, fail, read_a_stream, leave_a_stream, drop_a_stream, await_one)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[LightSpan]]]:
    """Every span that ends from here on."""
    made: list[weakref.ref[LightSpan]] = []

    put = Intake.put

    def remember(intake: Intake, item: Any, *nbytes: int) -> None:
        if isinstance(item, LightSpan):
            made.append(weakref.ref(item))
        put(intake, item, *nbytes)

    monkeypatch.setattr(Intake, "put", remember)
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    gc.collect()
    gc.disable()
    yield made
    gc.enable()
    ns.uninstrument("fake")
    ns.registry.unregister_adapter("fake")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("deferred", [True, False])
def test_a_finished_call_leaves_nothing_behind(
    spans: list[weakref.ref[LightSpan]], call: Callable[[], None], deferred: bool
) -> None:
    """Its span, with all it holds, goes as soon as it has been read."""
    ns.Platform(exporters=[InMemoryExporter()], deferred=deferred)
    ns.instrument("fake")
    for _ in range(10):
        call()
    assert ENGINE.flush(60)
    assert len(spans) == 10
    assert not [span for span in spans if span() is not None]


def test_a_call_that_the_queue_refuses_leaves_nothing_behind(spans: list[weakref.ref[LightSpan]]) -> None:
    """Not even until the next garbage collection: an overload is no time to hold more."""
    ns.Platform(exporters=[InMemoryExporter()], queue_max_spans=1)
    ns.instrument("fake")
    worker: Any = vars(ENGINE)["_worker"]
    assert worker.pause(60)
    for _ in range(50):
        succeed()
    alive = sum(span() is not None for span in spans)
    worker.resume()
    assert alive <= 4  # in the queue, and in the worker's hands
    assert ENGINE.flush(60)
    assert ENGINE.metrics.total(names.DROPPED) >= 46
