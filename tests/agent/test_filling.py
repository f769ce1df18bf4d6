"""Attributes on the service's own spans: as the SDK's `set_attributes` puts them there, sooner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import Span, SpanLimits, TracerProvider

from neuronscope.engine import filling
from neuronscope.engine.content import ContentPolicy
from neuronscope.settings import Settings

POLICY = ContentPolicy(Settings())
_scalars = st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False), st.booleans())
_values = st.one_of(_scalars, st.lists(_scalars, max_size=3), st.none(), st.builds(object))
_attributes = st.dictionaries(st.text(max_size=4), _values, max_size=8)


def told(span: Any) -> dict[str, Any]:
    return {key: (type(value), value) for key, value in span.attributes.items()}


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(_attributes, _attributes)
def test_equals_set_attributes(before: dict[str, Any], given_: dict[str, Any]) -> None:
    """Whatever the content policy lets through, on top of what is there."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    attributes = POLICY.apply(given_)
    one, other = (tracer.start_span("s", attributes=POLICY.apply(before)) for _ in range(2))
    filling.set_attributes(one, attributes)
    other.set_attributes(attributes)
    assert told(one) == told(other)


@pytest.mark.parametrize(
    "limits",
    [SpanLimits(max_span_attributes=3), SpanLimits(max_span_attribute_length=2)],
    ids=["few", "short"],
)
def test_the_service_s_limits_hold(limits: SpanLimits) -> None:
    """Too many attributes, or too long ones: the SDK decides."""
    tracer = TracerProvider(span_limits=limits, shutdown_on_exit=False).get_tracer("t")
    one, other = (tracer.start_span("s", attributes={"first": 1}) for _ in range(2))
    attributes = {f"k{number}": "long" for number in range(5)}
    filling.set_attributes(one, attributes)
    other.set_attributes(attributes)
    assert told(one) == told(other)
    assert one.dropped_attributes == other.dropped_attributes  # type: ignore[attr-defined]


def test_a_span_of_another_class_is_asked_as_ever() -> None:
    """It may do something of its own with each attribute."""
    seen: dict[str, Any] = {}

    class Own:
        _attributes = None

        def set_attributes(self, attributes: dict[str, Any]) -> None:
            seen.update(attributes)

    filling.set_attributes(Own(), {"a": 1})
    assert seen == {"a": 1}


def test_an_ended_span_stays_as_it_is() -> None:
    """As it does with the SDK, which logs it."""
    span = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s")
    assert isinstance(span, Span)
    span.end()
    filling.set_attributes(span, {"a": 1})
    assert not span.attributes
