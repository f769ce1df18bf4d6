"""Our registry against the published conventions; every span of the suite is checked in `conftest.py`."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind, StatusCode

import conventions
from neuronscope.signals import names
from neuronscope.signals.names import Metric
from neuronscope.signals.records import AttributeValue, SpanEvent, SpanRecord

DEPRECATED = {
    "gen_ai.system", "gen_ai.prompt", "gen_ai.completion", "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens", "gen_ai.usage.cache_creation.input_tokens",
}  # fmt: skip


@pytest.mark.parametrize("metric", names.METRICS.values(), ids=lambda metric: metric.name)
def test_metrics_are_the_published_ones_or_ours(metric: Metric) -> None:
    """Instrument, unit, buckets and labels of the conventions' metrics; all others are under our own name."""
    published = conventions.METRICS.get(metric.name)
    if published is None:
        assert metric.name.startswith("neuronscope.")
        return
    instrument, unit, buckets, labels = published
    assert (metric.instrument, metric.unit) == (instrument, unit)
    assert metric.buckets == pytest.approx(buckets)
    assert set(metric.labels) <= labels


def test_no_published_metric_is_missing() -> None:
    """All that the conventions ask of a client, a database client and an HTTP server."""
    assert conventions.METRICS.keys() <= names.METRICS.keys()


def test_every_attribute_of_the_registry_is_published_or_ours() -> None:
    """No name of our invention in a namespace of OpenTelemetry's, none that is deprecated."""
    published = {"gen_ai.operation.name", "gen_ai.provider.name", "http.request.resend_count"}
    for table, _, _ in (*conventions.OPERATIONS.values(), (conventions.INFERENCE, None, None)):
        published |= table.keys()
    published |= conventions.HTTP_SERVER.keys() | conventions.DATABASE.keys()
    published |= {"exception.type", "exception.message", "exception.stacktrace"}
    ours = {key for key in names.ATTRIBUTES if not key.startswith("neuronscope.")}
    assert ours <= published
    assert not ours & DEPRECATED


def span(
    kind: SpanKind = SpanKind.CLIENT, status: StatusCode = StatusCode.UNSET, **more: AttributeValue
) -> SpanRecord:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
    }
    attributes |= {key.replace("__", "."): value for key, value in more.items()}
    return SpanRecord(1, 2, "chat", kind, 1, 2, attributes=attributes, status=status)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (span(gen_ai__system="openai"), "gen_ai.system is not in the conventions"),
        (span(gen_ai__usage__input_tokens="7"), "not int"),
        (span(gen_ai__usage__input_tokens=True), "not int"),
        (span(gen_ai__response__finish_reasons="stop"), "not string[]"),
        (span(neuronscope__invented=1), "is not in the registry"),
        (span(server__port=443), "without server.address"),
        (span(SpanKind.PRODUCER), "kind"),
        (span(status=StatusCode.OK), "status OK"),
        (span(status=StatusCode.ERROR), "error.type None"),
        (span(error__type="x"), "status"),
        (SpanRecord(1, 2, "q", SpanKind.CLIENT, 1, 2, attributes={"db.system.name": "x"}), "is missing"),
        (
            SpanRecord(1, 2, "q", SpanKind.CLIENT, 1, 2, {}, events=[SpanEvent("gen_ai.choice", 1, {})]),
            "is not in the conventions",
        ),
    ],
)
def test_the_check_can_fail(wrong: SpanRecord, told: str) -> None:
    """Each kind of breach is found."""
    assert any(told in problem for problem in conventions.problems(wrong)), conventions.problems(wrong)
    assert not conventions.problems(span())
