"""Labels that can be anything: the most frequent values have series of their own, the rest is `other`."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.benchmarks.operations.child import MODELS, TENANTS, flood, own_models
from tests.benchmarks.operations.child import Clock as Flood

import fakelib
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.cardinality import IDLE_S, OTHER, Cardinality, Sketch
from neuronscope.engine.metrics import MAX_LABEL, MAX_SERIES, REVIEW_S, Aggregator, labels_of
from neuronscope.engine.span_metrics import SpanMetrics
from neuronscope.exceptions import ConfigError
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue
from neuronscope.testing import InMemoryExporter
from neuronscope_exporters.prometheus.page import MetricsPage

PLACES = 3


class Clock:
    """Stands until it is told."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


class Routes:
    """Requests to routes, of which three have series of their own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = Aggregator(self.clock, Cardinality(PLACES))

    def call(self, route: str, times: int = 1) -> None:
        for _ in range(times):
            self.metrics.observe(names.HTTP_DURATION, 0.1, ((names.HTTP_ROUTE, route),))

    def growing(self) -> set[str]:
        """Routes whose series grow by one when they are called once more."""
        before = self.counts()
        for route in before:
            self.call(route)
        return {route for route, n in self.counts().items() if n == before[route] + 1}

    def counts(self) -> dict[str, int]:
        """Requests by route, as an exporter reads them."""
        found: dict[str, int] = {}
        for family in self.metrics.collect().families:
            if family.metric is names.HTTP_DURATION:
                for point in family.points:
                    assert isinstance(point.value, HistogramValue)
                    (route,) = (value for _, value in point.labels)
                    assert route not in found
                    found[route] = point.value.count
        return found


def test_the_first_values_have_series_and_the_rest_is_other() -> None:
    """Nothing is lost, and what was folded is told."""
    routes = Routes()
    for number in range(10):
        routes.call(f"/{number}", 2)
    assert routes.counts() == {"/0": 2, "/1": 2, "/2": 2, OTHER: 14}
    assert routes.metrics.total(names.SERIES_FOLDED) == 14
    sizes = {
        dict(point.labels)["metric"]: point.value
        for family in routes.metrics.collect().families
        if family.metric is names.SERIES
        for point in family.points
    }
    assert sizes[names.HTTP_DURATION.name] == PLACES + 1


def test_a_value_seen_more_often_takes_the_place_of_the_rarest() -> None:
    """What lost its place stays as it was, is counted under `other`, and is left out when idle."""
    routes = Routes()
    routes.call("/a", 30)
    routes.call("/junk")
    routes.call("/b", 30)
    routes.call("/late", 25)
    routes.clock.wait(REVIEW_S)
    assert routes.counts() == {"/a": 30, "/junk": 1, "/b": 30, OTHER: 25}
    routes.call("/late", 5)
    routes.call("/junk", 4)
    expected = {"/a": 30, "/junk": 1, "/b": 30, "/late": 5, OTHER: 29}
    assert routes.counts() == expected
    assert routes.metrics.total(names.HTTP_DURATION) == 95
    routes.clock.wait(IDLE_S)
    assert routes.counts() == {key: n for key, n in expected.items() if key != "/junk"}
    assert routes.metrics.total(names.SERIES_DROPPED) == 1


def test_a_value_that_comes_back_goes_on_where_it_was() -> None:
    """Its series grow again, and never start anew while they are still told."""
    routes = Routes()
    for route in ("/a", "/b", "/c"):
        routes.call(route, 5)
    routes.call("/d", 40)
    routes.clock.wait(REVIEW_S)
    (lost,) = {"/a", "/b", "/c"} - set(routes.growing())
    routes.call(lost, 200)
    routes.clock.wait(REVIEW_S)
    assert routes.counts()[lost] == 5
    routes.call(lost, 3)
    assert routes.counts()[lost] == 8


def test_a_counter_that_was_looked_up_before_it_was_retired_loses_nothing() -> None:
    """Whoever holds it counts once more: neither that nor what was counted before is lost."""
    clock = Clock()
    metrics = Aggregator(clock, Cardinality(1))
    (first, second) = (((names.TENANT, name),) for name in ("a", "b"))
    metrics.add(names.TENANT_CALLS, 5, first)
    counter, own = metrics.counter(names.TENANT_CALLS, first)
    assert own
    for _ in range(30):
        metrics.add(names.TENANT_CALLS, 1, second)
    clock.wait(REVIEW_S)
    metrics.collect()
    metrics.add(names.TENANT_CALLS, 1, second)
    counts, labels = counter
    counts[labels] = counts.get(labels, 0) + 1

    def told() -> dict[str, Any]:
        return {
            point.labels[0][1]: point.value
            for family in metrics.collect().families
            if family.metric is names.TENANT_CALLS
            for point in family.points
        }

    expected = {"a": 6, "b": 1, OTHER: 30}
    assert told() == expected
    for _ in range(40):
        metrics.add(names.TENANT_CALLS, 1, ((names.TENANT, "c"),))
    clock.wait(REVIEW_S)
    assert told() == {**expected, OTHER: 70}


def test_a_flood_of_values_seen_once_costs_no_place() -> None:
    """Junk passes by; and a real value that comes only after it still gets one."""
    routes, source = Routes(), random.Random(5)
    for number in range(20):
        routes.call(f"/junk/{number}")
    for _ in range(60):
        for number in range(50):
            routes.call(f"/scan/{source.random()}-{number}")
        for route in ("/a", "/b", "/c"):
            routes.call(route, 10)
        routes.clock.wait(REVIEW_S / 2)
        routes.metrics.collect()
    counts = routes.counts()
    assert {"/a", "/b", "/c"} <= set(counts)
    assert sum(counts.values()) == 20 + 60 * 80
    assert len(counts) <= 2 * PLACES + 1


def test_series_never_shrink_whatever_comes() -> None:
    """Between any two scrapes each series that is in both has grown or stayed."""
    routes, source, before = Routes(), random.Random(7), dict[str, int]()
    for step in range(400):
        favourite = step // 60
        for _ in range(20):
            routes.call(f"/{favourite if source.random() < 0.6 else source.randrange(200)}")
        routes.clock.wait(source.choice((0.5, 3.0, 11.0)))
        now = routes.counts()
        assert all(now[route] >= n for route, n in before.items() if route in now)
        assert len(now) <= 2 * PLACES + 1
        before = now


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(st.lists(st.integers(0, 30), max_size=400))
def test_the_sketch_knows_what_is_frequent(seen: list[int]) -> None:
    """Metwally and others' theorem: the sure count is never too high, and no frequent value is missing."""
    sketch = Sketch(5)
    for value in seen:
        sketch.add(str(value))
    true = Counter(map(str, seen))
    sure = {value: count for count, value in sketch.surest()}
    assert len(sketch) <= 5
    assert all(count <= true[value] for value, count in sure.items())
    assert {value for value, n in true.items() if n > len(seen) / 5} <= set(sure)


def test_a_metric_is_bounded_though_labels_multiply() -> None:
    """Series that grow are limited by metric, too; further gauges are left out, and counted."""
    metrics = Aggregator(Clock(), Cardinality(10_000))
    for number in range(MAX_SERIES + 50):
        metrics.add(names.TENANT_CALLS, 1, ((names.TENANT, str(number)),))
        metrics.set(names.DRIFT_ACTIVE, 1, (("kind", str(number)),))
    families = {family.metric: family.points for family in metrics.collect().families}
    assert len(families[names.TENANT_CALLS]) == MAX_SERIES + 1
    assert len(families[names.DRIFT_ACTIVE]) == MAX_SERIES
    assert metrics.total(names.TENANT_CALLS) == MAX_SERIES + 50
    assert metrics.total(names.SERIES_FOLDED) == 100


@pytest.mark.timeout(300)
def test_a_hundred_thousand_tenants_and_fifty_thousand_junk_models_fit_on_a_page() -> None:
    """At most 1 MB, made in at most 100 ms of CPU; the models in use and the largest tenants are on it."""
    clock = Flood()
    aggregator = Aggregator(clock)
    calls = flood(SpanMetrics(aggregator), clock)
    assert aggregator.total(names.TENANT_CALLS) >= TENANTS
    assert aggregator.total(names.OPERATION_DURATION) == calls
    page = MetricsPage(aggregator.collect, {"service.name": "shop"})
    for openmetrics in (False, True):
        spent, text = list[int](), b""
        for _ in range(5):
            started = time.thread_time_ns()
            text = page.text(openmetrics=openmetrics)
            spent.append(time.thread_time_ns() - started)
        assert len(text) <= 1_000_000
        assert min(spent) <= 100_000_000
        lines = text.decode().splitlines()
        assert own_models(lines) == len(MODELS)
        assert any('neuronscope_tenant="tenant-1"' in line for line in lines)


def test_a_long_value_is_cut() -> None:
    """It stands on every line of a page."""
    ((_, value),) = labels_of(names.TENANT_CALLS, {names.TENANT: "x" * 5000})
    assert value == "x" * MAX_LABEL


def test_limits_by_label_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all, and one for each."""
    monkeypatch.setenv("NEURONSCOPE_LABEL_VALUES", "7")
    monkeypatch.setenv("NEURONSCOPE_LABEL_VALUES_OF", "http.route=200, neuronscope.tenant=2")
    settings = ns.Settings.load()
    assert (settings.label_values, dict(settings.label_values_of)) == (
        7,
        {"http.route": 200, "neuronscope.tenant": 2},
    )
    monkeypatch.setenv("NEURONSCOPE_LABEL_VALUES_OF", "http.route=0")
    with pytest.raises(ConfigError, match="NEURONSCOPE_LABEL_VALUES_OF"):
        ns.Settings.load()


@pytest.fixture
def registered() -> Iterator[None]:
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    yield
    ns.registry.unregister_adapter("fake")


@pytest.fixture
def memory(registered: None) -> Iterator[InMemoryExporter]:
    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter]):
        yield exporter


def called(memory: InMemoryExporter) -> list[Any]:
    ns.flush()
    return [span.attributes.get(names.TENANT) for span in memory.spans]


def observed() -> fakelib.Client:
    ns.instrument("fake")
    return fakelib.Client()


def test_calls_are_counted_by_tenant(memory: InMemoryExporter) -> None:
    """On their spans, and as counters of calls and tokens; without a tenant there is none."""
    client = observed()

    @ns.tenant("shop")
    def of_the_shop() -> None:
        client.chat("a b c")

    with ns.tenant("acme"), ns.Scope("request"):
        client.chat("a b")
        with ns.tenant("inner"):
            client.chat("a")
    of_the_shop()
    client.chat("a")
    assert called(memory) == ["acme", "inner", "acme", "shop", None]
    calls = {
        dict(point.labels)[names.TENANT]: point.value
        for family in ENGINE.metrics.collect().families
        if family.metric is names.TENANT_CALLS
        for point in family.points
    }
    assert calls == {"acme": 1, "inner": 1, "shop": 1}
    assert ENGINE.metrics.total(names.TENANT_TOKENS) > 0


@pytest.mark.usefixtures("registered")
def test_the_tenant_may_come_with_the_baggage() -> None:
    """What a gateway has put there; what the service says itself counts more."""
    memory = InMemoryExporter()
    with ns.Platform(exporters=[memory], tenant_baggage="customer"):
        client = observed()
        token = context.attach(baggage.set_baggage("customer", "from-gateway"))
        try:
            client.chat("a")
            with ns.tenant("said"):
                client.chat("a")
        finally:
            context.detach(token)
        client.chat("a")
        assert called(memory) == ["from-gateway", "said", None]


@pytest.mark.usefixtures("registered")
def test_the_tenant_is_on_spans_of_the_services_own_pipeline() -> None:
    """Also where its own attributes are on them."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with ns.Platform(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
        with ns.tenant("acme"):
            observed().chat("a")
    (span,) = kept.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes[names.TENANT] == "acme"
