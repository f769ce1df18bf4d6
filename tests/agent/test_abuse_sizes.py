"""Sizes: what is too large is cut and says so; the facts that matter always survive."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace

import fakelib
import neuronscope as ns
from collectors import serving
from neuronscope.engine import ENGINE
from neuronscope.engine.fit import cut, fit_json
from neuronscope.engine.sizes import MAX_SPAN_BYTES, span_bytes
from neuronscope.instrumentation import Message, Request, Response
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter

BIG = "x" * 100_000
MESSAGES = [Message("user", [{"type": "text", "content": f"{n}:{BIG}"}]) for n in range(300)]
TOOLS = [{"type": "function", "name": f"tool-{n}", "description": BIG} for n in range(100)]
DOCUMENTS = {f"neuronscope.content.document.{n}": BIG for n in range(50)}


def big_request(arguments: Mapping[str, Any], content: bool) -> Request:
    return Request(
        model="big",
        messages=MESSAGES,
        tools=TOOLS,
        system=[{"type": "text", "content": BIG}],
        extra=DOCUMENTS,
    )


def big_response(result: Any, content: bool) -> Response:
    return Response(
        model="big-1", input_tokens=5, output_tokens=7, finish_reasons=["stop"], messages=MESSAGES[:3]
    )


@pytest.fixture
def big(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fake library's calls are as large as they come."""
    endpoint = fakelib.Endpoint(
        operation=fakelib.Operation.CHAT, read_request=big_request, read_response=big_response
    )
    monkeypatch.setattr(fakelib, "CHAT", endpoint)
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    yield
    ns.registry.unregister_adapter("fake")


@pytest.fixture
def memory() -> Iterator[InMemoryExporter]:
    """Everything recorded, content too."""
    exporter = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[exporter], deferred=False, capture_content="span_only")
    ns.instrument("fake")
    yield exporter
    ns.registry.unregister_adapter("fake")


def survives(attributes: Mapping[str, Any]) -> None:
    assert attributes[names.REQUEST_MODEL] == "m"
    assert attributes[names.RESPONSE_MODEL] == "big-1"
    assert (attributes[names.INPUT_TOKENS], attributes[names.OUTPUT_TOKENS]) == (5, 7)
    assert list(attributes[names.FINISH_REASONS]) == ["stop"]


@pytest.mark.any_names
def test_core_facts_survive_a_huge_call(big: None) -> None:
    """300 messages, 100 tools and 50 documents of 100 KB: valid JSON, told, and of bounded cost."""
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False, capture_content="span_only")
    ns.instrument("fake")
    tracemalloc.start()
    started = time.thread_time()
    fakelib.Client().chat("x")
    seconds = time.thread_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (span,) = exporter.spans
    survives(span.attributes)
    messages = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
    assert messages[0]["parts"][0]["content"].startswith("0:")
    assert messages[-1]["parts"][0]["content"].startswith("299:")
    assert len(json.loads(str(span.attributes[names.TOOL_DEFINITIONS]))) == 100
    assert {names.INPUT_MESSAGES, names.TOOL_DEFINITIONS, names.SYSTEM_INSTRUCTIONS} <= set(
        span.attributes[names.TRUNCATED]  # type: ignore[arg-type]
    )
    assert span_bytes(span) <= MAX_SPAN_BYTES * 1.1
    assert peak < 20e6  # of 46 MB of texts
    assert seconds < 2  # a machine under load; 30 ms on an idle one


@pytest.mark.any_names
def test_a_failed_huge_call_tells_its_error(big: None) -> None:
    """The error's type is one of the facts that survive."""
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False, capture_content="span_only")
    ns.instrument("fake")
    with pytest.raises(ValueError, match="no"):
        fakelib.Client().chat("x", fail=True)
    assert exporter.spans[0].attributes[names.ERROR_TYPE] == "ValueError"


@pytest.mark.any_names
@pytest.mark.integration
def test_huge_calls_take_no_healthy_ones_with_them(big: None) -> None:
    """A collector that refuses 4 MiB gets every span, in requests that it takes."""
    with serving() as collector:

        def take(path: str, headers: dict[str, str], body: bytes) -> Any:
            collector.requests.append((path, headers, body))
            return (413, {}, b"") if len(body) > 4 << 20 else (200, {}, b"")

        collector.take = take  # type: ignore[method-assign]
        with ns.Platform(otlp_endpoint=collector.url, capture_content="span_only"):
            ns.instrument("fake")
            assert ENGINE.owns_pipeline()
            for number in range(12):
                with trace.get_tracer("app").start_as_current_span(f"healthy {number}"):
                    fakelib.Client().chat("x")
            assert ns.flush(60)
    assert len(collector.spans) == 24
    assert max(len(body) for _, _, body in collector.requests) <= 4 << 20


def test_attributes_of_the_service_are_bounded(memory: InMemoryExporter) -> None:
    """A 20 MB text, a list of a million, 300 attributes and events: nothing is refused, all is told."""
    assert ENGINE.owns_pipeline()
    with trace.get_tracer("app").start_as_current_span("manual") as span:
        span.set_attribute("text", "y" * 20_000_000)
        span.set_attribute("list", ["z" * 10] * 1_000_000)
        for number in range(300):
            span.set_attribute(f"key-{number}", BIG)
            span.add_event(f"event-{number}", {"text": BIG})
        fakelib.Client().chat("x")
    by_name = {span.name: span for span in memory.spans}
    manual = by_name["manual"]
    assert span_bytes(manual) <= MAX_SPAN_BYTES * 1.1
    assert manual.dropped_attributes > 0
    assert manual.attributes[names.TRUNCATED]
    assert by_name["chat m"].attributes[names.OUTPUT_TOKENS] == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(JSON, max_size=8), st.integers(32, 2000))
def test_fitted_content_is_json_within_the_limit(items: list[Any], limit: int) -> None:
    """Whatever it holds."""
    text, shortened = fit_json(items, limit)
    assert len(text) <= limit
    assert isinstance(json.loads(text, parse_constant=pytest.fail), list)
    if not shortened:
        assert len(json.loads(text)) == len(items)


@pytest.mark.parametrize("limit", [64, 500, 10_000, 65_536])
def test_what_fits_is_not_touched(limit: int) -> None:
    """And what does not keeps its beginning, its first and its last items."""
    small = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    if limit >= 100:
        assert fit_json(small, limit) == (json.dumps(small, separators=(",", ":")), False)
    many = [f"message {n} " + "w " * 5000 for n in range(1000)]
    text, shortened = fit_json(many, limit)
    assert shortened
    assert len(text) <= limit
    kept = json.loads(text)
    if limit > 500:
        assert kept[0].startswith("message 0 ")
        assert kept[-1].startswith("message 999 ")
        assert len(text) > limit / 2


def test_blobs_become_type_size_and_hash() -> None:
    """Wherever they are; the text beside them stays."""
    url = "data:image/png;base64," + "A" * 20_000_000
    items = [{"parts": [{"content": "look"}, {"content": url}, {"content": b"\x00" * 5_000_000}]}]
    started = time.thread_time()
    text, shortened = fit_json(items, 65_536)
    assert time.thread_time() - started < 2
    assert shortened
    assert len(text) < 300
    look, image, blob = json.loads(text)[0]["parts"]
    assert look["content"] == "look"
    assert image["content"].startswith("data:image/png;base64,[20000022 characters sha256:")
    assert blob["content"].startswith("[5000000 bytes sha256:")


def test_things_that_are_not_json() -> None:
    """Cycles, objects, NaN: something is said, nothing raised."""
    cycle: list[Any] = ["a"]
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for odd in (cycle, deep, [object()], [float("nan"), float("-inf")], [{1: {2: 3}}], ["\udcff\x00"]):
        text, _ = fit_json(odd, 4096)
        json.loads(text, parse_constant=pytest.fail)


def test_a_cut_leaves_no_half_word() -> None:
    """Half a secret would not be recognised by a redactor."""
    assert cut("call me at 555-123456 please", 20) == "call me at…"
    assert cut("x" * 100, 20) == "x" * 19 + "…"
    assert len(cut("word " * 100, 50)) <= 50
