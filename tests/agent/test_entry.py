"""Where calls begin and end: the compiled way and Python's make the same spans of the same calls."""

from __future__ import annotations

import contextvars
import copy
import gc
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.util._once import Once

import neuronscope as ns
import typedlib
from growth import traced_growth
from neuronscope import compiled
from neuronscope.engine import ENGINE, entry
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import Invocation
from neuronscope.engine.span import NO_STATE, LightSpan
from neuronscope.instrumentation import ClientIntegration, Kind, WrappedMethod
from neuronscope.testing import InMemoryExporter
from typedlib import ADAPTER, Client, Faulty, Http, snapshot

needs_compiler = pytest.mark.skipif(
    compiled.MODULE is None, reason="this package was built without a compiler"
)


# --- what a service does ------------------------------------------------------------------------------------
def plain() -> Any:
    return [Client().request("a") for _ in range(3)]  # the type of an answer is known from the second on


def searches() -> Any:
    return [Client().search("a"), Client().search(text="b")]


def awaited() -> Any:
    def step(coroutine: Any) -> Any:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value

    # Each begins and ends in a context of its own.
    return [contextvars.copy_context().run(step, Client().arequest("a")) for _ in range(3)]


def within_a_span_of_ours() -> Any:
    with ns.Scope("outer"):
        return [Client().request("a") for _ in range(2)]


def within_a_span_of_the_service() -> Any:
    with trace.get_tracer("service").start_as_current_span("work"):
        return [Client().request("a") for _ in range(2)]


def within_each_other() -> Any:
    return [Client().request("a", inner=lambda: Client().request("b")) for _ in range(2)]


def suppressed() -> Any:
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        return Client().request("a")
    finally:
        otel_context.detach(token)


def for_a_tenant() -> Any:
    with ns.tenant("acme"):
        return [Client().request("a") for _ in range(2)]


def with_baggage() -> Any:
    token = otel_context.attach(baggage.set_baggage("key", "value"))
    try:
        return [Client().request("a") for _ in range(2)]
    finally:
        otel_context.detach(token)


def leaving_baggage_behind() -> Any:
    def inner() -> str:
        otel_context.attach(baggage.set_baggage("left", "behind"))
        return "b"

    apart = contextvars.copy_context()
    found = [apart.run(Client().request, "a", inner=inner) for _ in range(2)]
    return found, apart.run(baggage.get_baggage, "left"), apart.run(trace.get_current_span).is_recording()


def remembering_attributes() -> Any:
    def inner() -> str:
        span = trace.get_current_span()
        span.set_attribute("service.own", 1)
        span.update_name("renamed")
        return str(span.is_recording())

    return [Client().request("a", inner=inner) for _ in range(2)]


def not_ours() -> Any:
    return Client().request("nothing")


def over_http() -> Any:
    return [Client().request("a", http=Http({"status": 201})) for _ in range(2)]


def raising() -> Any:
    def inner() -> Any:
        raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        Client().request("a", inner=inner)
    return Client().request("a")


def off_in_mid_flight() -> Any:
    def inner() -> str:
        ns.uninstrument("typed")
        return "b"

    return Client().request("a", inner=inner), Client().request("a")


def with_arguments_missing() -> Any:
    client: Any = Client
    found: list[str] = []
    for arguments in ((), (client(),), (client(), "a", 1)):
        with pytest.raises(TypeError) as raised:
            client.request(*arguments)
        found.append(str(raised.value))
    return found


USES: tuple[Callable[[], Any], ...] = (
    plain,
    searches,
    awaited,
    within_a_span_of_ours,
    within_a_span_of_the_service,
    within_each_other,
    suppressed,
    for_a_tenant,
    with_baggage,
    leaving_baggage_behind,
    remembering_attributes,
    not_ours,
    over_http,
    raising,
    off_in_mid_flight,
)


@pytest.fixture(autouse=True)
def adapter() -> Iterator[None]:
    """The library is known."""
    ns.registry.register_adapter(ADAPTER)
    yield
    ns.uninstrument("typed")
    ns.registry.unregister_adapter("typed")


def told(use: Callable[[], Any], *, quick: bool, **settings: Any) -> tuple[Any, ...]:
    """What the service got, what was recorded, and what is current afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        if not quick:
            patch.setattr(entry, "_COMPILED", None)
            patch.setattr(entry, "_MAKE_NOTE", None)
        memory = InMemoryExporter()
        patch.setattr(trace, "_TRACER_PROVIDER", None)  # private, and no public way back
        patch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
        ns.Platform(exporters=[memory], deferred=False, **settings)
        ns.instrument("typed")
        Client().request("before")  # makes our provider the global one
        memory.clear()
        with ns.testing.fixed():
            result = use()
        current = trace.get_current_span()
        ns.uninstrument("typed")
        spans = [
            (span.name, span.trace_id, span.span_id, span.parent_span_id, dict(span.attributes))
            for span in memory.spans
        ]
        times = [
            (span.start_unix_ns, span.end_unix_ns, span.kind, span.status)
            for span in memory.spans
            if span.library != "service"  # whose clock is its own
        ]
    return result, spans, times, current


@needs_compiler
@pytest.mark.any_names
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_both_ways_tell_the_same(use: Callable[[], Any]) -> None:
    """Results, identities, parents, times and attributes; and nothing is left current."""
    quick, slow = told(use, quick=True), told(use, quick=False)
    assert quick == slow
    assert quick[3] is trace.INVALID_SPAN


@needs_compiler
@pytest.mark.parametrize(
    "settings", [{"tenant_baggage": "t"}, {"capture_content": "span_only"}, {"structure": False}]
)
def test_both_ways_heed_settings(settings: dict[str, Any]) -> None:
    """What asks for more is done in Python, what asks for less in both."""
    assert told(plain, quick=True, **settings) == told(plain, quick=False, **settings)


def test_calls_complain_as_ever() -> None:
    """A wrong call raises the library's own error."""
    expected = with_arguments_missing()
    ns.Platform(exporters=[InMemoryExporter()])
    ns.instrument("typed")
    assert with_arguments_missing() == expected


def no_unwrap(_result: Any) -> Any:
    raise RuntimeError("a bug of ours")


@pytest.mark.any_names
@pytest.mark.parametrize(
    ("use", "spans"),
    [
        (lambda: [Client().request("fault") for _ in range(2)], 0),
        (lambda: [Client().request("a", http=Faulty()) for _ in range(3)], 3),
        (lambda: [Client().search("a") for _ in range(2)], 2),
    ],
    ids=["snapshot", "headers", "unwrap"],
)
def test_faults_of_ours_are_contained(use: Callable[[], Any], spans: int) -> None:
    """They are counted, the span ends all the same, and nothing stays current."""
    GUARD.reraise = False
    expected = use()
    broken = WrappedMethod(
        target=f"{typedlib.__name__}:Client.search", snapshot=snapshot, unwrap=lambda _: 1 / 0
    )
    ns.registry.unregister_adapter("typed")
    ns.registry.register_adapter(
        ClientIntegration(
            name="typed",
            requires="typed",
            kind=Kind.LLM,
            methods=(*ADAPTER.methods[:2], broken),
            responses=ADAPTER.responses,
        )
    )
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("typed")
    assert use() == expected
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert GUARD.faults
    assert len(memory.spans) == spans


def test_a_call_outlives_its_platform() -> None:
    """Made anew in mid-flight: the call ends in the new one, once."""
    first, second = InMemoryExporter(), InMemoryExporter()
    ns.Platform(exporters=[first], deferred=False)
    ns.instrument("typed")

    def inner() -> str:
        ns.Platform(exporters=[second], deferred=False)
        return "b"

    Client().request("a")
    assert Client().request("a", inner=inner) == "b"
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert len(first.spans) + len(second.spans) == 2


def test_a_provider_that_comes_later_gets_its_spans() -> None:
    """The short way is left as soon as the service adds a processor of its own to our provider."""
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("typed")
    kinds: list[str] = []

    def inner() -> str:
        kinds.append(type(trace.get_current_span()).__module__)
        return "b"

    Client().request("a", inner=inner)
    provider: Any = trace.get_tracer_provider()
    provider.add_span_processor(SpanProcessor())
    Client().request("a", inner=inner)
    assert kinds == ["neuronscope.engine.span", "opentelemetry.sdk.trace"]


def test_calls_leave_nothing_behind() -> None:
    """Not one object of a call, however it went, stays: thousands of them would be 300 kB or more."""
    GUARD.reraise = False
    ns.Platform(exporters=[], deferred=False)
    ns.instrument("typed")

    def everything_once() -> None:
        for use in (plain, searches, over_http, not_ours, raising, for_a_tenant, remembering_attributes):
            use()
        Client().request("fault")
        Client().request("a", http=Faulty())

    def everything(times: int) -> None:
        for _ in range(times):
            everything_once()

    everything(200)
    assert traced_growth(lambda: everything(300), 60_000) < 60_000


@needs_compiler
def test_of_a_waiting_call_the_collector_sees_little() -> None:
    """Neither identities nor places in the queue: what waits makes collections longer, and more."""
    ns.Platform(exporters=[InMemoryExporter()])
    ns.instrument("typed")
    plain()
    worker: Any = ENGINE._worker  # pyright: ignore[reportPrivateUsage]
    assert worker.pause(60)
    gc.collect()
    gc.disable()
    try:
        before = Counter(map(type, gc.get_objects()))
        for _ in range(100):
            Client().request("a")
        kinds = Counter(map(type, gc.get_objects())) - before
    finally:
        gc.enable()
        worker.resume()
    assert kinds[Invocation] == kinds[LightSpan] == 100  # they may be part of cycles
    assert kinds[SpanContext] == 0
    assert kinds[tuple] < 50


def test_a_span_is_copied_as_any_object() -> None:
    """With all it holds: what copies a context must not fail on ours."""
    identity = SpanContext(1, 2, False, TraceFlags(1), NO_STATE)
    span: Any = LightSpan("n", identity, None, SpanKind.CLIENT, "library", 5)
    span.set_attribute("a", 1)
    span.other = 3
    for found in (copy.copy(span), copy.deepcopy(span), pickle.loads(pickle.dumps(span))):
        assert (found.name, found.user_attributes, found.other, found.start_time) == ("n", {"a": 1}, 3, 5)
        assert found.get_span_context() == identity


@needs_compiler
def test_usual_calls_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would compare Python with itself; also after a platform was made anew."""
    for _ in range(2):
        ns.Platform(exporters=[InMemoryExporter()])
        ns.instrument("typed")
        plain()
        with monkeypatch.context() as patch:
            for owner, name in ((type(ENGINE), "begin"), (Invocation, "succeed"), (type(ENGINE), "finish")):
                patch.setattr(owner, name, None)
            assert plain() == ["A", "A", "A"]
            assert searches() == [{"hits": "a"}, {"hits": "b"}]
        ns.uninstrument("typed")
