"""Attributes on the service's own spans: as the SDK's `set_attributes` puts them there, sooner."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import Span, SpanLimits, TracerProvider

from neuronscope import compiled
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


class Text(str):
    """A string that is no plain one."""


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(
    told_=st.dictionaries(st.sampled_from("abcd"), _values, max_size=4),
    more=st.dictionaries(st.sampled_from(["a", "b", "e", "", Text("t")]), _values, max_size=4),
    users=st.dictionaries(st.sampled_from("ae"), _scalars, max_size=2),
    room=st.sampled_from([None, 2, 4, 128]),
    dropped=st.booleans(),
)
def test_compiled_and_python_do_the_same(
    told_: dict[str, Any], more: dict[str, Any], users: dict[str, Any], room: int | None, dropped: bool
) -> None:
    """Whatever the span was told before, has been told since by the service, and has room for."""
    limits = SpanLimits(max_span_attributes=room)
    tracer = TracerProvider(span_limits=limits, shutdown_on_exit=False).get_tracer("t")
    spans: list[Any] = []
    for fill in (filling.set_attributes, filling.set_attributes_in_python):
        span: Any = tracer.start_span("s")
        if not dropped:
            fill(span, told_)
        span.set_attributes(users)
        fill(span, {**told_, **more}, told_)
        spans.append(span)
    assert told(spans[0]) == told(spans[1])
    assert list(spans[0].attributes) == list(spans[1].attributes)
    assert spans[0].dropped_attributes == spans[1].dropped_attributes


@pytest.mark.parametrize("lock", ["span", "attributes"])
def test_who_holds_a_lock_of_the_span_is_waited_for(lock: str) -> None:
    """Another thread that sets attributes meanwhile is not interrupted."""
    span: Any = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s")
    held = span._lock if lock == "span" else span._attributes._lock
    thread = threading.Thread(target=filling.set_attributes, args=(span, {"a": 1}))
    with held:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert not span._attributes._dict
    thread.join(60)
    assert told(span) == {"a": (int, 1)}


@pytest.mark.skipif(compiled.MODULE is None, reason="nothing is compiled here")
def test_usual_spans_do_without_the_twin() -> None:
    """Else the two would agree for want of a difference."""
    made: Any = compiled.find("make_set_attributes")
    known = filling.KNOWN
    fill = made((None, *known))
    span: Any = TracerProvider(shutdown_on_exit=False).get_tracer("t").start_span("s")
    fill(span, {"a": 1, "b": "x", "c": ["y", "z"], "d": True, "e": 1.5})
    fill(span, {"a": 2, "b": "x"}, {"a": 1, "b": "x"})
    assert told(span) == {
        "a": (int, 2), "b": (str, "x"), "c": (tuple, ("y", "z")), "d": (bool, True), "e": (float, 1.5),
    }  # fmt: skip
    with pytest.raises(TypeError):
        fill(span, {"a": b"for the SDK to look at"})
