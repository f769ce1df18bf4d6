"""Whose pipeline a span belongs to."""

from __future__ import annotations

import pytest
from opentelemetry import trace

import fakelib
import neuronscope as ns
from neuronscope.testing import InMemoryExporter


@pytest.fixture(autouse=True)
def fake_library() -> object:
    """The fake client library is known."""
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    yield
    ns.registry.unregister_adapter("fake")


def test_a_second_platform_does_not_take_the_first_ones_provider_for_the_services() -> None:
    """OpenTelemetry's global provider stays the first platform's; spans of the second are its own."""
    for _ in range(2):
        exporter = InMemoryExporter()
        with ns.Platform(exporters=[exporter], deferred=False):
            ns.instrument("fake")
            fakelib.Client().chat("first")
            with trace.get_tracer("app").start_as_current_span("by hand"):
                fakelib.Client().chat("a")
        first, call, by_hand = exporter.spans
        assert [span.foreign for span in (first, call, by_hand)] == [False] * 3
        assert call.parent_span_id == by_hand.span_id
