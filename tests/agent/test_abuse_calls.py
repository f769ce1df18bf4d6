"""Differential: a service notices nothing of us, also when everything of ours fails."""

from __future__ import annotations

import contextvars
import dataclasses
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
import victimlib
from neuronscope.engine import (
    ENGINE,
    bodies,
    calls,
    content,
    finish,
    metrics,
    opening,
    propagation,
    provider,
    seam,
    span,
    worker,
    wrap,
)
from neuronscope.engine import invocation as invocations
from neuronscope.engine import streams as stream_module
from neuronscope.engine.guard import GUARD
from neuronscope.testing import InMemoryExporter
from scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.exhaustive

# Values that raise when they are looked at, which readers do; it is told once, as a fault.
TELL_OF_A_FAULT = {
    "results_are_the_very_objects",
    "evil_arguments_and_results_pass",
    "exceptions_of_all_kinds",
    "streams_of_strange_chunks",
    "awaited_calls",
}

PLATFORMS: dict[str, dict[str, Any]] = {
    "inline": {"deferred": False},
    "deferred": {"export_interval_s": 0.01},
    "content": {"deferred": False, "capture_content": "span_and_event"},
    "their pipeline": {"deferred": False},
}


def outcome(scenario: Scenario) -> Any:
    """What the service notices; nothing of it is left afterwards."""
    found = scenario()
    gc.collect()
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """Every scenario without us."""
    assert not hasattr(victimlib.Client.call, "__neuronscope__")
    return {name: outcome(scenario) for name, scenario in SCENARIOS.items()}


@pytest.fixture
def observe() -> Iterator[Callable[[str], InMemoryExporter]]:
    """Starts a platform of a kind, with the victim instrumented."""
    ns.registry.register_adapter(victimlib.integration())

    def start(kind: str) -> InMemoryExporter:
        if kind == "their pipeline":
            theirs = TracerProvider()
            theirs.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
            trace.set_tracer_provider(theirs)
        memory = InMemoryExporter()
        ns.Platform(exporters=[memory], **PLATFORMS[kind])
        ns.instrument("victim")
        return memory

    yield start
    ns.registry.unregister_adapter("victim")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", PLATFORMS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_service_notices_nothing(
    expected: dict[str, Any],
    observe: Callable[[str], InMemoryExporter],
    caplog: pytest.LogCaptureFixture,
    name: str,
    kind: str,
) -> None:
    """Same values, exceptions and side effects, nothing in the log, no span left open or current."""
    GUARD.reraise = False  # evil values may be faults of ours; what counts is that nobody notices
    memory = observe(kind)
    with caplog.at_level(logging.WARNING):
        found = outcome(SCENARIOS[name])
    assert found == expected[name]
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert ENGINE.flush(60)
    assert memory.spans or name == "functions_look_the_same"
    assert not [record for record in caplog.records if record.name != "neuronscope"]
    assert not caplog.records or name in TELL_OF_A_FAULT
    budget: Any = ENGINE.budget
    assert budget._work.active == 0  # no span left open


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a fault of ours")


# Everything of ours that runs in the service's thread, or is called by what does.
OURS: list[tuple[Any, str]] = [
    (type(ENGINE), "begin"),
    (type(ENGINE), "open_span"),
    (calls, "covered"),
    (calls, "current_with"),
    (calls, "receives_context"),
    (opening.Opener, "open_call"),
    (opening.Opener, "open"),
    (opening.Opener, "_open_sampled"),
    (opening, "identity"),
    (wrap.Installation, "covers"),
    (seam.Seam, "arguments"),
    (type(ENGINE), "finish"),
    (type(ENGINE), "_finish_item"),
    (invocations.Invocation, "start_facts"),
    (invocations.Invocation, "end"),
    (invocations.Invocation, "succeed"),
    (invocations.Invocation, "fail"),
    (invocations.Invocation, "_observe_stream"),
    (invocations.Invocation, "_end_stream"),
    (invocations, "error_facts"),
    (invocations, "close_with"),
    (stream_module.StreamState, "__init__"),
    (stream_module.StreamState, "take"),
    (stream_module.StreamState, "close"),
    (stream_module.StreamState, "fail"),
    (stream_module.StreamState, "fold"),
    (stream_module.ObservedIterator, "__init__"),
    (stream_module.ObservedAsyncIterator, "__init__"),
    (span.LightSpan, "__init__"),
    (provider.Pipeline, "foreign"),
    (worker.Worker, "put"),
    (worker.Worker, "_process"),
    (worker.Worker, "_take"),
    (worker.Worker, "_export"),
    (content.ContentPolicy, "apply"),
    (finish, "add_call"),
    (metrics.Aggregator, "observe"),
    (metrics.Aggregator, "add"),
    (InMemoryExporter, "export"),
    (victimlib, "snapshot"),
    (victimlib, "_read_request"),
    (victimlib, "_read_response"),
    (victimlib, "_fold"),
    (victimlib, "_is_content"),
    (victimlib, "STREAM"),
    (bodies, "notice_close"),
    (propagation, "suppressed"),
]
# Without the one that takes long.
QUICK = [name for name in SCENARIOS if name != "texts_of_all_kinds"]


@pytest.mark.any_names  # a span that lost its facts is incomplete
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("owner", "name"), OURS, ids=lambda value: getattr(value, "__name__", value))
def test_a_service_notices_nothing_when_we_fail(
    expected: dict[str, Any],
    observe: Callable[[str], InMemoryExporter],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
) -> None:
    """Each function of ours made to raise, one at a time."""
    GUARD.reraise = False
    broken: Any = failing
    if name == "STREAM":
        broken = fakelib_stream()
    monkeypatch.setattr(owner, name, broken)
    if owner is victimlib and name.startswith("_"):
        replace_reader(monkeypatch, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neuronscope.engine.guard.MAX_FAULTS", 5)  # sites are switched off on the way
        observe("inline")
        apart = contextvars.copy_context()
        found = {scenario: apart.run(SCENARIOS[scenario]) for scenario in QUICK}
        gc.collect()
    assert found == {scenario: expected[scenario] for scenario in QUICK}
    assert apart.run(trace.get_current_span) is trace.INVALID_SPAN


def fakelib_stream() -> Any:
    """A table whose functions about streams raise."""
    from neuronscope.instrumentation import Stream

    return Stream(is_stream=failing, get_iterator=failing, set_iterator=failing)


def replace_reader(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The table holds the readers themselves: have it hold the broken one."""
    fields = {"_read_request": "read_request", "_read_response": "read_response", "_fold": "fold_chunk"}
    field = fields.get(name, "is_content")
    broken: Any = dataclasses.replace(victimlib.ENDPOINT, **cast("Any", {field: failing}))
    monkeypatch.setattr(victimlib, "ENDPOINT", broken)
