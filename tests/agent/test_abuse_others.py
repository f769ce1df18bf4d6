"""Two layers on one call: one span, tokens counted once, and everybody's functions stay theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import fakelib
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter

Undo = Callable[[], None]


def other_instrumentor(**attributes: Any) -> Undo:
    """As OpenTelemetry's own instrumentations do it: a CLIENT span around the method, an HTTP span within."""
    original = fakelib.Client.chat
    tracer = trace.get_tracer("opentelemetry.instrumentation.fake")

    @functools.wraps(original)
    def chat(self: Any, prompt: str, **arguments: Any) -> Any:
        start = {"gen_ai.operation.name": "chat", "gen_ai.request.model": arguments.get("model", "m")}
        with tracer.start_as_current_span(
            "their chat", kind=SpanKind.CLIENT, attributes=attributes or start
        ) as span:
            result = original(self, prompt, **arguments)
            with tracer.start_as_current_span("POST", kind=SpanKind.CLIENT):
                pass
            span.set_attribute("gen_ai.usage.output_tokens", result["tokens"])
            return result

    fakelib.Client.chat = chat  # type: ignore[method-assign]

    def undo() -> None:
        fakelib.Client.chat = original  # type: ignore[method-assign]

    return undo


@pytest.fixture
def memory() -> Iterator[InMemoryExporter]:
    """The platform, with nothing instrumented yet."""
    exporter = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    original = fakelib.Client.__dict__["chat"]
    ns.Platform(exporters=[exporter], deferred=False)
    yield exporter
    ns.uninstrument("fake")
    fakelib.Client.chat = original  # type: ignore[method-assign]
    ns.registry.unregister_adapter("fake")


def tokens() -> int:
    for family in ENGINE.metrics.collect().families:
        if family.metric is names.TOKEN_USAGE:
            return int(sum(getattr(point.value, "sum", 0) for point in family.points))
    return 0


@pytest.mark.parametrize("theirs", ["before us", "after us"])
@pytest.mark.parametrize("pipeline", ["our pipeline", "their pipeline"])
def test_another_instrumentor_on_the_same_method(
    memory: InMemoryExporter, theirs: str, pipeline: str
) -> None:
    """One span a call here and there; the HTTP span's parent is that span."""
    kept = InMemorySpanExporter()
    if pipeline == "their pipeline":
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        trace.set_tracer_provider(provider)
    assert ENGINE.owns_pipeline() is (pipeline == "our pipeline")
    if theirs == "before us":
        other_instrumentor()
    ns.instrument("fake")
    if theirs == "after us":
        other_instrumentor()
    assert fakelib.Client().chat("a b", model="big") == {"text": "a b", "tokens": 2}
    assert tokens() == 2
    ours = [span for span in memory.spans if span.name != "POST"]
    (call,) = ours
    assert call.attributes[names.OUTPUT_TOKENS] == 2
    assert call.attributes[names.RESPONSE_MODEL] == "m-1"
    for span in memory.spans:
        assert span is call or span.parent_span_id == call.span_id
    if pipeline == "their pipeline":
        finished = {span.name: span for span in kept.get_finished_spans()}
        assert finished.keys() == {"their chat", "POST"}
        assert finished["their chat"].parent is None
        assert finished["POST"].parent == finished["their chat"].get_span_context()
        attributes = finished["their chat"].attributes
        assert attributes is not None
        if theirs == "after us":  # inside ours, theirs has ended before we know more
            assert attributes[names.RESPONSE_MODEL] == "m-1"


@pytest.mark.parametrize("provided", ["their provider", "our provider with a processor of theirs"])
def test_a_span_inside_ours_in_their_pipeline_takes_its_place(
    memory: InMemoryExporter, provided: str
) -> None:
    """In the trace of the service: what is around, their span, what is inside; no parent is missing."""
    kept = InMemorySpanExporter()
    provider: Any = TracerProvider()
    if provided != "their provider":
        assert ENGINE.owns_pipeline()  # ours becomes the global one
        provider = trace.get_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    if provided == "their provider":
        trace.set_tracer_provider(provider)
    other_instrumentor()
    ns.instrument("fake")
    tracer = trace.get_tracer("service")
    with tracer.start_as_current_span("request"):
        for _ in range(2):
            fakelib.Client().chat("a b", model="big")
    finished = kept.get_finished_spans()
    assert sorted(span.name for span in finished) == ["POST", "POST", "request", "their chat", "their chat"]
    known = {span.context.span_id: span for span in finished if span.context is not None}
    for span in finished:
        assert span.parent is None or span.parent.span_id in known
    chats = [span for span in finished if span.name == "their chat"]
    assert all(chat.parent is not None and known[chat.parent.span_id].name == "request" for chat in chats)
    assert tokens() == 4
    told = [span for span in memory.spans if span.library == "neuronscope.fake"]
    assert {span.span_id for span in told} == {chat.context.span_id for chat in chats if chat.context}
    assert len({span.span_id for span in memory.spans}) == len(memory.spans)  # none is there twice


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "invoke_agent"},
        {"gen_ai.operation.name": "chat", "gen_ai.request.model": "another"},
        {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "m"},
        {"http.request.method": "POST"},
    ],
)
def test_spans_that_are_not_this_call_are_parents(
    memory: InMemoryExporter, attributes: dict[str, Any]
) -> None:
    """An agent's span, a call of another model, another operation, an HTTP client's span."""
    ns.instrument("fake")
    assert ENGINE.owns_pipeline()
    other_instrumentor(**attributes)
    fakelib.Client().chat("a b")
    spans = {span.name: span for span in memory.spans}
    assert spans["chat m"].parent_span_id == spans["their chat"].span_id


@pytest.mark.parametrize(
    "attributes",
    [
        {"llm.request.type": "chat", "gen_ai.request.model": "m"},
        {"openinference.span.kind": "LLM", "llm.model_name": "m"},
        {"openinference.span.kind": "LLM"},
    ],
)
def test_other_vocabularies_are_understood(memory: InMemoryExporter, attributes: dict[str, Any]) -> None:
    """What other makers call a chat."""
    ns.instrument("fake")
    assert ENGINE.owns_pipeline()
    other_instrumentor(**attributes)
    fakelib.Client().chat("a b")
    assert sorted(span.name for span in memory.spans) == ["POST", "their chat"]
    assert tokens() == 2


def test_instrumented_twice(memory: InMemoryExporter) -> None:
    """The second time changes nothing."""
    ns.instrument("fake")
    first = fakelib.Client.__dict__["chat"]
    ns.instrument("fake")
    assert fakelib.Client.__dict__["chat"] is first
    fakelib.Client().chat("a")
    assert len(memory.spans) == 1


def test_a_subclass_that_overrides_and_calls_super(memory: InMemoryExporter) -> None:
    """One span."""
    ns.instrument("fake")

    class Mine(fakelib.Client):
        def chat(self, prompt: str, **arguments: Any) -> Any:
            return super().chat(prompt, **arguments)

    Mine().chat("a")
    assert len(memory.spans) == 1


def test_uninstrumented_below_another_patch(memory: InMemoryExporter) -> None:
    """Ours only passes through then; instrumented again, there is one span again."""
    ns.instrument("fake")
    assert ENGINE.owns_pipeline()
    undo = other_instrumentor(app="theirs")
    theirs = fakelib.Client.__dict__["chat"]
    ns.uninstrument("fake")
    assert fakelib.Client.__dict__["chat"] is theirs
    fakelib.Client().chat("a")
    assert [span.name for span in memory.spans] == ["POST", "their chat"]
    memory.clear()
    ns.instrument("fake")
    fakelib.Client().chat("a")
    assert sorted(span.name for span in memory.spans) == ["POST", "chat m", "their chat"]
    ns.uninstrument("fake")
    assert fakelib.Client.__dict__["chat"] is theirs
    undo()
