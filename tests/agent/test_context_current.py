"""The current span: never left behind, never somebody else's parent, never an error in the log."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fakelib
import neuronscope as ns
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter


@pytest.fixture(params=["our pipeline", "their pipeline"])
def exporter(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[InMemoryExporter]:
    """The fake library observed; nothing is logged, and nothing is current afterwards."""
    if request.param == "their pipeline":
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        trace.set_tracer_provider(provider)
    memory = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("fake")
    with caplog.at_level(logging.WARNING):
        yield memory
    gc.collect()
    assert not caplog.records
    assert trace.get_current_span() is trace.INVALID_SPAN
    ns.registry.unregister_adapter("fake")


async def read(model: str = "m") -> AsyncIterator[str]:
    """A service's own generator around a stream."""
    async for chunk in await fakelib.Client().achat("a b c", model=model, stream=True):
        yield chunk


async def leave_open() -> None:
    generator = read()
    await anext(generator)
    del generator
    gc.collect()
    await asyncio.sleep(0.01)


async def close_in_another_task() -> None:
    generator = read()
    await anext(generator)
    await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]


async def wait_for_each() -> None:
    generator = read()
    for _ in range(2):
        await asyncio.wait_for(anext(generator), 60)
    await generator.aclose()  # type: ignore[attr-defined]


async def each_in_a_task_of_its_own() -> None:
    generator = read()
    for _ in range(2):
        await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
    await generator.aclose()  # type: ignore[attr-defined]


async def disconnect() -> None:
    """As a web framework does when the client is gone: the task that reads is cancelled."""

    responding = asyncio.Event()

    async def respond() -> None:
        async for _ in read():
            responding.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(respond())
    await responding.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def break_early() -> None:
    async for _ in read():
        break
    gc.collect()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "scenario",
    [leave_open, close_in_another_task, wait_for_each, each_in_a_task_of_its_own, disconnect, break_early],
)
def test_a_stream_that_is_left_early(exporter: InMemoryExporter, scenario: Callable[[], Any]) -> None:
    """It ends once, in whatever task; what comes after has no parent."""

    async def run() -> None:
        await scenario()
        await fakelib.Client().achat("after", model="after")

    asyncio.run(run())
    gc.collect()
    spans = {span.name: span for span in exporter.spans}
    assert len(exporter.spans) == len(spans) == 2
    assert spans["chat m"].attributes[names.STREAM_END] in ("client_closed", "cancelled")
    assert spans["chat after"].parent_span_id is None


def test_a_suspended_generator_is_no_parent(exporter: InMemoryExporter) -> None:
    """Unrelated spans start while a stream is half read."""

    def service() -> Iterator[str]:
        yield from fakelib.Client().chat("a b", stream=True)

    generator = service()
    next(generator)
    with trace.get_tracer("app").start_as_current_span("unrelated") as unrelated:
        fakelib.Client().chat("x", model="inner")
        assert trace.get_current_span() is unrelated
    assert list(generator) == ["b"]
    by_name = {span.name: span for span in exporter.spans}
    assert by_name["chat inner"].parent_span_id == unrelated.get_span_context().span_id
    assert by_name["chat m"].parent_span_id is None
    assert getattr(unrelated, "parent", None) is None


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_call_that_leaves_something_current(
    exporter: InMemoryExporter, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    """A hook of the client attaches baggage and does not detach it: that stays, our span does not."""
    token = otel_context.attach(otel_context.get_current())

    def attaching(client: Any, prompt: str, **_: Any) -> Any:
        otel_context.attach(baggage.set_baggage("user", "7"))
        if error is not None:
            raise error
        return {"tokens": 1}

    ns.uninstrument("fake")
    monkeypatch.setattr(fakelib.Client, "chat", attaching)
    ns.instrument("fake")
    with trace.get_tracer("app").start_as_current_span("request") as request:
        with contextlib.suppress(ValueError):
            fakelib.Client().chat("x")
        assert baggage.get_baggage("user") == "7"
        assert trace.get_current_span() is request
    ns.uninstrument("fake")
    otel_context.detach(token)


def test_a_coroutine_that_is_driven_in_changing_contexts(exporter: InMemoryExporter) -> None:
    """Each step in a context of its own, as some test and notebook loops do; closed in yet another."""

    class Step:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def call(client: Any, prompt: str, **_: Any) -> Any:
        await Step()
        return {"tokens": 1}

    ns.uninstrument("fake")
    original = fakelib.Client.achat
    fakelib.Client.achat = call  # type: ignore[method-assign,assignment]
    try:
        ns.instrument("fake")
        finished, closed = fakelib.Client().achat("a"), fakelib.Client().achat("b")
        for coroutine in (finished, closed):
            contextvars.copy_context().run(coroutine.send, None)
        with pytest.raises(StopIteration):
            contextvars.copy_context().run(finished.send, None)
        contextvars.copy_context().run(closed.close)
        ns.uninstrument("fake")
    finally:
        fakelib.Client.achat = original  # type: ignore[method-assign]
    assert [span.attributes.get(names.ERROR_TYPE) for span in exporter.spans] == [None, "GeneratorExit"]


def test_a_coroutine_that_is_never_awaited(exporter: InMemoryExporter) -> None:
    """No call, no span; Python's own warning is the same."""
    coroutines: list[Any] = [fakelib.Client().achat("a")]
    with pytest.warns(RuntimeWarning, match="never awaited"):
        coroutines.clear()
    assert not exporter.spans
