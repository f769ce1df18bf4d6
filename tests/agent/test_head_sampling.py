"""The head sampler's decision: known without asking where it is always the same, and the same as if asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import sampling
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.util._once import Once

import neuronscope as ns
from neuronscope import compiled
from neuronscope.engine import ENGINE, entry
from neuronscope.engine.invocation import Invocation
from neuronscope.engine.provider import ASKED, Sampling, sampling_of
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from typedlib import ADAPTER, Client

ON, OFF = TraceFlags(1), TraceFlags(0)
SAMPLERS = (
    "always_on",
    "always_off",
    "parentbased_always_on",
    "parentbased_always_off",
    "traceidratio",
    "parentbased_traceidratio",
)
PARENTS = {
    f"{'remote' if remote else 'local'} {'sampled' if flags else 'unsampled'}": SpanContext(
        0xABC, 0xDEF, remote, flags, trace.TraceState([("vendor", "x")])
    )
    for remote in (False, True)
    for flags in (ON, OFF)
}


@pytest.fixture(autouse=True)
def adapter() -> Iterator[None]:
    """The library is known."""
    ns.registry.register_adapter(ADAPTER)
    yield
    ns.uninstrument("typed")
    ns.registry.unregister_adapter("typed")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> InMemoryExporter:
    """A platform whose sampler is the one named by the parameter, of which half are sampled."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", request.param)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)  # private, and no public way back
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("typed")
    Client().request("before")  # makes our provider the global one
    memory.clear()
    return memory


@pytest.mark.parametrize("quick", [True, False], ids=["compiled", "python"])
@pytest.mark.parametrize("memory", SAMPLERS, indirect=True)
def test_a_call_is_sampled_as_its_sampler_says(
    memory: InMemoryExporter, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    """With and without a parent, of ours and not, from here and from elsewhere."""
    if not quick:
        ns.uninstrument("typed")
        monkeypatch.setattr(entry, "_COMPILED", None)
        ns.instrument("typed")
    sampler: Any = ENGINE._pipeline.own.sampler  # pyright: ignore[reportPrivateUsage]
    asked: list[int] = []

    def expect(context: Any, trace_id: int) -> None:
        decision = sampler.should_sample(context, trace_id, "request", None, {}, None).decision
        asked.append(int(decision is sampling.Decision.RECORD_AND_SAMPLE))

    for _ in range(8):
        Client().request("a")
        expect(otel_context.Context(), memory.spans[-1].trace_id)
    for parent in PARENTS.values():
        context = trace.set_span_in_context(NonRecordingSpan(parent), otel_context.Context())
        token = otel_context.attach(context)
        Client().request("a")
        otel_context.detach(token)
        record = memory.spans[-1]
        assert (record.trace_id, record.parent_span_id) == (0xABC, 0xDEF)
        assert record.trace_state == "vendor=x"
        expect(context, 0xABC)
    assert [span.trace_flags for span in memory.spans] == asked
    memory.clear()
    with ns.Scope("outer"):
        Client().request("a", inner=lambda: str(trace.get_current_span().is_recording()))
    inner, outer = memory.spans
    around = SpanContext(outer.trace_id, outer.span_id, False, TraceFlags(outer.trace_flags))
    asked.clear()
    expect(trace.set_span_in_context(NonRecordingSpan(around), otel_context.Context()), outer.trace_id)
    assert [inner.trace_flags] == asked


@pytest.mark.parametrize("memory", ["always_off"], indirect=True)
def test_what_is_not_sampled_is_measured_all_the_same(memory: InMemoryExporter) -> None:
    """Decision 0006: counted, timed, its tokens added up, its attributes on record for a `.nsz`."""
    for _ in range(5):
        Client().request("a")
    assert ENGINE.metrics.total(names.OPERATION_DURATION) == 6  # and the first one
    assert [span.attributes[names.REQUEST_MODEL] for span in memory.spans] == ["a"] * 5
    assert {span.trace_flags for span in memory.spans} == {0}


@pytest.mark.skipif(compiled.MODULE is None, reason="nothing is compiled here")
@pytest.mark.parametrize("memory", SAMPLERS[:4], indirect=True)
def test_samplers_that_always_say_the_same_are_not_asked(
    memory: InMemoryExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way is taken, sampled or not."""
    Client().request("a")
    for owner, name in ((type(ENGINE), "begin"), (Invocation, "succeed"), (type(ENGINE), "finish")):
        monkeypatch.setattr(owner, name, None)
    assert Client().request("a") == "A"
    monkeypatch.undo()
    assert len(memory.spans) == 2


class Own(sampling.ParentBased):
    """A sampler of the service's."""


RECORDS: Any = sampling.StaticSampler(sampling.Decision.RECORD_ONLY)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (sampling.ALWAYS_ON, Sampling(ON, follows=False)),
        (sampling.ALWAYS_OFF, Sampling(OFF, follows=False)),
        (sampling.DEFAULT_ON, Sampling(ON, follows=True)),
        (sampling.DEFAULT_OFF, Sampling(OFF, follows=True)),
        (sampling.ParentBasedTraceIdRatio(0.5), Sampling(None, follows=True)),
        (sampling.ParentBased(RECORDS), Sampling(None, follows=True)),
        (sampling.ParentBased(sampling.ALWAYS_ON, remote_parent_not_sampled=RECORDS), ASKED),
        (sampling.TraceIdRatioBased(0.5), ASKED),
        (RECORDS, ASKED),
        (Own(sampling.ALWAYS_ON), ASKED),
    ],
    ids=[
        "on",
        "off",
        "default_on",
        "default_off",
        "ratio",
        "records",
        "mixed",
        "bare_ratio",
        "bare_records",
        "own",
    ],
)
def test_what_is_known_of_a_sampler(sampler: Any, expected: Sampling) -> None:
    """Of any but the SDK's own that decide alike each time: nothing."""
    assert sampling_of(sampler) == expected
