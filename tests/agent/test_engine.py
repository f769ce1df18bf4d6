"""The path of a call: spans, parents, errors, streams, faults, foreign pipelines."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import fakelib
import neuronscope as ns
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter


@pytest.fixture
def registered() -> Iterator[None]:
    """The fake library has an adapter."""
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    yield
    ns.registry.unregister_adapter("fake")


@pytest.fixture
def exporter(registered: None) -> InMemoryExporter:
    """The fake library observed, everything finished in the caller's thread."""
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("fake")
    return memory


def test_a_call_becomes_one_span(exporter: InMemoryExporter) -> None:
    """Name, kind, request and response facts."""
    assert fakelib.Client().chat("a b", model="big") == {"text": "a b", "tokens": 2}
    (span,) = exporter.spans
    assert span.name == "chat big"
    assert span.kind is trace.SpanKind.CLIENT
    assert span.attributes[names.OUTPUT_TOKENS] == 2
    assert span.attributes[names.RESPONSE_MODEL] == "m-1"
    assert span.attributes[names.SERVER_ADDRESS] == "localhost"
    assert span.status is StatusCode.UNSET
    assert span.end_unix_ns >= span.start_unix_ns


def test_the_current_span_is_the_parent(exporter: InMemoryExporter) -> None:
    """Spans of the service and ours nest, both ways."""
    with ns.Scope("outer") as scope, trace.get_tracer("mine").start_as_current_span("manual"):
        fakelib.Client().chat("a")
    by_name = {span.name: span for span in exporter.spans}
    assert by_name["chat m"].parent_span_id == by_name["manual"].span_id
    assert by_name["manual"].parent_span_id == by_name["outer"].span_id
    assert len(scope.artifact.llm_spans) == 1


def test_an_error_goes_through_and_is_told(exporter: InMemoryExporter) -> None:
    """Type on the span, message nowhere."""
    with pytest.raises(ValueError, match="no: secret"):
        fakelib.Client().chat("secret", fail=True)
    (span,) = exporter.spans
    assert span.attributes[names.ERROR_TYPE] == "ValueError"
    assert span.status is StatusCode.ERROR
    assert "secret" not in repr(span)


def test_nested_calls_of_one_library_are_one_span(exporter: InMemoryExporter) -> None:
    """A method that calls another observed one."""
    fakelib.Client().outer("a")
    assert len(exporter.spans) == 1


@pytest.mark.parametrize("ending", ["exhausted", "break", "with", "close", "drop", "never", "raise"])
def test_a_stream_ends_exactly_once(exporter: InMemoryExporter, ending: str) -> None:
    """Every way a stream can end, and how it is told."""
    stream = fakelib.Client().chat("a b c", stream=True, cut=ending == "raise")
    assert type(stream) is fakelib.FakeStream
    expected = "client_closed"
    if ending == "exhausted":
        assert list(stream) == ["a", "b", "c"]
        expected = "complete"
    elif ending == "break":
        for _ in stream:
            break
    elif ending == "with":
        with stream:
            next(stream)
    elif ending == "close":
        next(stream)
        stream.close()
        assert stream.closed
    elif ending == "never":
        expected = "abandoned"
    elif ending == "drop":
        next(stream)
    elif ending == "raise":
        with pytest.raises(ConnectionError):
            next(stream)
        expected = "error"
    del stream
    gc.collect()  # a stream and its own generator refer to each other, as in the SDKs
    (span,) = exporter.spans
    assert span.attributes[names.STREAM_END] == expected
    gc.collect()
    assert len(exporter.spans) == 1


def test_a_stream_is_folded_and_timed(exporter: InMemoryExporter) -> None:
    """Chunks become a response; times become time to first chunk."""
    list(fakelib.Client().chat("a b c", stream=True))
    (span,) = exporter.spans
    assert span.attributes[names.OUTPUT_TOKENS] == 3
    assert span.attributes[names.STREAM_CHUNKS] == 3
    assert span.attributes[names.REQUEST_STREAM] is True
    assert float(str(span.attributes[names.TIME_TO_FIRST_CHUNK])) > 0


def test_an_async_call_and_stream(exporter: InMemoryExporter) -> None:
    """The asynchronous twins."""

    async def run() -> list[str]:
        client = fakelib.Client()
        await client.achat("x")
        return [chunk async for chunk in await client.achat("a b", stream=True)]

    assert asyncio.run(run()) == ["a", "b"]
    assert [span.attributes.get(names.STREAM_CHUNKS) for span in exporter.spans] == [None, 2]


def test_faults_of_ours_never_reach_the_service(exporter: InMemoryExporter, monkeypatch: Any) -> None:
    """Every reader raising: same results, spans without their facts, faults counted."""
    GUARD.reraise = False

    def broken(*_: Any) -> Any:
        raise RuntimeError("bug")

    endpoint = fakelib.Endpoint(
        operation=fakelib.Operation.CHAT, read_request=broken, read_response=broken, fold_chunk=broken
    )
    monkeypatch.setattr(fakelib, "CHAT", endpoint)
    client = fakelib.Client()
    assert client.chat("a b")["tokens"] == 2
    assert list(client.chat("a b", stream=True)) == ["a", "b"]
    assert len(exporter.spans) == 2
    assert sum(GUARD.faults.values()) >= 3


@pytest.mark.usefixtures("registered")
def test_uninstrument_restores_the_functions() -> None:
    """Exactly the original objects."""
    original = fakelib.Client.__dict__["chat"]
    ns.instrument("fake")
    assert fakelib.Client.__dict__["chat"] is not original
    ns.uninstrument("fake")
    assert fakelib.Client.__dict__["chat"] is original


@pytest.mark.usefixtures("registered")
def test_only_the_wrapped_object_is_observed() -> None:
    """`instrument_object` leaves other objects alone."""
    from neuronscope import platform

    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    mine, other = fakelib.Client(), fakelib.Client()
    assert platform.instrument_object("fake", mine) is mine
    mine.chat("a")
    other.chat("b")
    assert len(memory.spans) == 1


def test_a_service_with_its_own_pipeline_gets_each_span_once(exporter: InMemoryExporter) -> None:
    """Foreign mode: created, filled and ended inline in the service's pipeline, children in order."""
    theirs = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("app").start_as_current_span("request") as request:
        fakelib.Client().chat("a b")
        assert [span.name for span in theirs.get_finished_spans()] == ["chat m"]
    chat, outer = theirs.get_finished_spans()
    assert outer.name == "request"
    assert chat.parent is not None
    assert chat.parent.span_id == request.get_span_context().span_id
    assert chat.attributes is not None
    assert chat.attributes[names.OUTPUT_TOKENS] == 2
    (ours,) = exporter.spans
    assert ours.foreign
    identity = chat.get_span_context()
    assert identity is not None
    assert ours.span_id == identity.span_id


def test_a_processor_added_to_our_provider_makes_spans_foreign(exporter: InMemoryExporter) -> None:
    """Our global provider is an SDK one; adding to it works."""
    fakelib.Client().chat("first")
    theirs = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    fakelib.Client().chat("second")
    assert len(theirs.get_finished_spans()) == 1
    assert len(exporter.spans) == 2


def test_closing_an_async_stream_elsewhere_logs_nothing(
    exporter: InMemoryExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """Read in one task, close in another: no "different Context"."""

    async def run() -> None:
        stream = await fakelib.Client().achat("a b c", stream=True)
        iterator = stream.__aiter__()
        await asyncio.create_task(anext(iterator))
        await asyncio.create_task(stream.close())

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert not caplog.records
    assert exporter.spans[0].attributes[names.STREAM_END] == "client_closed"


def test_cancellation_is_not_swallowed(exporter: InMemoryExporter) -> None:
    """A cancelled call ends its span and stays cancelled."""

    async def slow(self: fakelib.Client, prompt: str, **_: Any) -> Any:
        await asyncio.sleep(60)

    async def run() -> None:
        task = asyncio.create_task(fakelib.Client().achat("a"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ns.uninstrument("fake")
    original = fakelib.Client.achat
    fakelib.Client.achat = slow  # type: ignore[method-assign]
    try:
        ns.instrument("fake")
        asyncio.run(run())
        ns.uninstrument("fake")
    finally:
        fakelib.Client.achat = original  # type: ignore[method-assign]
    (span,) = exporter.spans
    assert span.attributes[names.ERROR_TYPE] == "asyncio.exceptions.CancelledError"


def test_the_random_module_is_left_alone(exporter: InMemoryExporter) -> None:
    """Ids come from a generator of our own."""
    import random

    random.seed(7)
    expected = [random.random() for _ in range(3)]
    random.seed(7)
    fakelib.Client().chat("a")
    assert [random.random() for _ in range(3)] == expected


def test_importing_the_package_loads_no_framework() -> None:
    """`import neuronscope` stays light."""
    import subprocess

    heavy = ("torch", "openai", "numpy", "opentelemetry")
    code = f"import neuronscope, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("registered")
def test_a_long_stream_is_folded_by_the_worker_as_it_comes() -> None:
    """Chunks are handed over in parts, in order; the span's facts are of all of them."""
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory])
    ns.instrument("fake")
    words = ["w"] * 1000
    for _ in range(3):
        assert list(fakelib.Client().chat(" ".join(words), stream=True)) == words
    assert ns.flush(60)
    assert [span.attributes[names.OUTPUT_TOKENS] for span in memory.spans] == [1000] * 3
