"""OpenTelemetry's own instrumentation of OpenAI beside ours: one span a call, its tokens counted once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.mark.any_names  # the other instrumentation's, on a span that both have
@pytest.mark.parametrize("pipeline", ["our pipeline", "their pipeline"])
@pytest.mark.parametrize("order", ["they first", "we first"])
def test_one_span_a_call(server: FakeOpenAI, order: str, pipeline: str) -> None:
    """Chat, stream and embeddings; in either order and either pipeline."""
    kept = InMemorySpanExporter()
    if pipeline == "their pipeline":
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        trace.set_tracer_provider(provider)
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    assert ENGINE.owns_pipeline() is (pipeline == "our pipeline")
    theirs = OpenAIInstrumentor()  # type: ignore[no-untyped-call] # as it is published
    if order == "they first":
        theirs.instrument()
    ns.instrument("openai")
    if order == "we first":
        theirs.instrument()
    try:
        with openai.OpenAI(base_url=server.base_url, api_key="k") as client:
            client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
            for _ in client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True):
                pass
            client.embeddings.create(model="text-embedding-3-small", input="x")
    finally:
        theirs.uninstrument()
    assert sorted(str(span.attributes[names.OPERATION_NAME]) for span in memory.spans) == [
        "chat",
        "chat",
        "embeddings",
    ]
    if pipeline == "their pipeline":
        assert len(kept.get_finished_spans()) == 3
    for span in memory.spans:
        assert span.attributes[names.RESPONSE_MODEL]
