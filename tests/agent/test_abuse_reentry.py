"""What the service gives us calls the client that we observe, raises, or changes things on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult

import neuronscope as ns
import victimlib
from fakelib import FakeAsyncStream, FakeStream
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import Batch
from neuronscope.testing import InMemoryExporter

client = victimlib.Client()


@pytest.fixture(autouse=True)
def victim() -> Iterator[None]:
    """The library is known; each test starts a platform of its own."""
    ns.registry.register_adapter(victimlib.integration())
    yield
    ns.uninstrument()
    ns.registry.unregister_adapter("victim")


class Calls:
    """Counts how often the client was really called."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, argument: Any) -> Any:
        self.n += 1
        return argument


class CallingSampler(Sampler):
    """Asks a model whether to sample."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        client.call(self.calls)
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "calling"


class CallingProcessor(SpanProcessor):
    """Asks a model about each span."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        client.call(self.calls)

    def on_end(self, span: ReadableSpan) -> None:
        client.call(self.calls)


class CallingSpanExporter(SpanExporter):
    """Sends spans by a client that is observed."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        client.call(self.calls)
        return SpanExportResult.SUCCESS


@pytest.mark.parametrize("deferred", [True, False])
def test_an_exporter_that_calls_the_client(deferred: bool) -> None:
    """Its calls are no spans: else every export would make the next one."""
    calls, seen = Calls(), []

    class Exporter(InMemoryExporter):
        def export(self, batch: Batch) -> None:
            seen.append(client.call(calls, len(batch.spans)))
            super().export(batch)

    exporter = Exporter()
    ns.Platform(exporters=[exporter], deferred=deferred, export_interval_s=0.02)
    ns.instrument("victim")
    client.call(len, "abc")
    time.sleep(0.2)
    assert ENGINE.flush(60)
    assert len(exporter.spans) == 1
    assert seen == [1]
    assert calls.n == 1


@pytest.mark.parametrize("pipeline", ["ours", "theirs"])
def test_a_redactor_that_calls_the_client(pipeline: str) -> None:
    """A model that finds names in texts, say."""
    if pipeline == "theirs":
        theirs = TracerProvider()
        theirs.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        trace.set_tracer_provider(theirs)
    calls = Calls()
    exporter = InMemoryExporter()
    ns.Platform(
        exporters=[exporter],
        deferred=False,
        capture_content="span_only",
        redactor=lambda _, text: str(client.call(calls, text)).replace("secret", "*"),
    )
    ns.instrument("victim")
    with ns.Scope("s"), trace.get_tracer("app").start_as_current_span("x") as span:
        span.set_attribute("gen_ai.prompt", "my secret")
        client.call(len, "abc")
    assert [span.name for span in exporter.spans].count("chat m") == 1
    assert "secret" not in repr(exporter.spans)
    assert calls.n < 10


@pytest.mark.parametrize("part", ["sampler", "processor", "exporter"])
def test_parts_of_the_services_pipeline_that_call_the_client(part: str) -> None:
    """Each is asked for the service's one span, and its own calls are not observed."""
    calls = Calls()
    theirs = TracerProvider(sampler=CallingSampler(calls)) if part == "sampler" else TracerProvider()
    kept = InMemorySpanExporter()
    theirs.add_span_processor(SimpleSpanProcessor(kept))
    if part == "processor":
        theirs.add_span_processor(CallingProcessor(calls))
    if part == "exporter":
        theirs.add_span_processor(SimpleSpanProcessor(CallingSpanExporter(calls)))
    trace.set_tracer_provider(theirs)
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False)
    ns.instrument("victim")
    assert client.call(len, "abc") == 3
    assert len(kept.get_finished_spans()) == len(exporter.spans) == 1
    assert calls.n == (2 if part == "processor" else 1)


class Raising(SpanProcessor, Sampler):
    """A sampler and a processor with a bug."""

    def __init__(self, where: str) -> None:
        self.where = where

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        self._maybe("sampler")
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "raising"

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._maybe("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        self._maybe("on_end")

    def _maybe(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError("theirs")


@pytest.mark.parametrize("where", ["sampler", "on_start", "on_end"])
def test_parts_of_the_services_pipeline_that_raise(where: str) -> None:
    """The call goes through, and nothing stays current."""
    GUARD.reraise = False
    raising = Raising(where)
    theirs = TracerProvider(sampler=ParentBased(raising))
    theirs.add_span_processor(raising)
    trace.set_tracer_provider(theirs)
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False)
    ns.instrument("victim")
    for _ in range(200):  # beyond the number of faults at which a site is switched off
        assert client.call(len, "abc") == 3
        assert trace.get_current_span() is trace.INVALID_SPAN
    if where == "on_end":
        assert len(exporter.spans) == 200


def test_uninstrumented_during_a_call() -> None:
    """The span of the call that is under way ends; the next call has none."""
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False)
    ns.instrument("victim")
    client.call(lambda _: ns.uninstrument("victim"))
    client.call(len, "abc")
    assert len(exporter.spans) == 1
    assert not hasattr(victimlib.Client.call, "__neuronscope__")


def off() -> None:
    ns.uninstrument("victim")


def off_and_on() -> None:
    ns.uninstrument("victim")
    ns.instrument("victim")


async def an_awaited_call(change: Callable[[], None]) -> Any:
    async def work(_: Any) -> str:
        await asyncio.sleep(0)
        change()
        await asyncio.sleep(0)
        return "done"

    return await client.acall(work)


async def a_stream(change: Callable[[], None]) -> Any:
    reading = iter(client.call(lambda _: iter_stream()))
    found = [next(reading)]
    change()
    return [*found, *reading]


async def an_asynchronous_stream(change: Callable[[], None]) -> Any:
    async def open_stream(_: Any) -> Any:
        return FakeAsyncStream(["a", "b"])

    reading = aiter(await client.acall(open_stream))
    found = [await anext(reading)]
    change()
    return [*found, *[chunk async for chunk in reading]]


@pytest.mark.parametrize("pipeline", ["ours", "theirs"])
@pytest.mark.parametrize("change", [off, off_and_on])
@pytest.mark.parametrize("use", [an_awaited_call, a_stream, an_asynchronous_stream])
def test_changed_in_mid_flight(use: Callable[..., Any], change: Callable[[], None], pipeline: str) -> None:
    """What is under way goes on and ends once, whole; the service gets what it would get without us."""
    expected = asyncio.run(use(lambda: None))
    if pipeline == "theirs":
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        trace.set_tracer_provider(provider)
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False)
    ns.instrument("victim")
    assert asyncio.run(use(change)) == expected
    (span,) = exporter.spans
    assert span.attributes.get(names.STREAM_END, "complete") == "complete"
    assert span.attributes.get(names.STREAM_CHUNKS, 2) == 2
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert hasattr(victimlib.Client.call, "__neuronscope__") is (change is off_and_on)


@pytest.mark.parametrize("change", [off, off_and_on])
def test_changed_before_a_coroutine_begins(change: Callable[[], None]) -> None:
    """A call begins when it is awaited: one that was made of a wrapper that is gone is not observed."""

    async def work(_: Any) -> str:
        return "done"

    async def use() -> str:
        waiting = client.acall(work)
        change()
        return str(await waiting)

    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False)
    ns.instrument("victim")
    assert asyncio.run(use()) == "done"
    assert not exporter.spans
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_shut_down_during_a_call_and_a_stream() -> None:
    """Both end as ever; what comes after the shutdown is counted as lost."""
    exporter = InMemoryExporter()
    platform = ns.Platform(exporters=[exporter])
    ns.instrument("victim")
    stream = client.call(lambda _: iter_stream())
    assert client.call(lambda _: (platform.shutdown(), 7)[1]) == 7  # type: ignore[func-returns-value]
    assert list(stream) == ["a", "b"]
    assert not exporter.spans
    lost = [
        point.value
        for family in ENGINE.metrics.collect().families
        for point in family.points
        if dict(point.labels).get("reason") == "stopped"
    ]
    assert lost == [2]


def iter_stream() -> Any:
    return FakeStream(["a", "b"])


def test_instrumenting_in_a_loop_while_threads_call() -> None:
    """Results are right all the time, and the functions are the originals in the end."""
    original = victimlib.Client.__dict__["call"]
    ns.Platform(exporters=[InMemoryExporter()])
    stop, wrong = threading.Event(), list[Any]()

    def work() -> None:
        while not stop.is_set():
            if client.call(len, "abc") != 3 or asyncio.run(client.acall(asyncio.sleep, 0)) is not None:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        ns.instrument("victim")
        time.sleep(0.001)
        ns.uninstrument("victim")
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert victimlib.Client.__dict__["call"] is original
