"""OTLP encoding: our bytes, parsed by protobuf, against OpenTelemetry's own encoder on the same data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry._logs import LogRecord as SdkLogRecord
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from neuronscope._version import __version__
from neuronscope.signals import names
from neuronscope.signals.records import (
    Exemplar,
    HistogramValue,
    LogRecord,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
    SpanEvent,
    SpanLink,
    SpanRecord,
)
from neuronscope_exporters.otlp.encode_logs import LogEncoder
from neuronscope_exporters.otlp.encode_metrics import MetricEncoder
from neuronscope_exporters.otlp.encode_spans import SpanEncoder
from neuronscope_exporters.otlp.requests import SLICE, Payload

RESOURCE: dict[str, Any] = {"service.name": "svc", "process.pid": 7}


class Losses(list[tuple[str, int]]):
    """What an encoder reported as lost."""

    def __call__(self, reason: str, count: int) -> None:
        self.append((reason, count))


@pytest.fixture
def lost() -> Losses:
    return Losses()


class PythonEncoder(SpanEncoder):
    """The twin of the compiled encoder, whatever is compiled here."""

    body = SpanEncoder.body_in_python

    def run(self, records: list[SpanRecord], start: int, stop: int, room: int) -> tuple[bytes, int, int]:
        return b"", 0, 0


@pytest.fixture(params=[SpanEncoder, PythonEncoder], ids=["compiled", "python"])
def encoder(lost: Losses, request: pytest.FixtureRequest) -> SpanEncoder:
    made: SpanEncoder = request.param(lost)
    return made


def record(**changes: Any) -> SpanRecord:
    span = SpanRecord(
        trace_id=0x1234, span_id=0x56, name="chat", kind=SpanKind.CLIENT, start_unix_ns=10, end_unix_ns=30,
        attributes={},
    )  # fmt: skip
    return replace(span, **changes)


def parse(payload: Payload) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(payload.body)


def spans_of(payloads: Iterator[Payload]) -> list[Span]:
    return [
        span
        for payload in payloads
        for resource in parse(payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def one(encoder: SpanEncoder, **changes: Any) -> Span:
    (span,) = spans_of(encoder.encode(RESOURCE, [record(**changes)]))
    return span


def attributes_of(span: Span) -> dict[str, KeyValue]:
    return {pair.key: pair for pair in span.attributes}


# --- the property: equal to OpenTelemetry's encoder --------------------------------------------------


class TheirSpan(ReadableSpan):
    """The SDK's span, with the drop counts that it would otherwise count itself."""

    drops: tuple[int, int, int] = (0, 0, 0)

    @property
    def dropped_attributes(self) -> int:
        return self.drops[0]

    @property
    def dropped_events(self) -> int:
        return self.drops[1]

    @property
    def dropped_links(self) -> int:
        return self.drops[2]


class TheirEvent(Event):
    drops: int = 0

    @property
    def dropped_attributes(self) -> int:
        return self.drops


class TheirLink(Link):
    drops: int = 0

    @property
    def dropped_attributes(self) -> int:
        return self.drops


def theirs(span: SpanRecord, resource: Resource) -> TheirSpan:
    """The same span as the SDK holds it."""
    flags = TraceFlags(span.trace_flags)
    state = TraceState.from_header([span.trace_state])
    events: list[TheirEvent] = []
    for event in span.events:
        events.append(TheirEvent(event.name, dict(event.attributes), event.time_unix_ns))
        events[-1].drops = event.dropped_attributes
    links: list[TheirLink] = []
    for link in span.links:
        context = SpanContext(link.trace_id, link.span_id, False, TraceFlags(link.trace_flags))
        links.append(TheirLink(context, dict(link.attributes)))
        links[-1].drops = link.dropped_attributes
    ours = span.library.startswith("neuronscope")
    parent = None
    if span.parent_span_id is not None:
        parent = SpanContext(span.trace_id, span.parent_span_id, span.parent_is_remote, flags)
    result = TheirSpan(
        name=span.name,
        context=SpanContext(span.trace_id, span.span_id, False, flags, state),
        parent=parent,
        resource=resource,
        attributes=dict(span.attributes),
        events=events,
        links=links,
        kind=span.kind,
        status=Status(span.status, span.status_message if span.status is StatusCode.ERROR else None),
        start_time=span.start_unix_ns,
        end_time=span.end_unix_ns,
        instrumentation_scope=InstrumentationScope(
            span.library, span.library_version or (__version__ if ours else "")
        ),
    )
    result.drops = (span.dropped_attributes, span.dropped_events, span.dropped_links)
    return result


def expected(spans: Sequence[SpanRecord], resource: dict[str, Any]) -> ExportTraceServiceRequest:
    sdk_resource = Resource(resource)
    request = encode_spans([theirs(span, sdk_resource) for span in spans])
    states = {span.span_id: [link.trace_state for link in span.links] for span in spans}
    for scope in request.resource_spans[0].scope_spans:
        for span in scope.spans:
            # The SDK's encoder leaves links' trace state out, for which OTLP has a field.
            for link, state in zip(span.links, states[int.from_bytes(span.span_id, "big")], strict=True):
                link.trace_state = state
    return request


_scalars = st.one_of(
    st.text(max_size=200),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.sampled_from(["stop", "chat", True, False, 1, 0, 1.0, 0.0, -0.0]),  # equal, and yet not alike
)
_values = st.one_of(
    _scalars,
    st.none(),
    st.binary(max_size=20),
    st.lists(st.one_of(_scalars, st.none()), max_size=12),
    st.lists(st.one_of(_scalars, st.none()), max_size=12).map(tuple),
    st.dictionaries(st.text(max_size=5), _scalars, max_size=3),
)
_attributes = st.dictionaries(st.one_of(st.text(max_size=12), st.sampled_from("abc")), _values, max_size=16)
_uint64 = st.integers(0, (1 << 64) - 1)
_uint32 = st.integers(0, (1 << 32) - 1)
_trace_ids = st.integers(0, (1 << 128) - 1)
_states = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True),
    st.from_regex(r"[!-+\--<>-~]{1,8}", fullmatch=True),
    max_size=3,
).map(lambda members: ",".join(f"{key}={value}" for key, value in members.items()))
_spans = st.builds(
    SpanRecord,
    trace_id=_trace_ids,
    span_id=_uint64,
    name=st.text(max_size=300),
    kind=st.sampled_from(list(SpanKind)),
    start_unix_ns=_uint64,
    end_unix_ns=_uint64,
    attributes=_attributes,
    parent_span_id=st.one_of(st.none(), _uint64),
    parent_is_remote=st.booleans(),
    events=st.lists(st.builds(SpanEvent, st.text(), _uint64, _attributes, _uint32), max_size=3),
    links=st.lists(
        st.builds(SpanLink, _trace_ids, _uint64, _attributes, _states, st.sampled_from([0, 1]), _uint32),
        max_size=3,
    ),
    status=st.sampled_from(list(StatusCode)),
    status_message=st.one_of(st.none(), st.text()),
    trace_state=_states,
    library=st.sampled_from(["neuronscope", "neuronscope.openai", "other"]),
    library_version=st.sampled_from(["", "2.1"]),
    dropped_attributes=_uint32,
    dropped_events=_uint32,
    dropped_links=_uint32,
)


def _without_remote_orphans(span: SpanRecord) -> SpanRecord:
    """Without a parent there is none to be remote."""
    return span if span.parent_span_id is not None else replace(span, parent_is_remote=False)


_shared_encoder = SpanEncoder(lambda _reason, _count: pytest.fail("a span was lost"), pause=lambda: None)
_python_encoder = PythonEncoder(lambda _reason, _count: pytest.fail("a span was lost"), pause=lambda: None)


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(
    spans=st.lists(
        _spans.map(_without_remote_orphans), min_size=1, max_size=5, unique_by=lambda span: span.span_id
    ),
    resource=st.dictionaries(st.text(min_size=1, max_size=10), _scalars, max_size=4),
)
def test_equals_the_sdks_encoder_on_every_span_shape(
    spans: list[SpanRecord], resource: dict[str, Any]
) -> None:
    """One encoder for all examples, so that what its caches hold from one can spoil the next."""
    (payload,) = _shared_encoder.encode(resource, spans)
    assert payload.count == len(spans)
    # As bytes: NaN differs from itself, and 0.0 does not from -0.0.
    ours = parse(payload).SerializeToString(deterministic=True)
    assert ours == expected(spans, resource).SerializeToString(deterministic=True)
    assert list(_python_encoder.encode(resource, spans)) == [payload]  # byte for byte


# --- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(True, 1, 1.0), (1, 1.0, True), (1.0, True, 1)])
def test_equal_values_of_different_types_never_share_bytes(
    encoder: SpanEncoder, order: tuple[float, ...]
) -> None:
    """True == 1 == 1.0 to Python's dictionaries, not to OTLP; nor are tuples of them alike."""
    for value in (*order, *order):
        pair = attributes_of(one(encoder, attributes={"k": value, "t": (value,)}))
        kind = {bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
        assert pair["k"].value.WhichOneof("value") == kind
        assert pair["t"].value.array_value.values[0].WhichOneof("value") == kind


def test_the_sign_of_zero_survives(encoder: SpanEncoder) -> None:
    """0.0 == -0.0, so a cache by value would mix them."""
    for value in (0.0, -0.0, 0.0):
        got = attributes_of(one(encoder, attributes={"k": value}))["k"].value.double_value
        assert math.copysign(1, got) == math.copysign(1, value)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, (1 << 64) - 1, 10**100])
def test_integers_beyond_64_bits_become_decimal_text(encoder: SpanEncoder, value: int) -> None:
    """As OpenTelemetry's mapping has it; torch's seeds are unsigned 64-bit numbers."""
    assert attributes_of(one(encoder, attributes={"seed": value}))["seed"].value.string_value == str(value)


def test_an_integer_too_long_for_decimal_is_written_in_hex(encoder: SpanEncoder) -> None:
    """Python refuses `str` of more than 4,300 digits; the span must not fail for it."""
    value = attributes_of(one(encoder, attributes={"n": 1 << 20_000}))["n"].value.string_value
    assert int(value, 16) == 1 << 20_000


def test_lone_surrogates_are_replaced_everywhere(encoder: SpanEncoder) -> None:
    """Text cut within a character must not cost the span; pairs of halves are joined."""
    span = one(encoder, name="a\ud800", attributes={"k\udfff": "v\ud83d", "whole": "\ud83d\ude00"})
    assert span.name == "a\ufffd"
    assert attributes_of(span)["k\ufffd"].value.string_value == "v\ufffd"
    assert attributes_of(span)["whole"].value.string_value == "\U0001f600"


def test_a_value_without_form_is_dropped_and_counted(encoder: SpanEncoder, lost: Losses) -> None:
    """The span and its other attributes go."""
    cycle: list[Any] = []
    cycle.append(cycle)
    span = one(encoder, attributes={"a": object(), "b": 1, 3: "c", "d": cycle}, dropped_attributes=2)
    assert list(attributes_of(span)) == ["b"]
    assert span.dropped_attributes_count == 5
    assert not lost


@pytest.mark.parametrize(
    "changes", [{"trace_id": 1 << 128}, {"start_unix_ns": -1}, {"name": None}, {"kind": "client"}]
)
def test_a_broken_span_is_lost_alone(encoder: SpanEncoder, lost: Losses, changes: dict[str, Any]) -> None:
    """Its neighbours are encoded, and the loss has a reason."""
    spans = spans_of(encoder.encode(RESOURCE, [record(), record(**changes), record()]))
    assert len(spans) == 2
    assert lost == [("unencodable", 1)]


def test_caches_stay_bounded(lost: Losses) -> None:
    """Ids, free keys and names must not fill the memory of a service that runs for months."""
    encoder = PythonEncoder(lost)
    attributes = encoder._attributes  # pyright: ignore[reportPrivateUsage]
    for number in range(5_000):
        changed = {"id": f"id-{number}", f"key-{number}": "x", "ids": (f"a{number}",)}
        list(encoder.encode(RESOURCE, [record(name=f"n{number}", attributes=changed, library=f"l{number}")]))
    keys = attributes._keys  # pyright: ignore[reportPrivateUsage]
    assert len(keys) <= 512
    assert max(len(key.values) for key in keys.values()) <= 64
    assert len(encoder._names) <= 1024  # pyright: ignore[reportPrivateUsage]
    assert len(encoder._scopes) <= 1024  # pyright: ignore[reportPrivateUsage]


# --- requests ----------------------------------------------------------------------------------------


def test_requests_are_split_by_spans_and_bytes(encoder: SpanEncoder) -> None:
    """Never more than 512 spans, never near the 4 MiB at which gRPC servers refuse; order is kept."""
    spans = [record(span_id=n, attributes={"text": "x" * (20_000 if n % 3 else 10)}) for n in range(1, 1001)]
    payloads = list(encoder.encode(RESOURCE, spans))
    assert max(len(payload.body) for payload in payloads) <= 3_500 * 1024
    assert max(payload.count for payload in payloads) <= 512
    assert len(payloads) < 8  # and not needlessly many
    got = [int.from_bytes(span.span_id, "big") for span in spans_of(iter(payloads))]
    assert got == [span.span_id for span in spans]


def test_a_giant_span_does_not_take_others_down(lost: Losses) -> None:
    """One beyond the transport's limit is lost alone; one below it, yet large, goes alone."""
    encoder = SpanEncoder(lost, max_bytes=10_000, max_record_bytes=50_000)
    sizes = [10, 60_000, 10, 40_000, 10]
    payloads = list(encoder.encode(RESOURCE, [record(attributes={"text": "x" * size}) for size in sizes]))
    assert [payload.count for payload in payloads] == [2, 1, 1]
    assert lost == [("too_large", 1)]


def test_joined_requests_are_one_request(encoder: SpanEncoder) -> None:
    """The sender joins small requests by their bytes; protobuf defines that as joining their lists."""
    first, second = (next(encoder.encode(RESOURCE, [record(name=name)])) for name in ("a", "b"))
    joined = Payload(first.body + second.body, 2)
    assert [span.name for span in spans_of(iter([joined]))] == ["a", "b"]


_LIBRARIES = st.sampled_from(["neuronscope.openai", "neuronscope.asgi", "other"])
_SIZES = st.sampled_from([0, 10, 900, 4_000])


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(_LIBRARIES, _SIZES, st.booleans()), max_size=3 * SLICE), st.integers(1, 40))
def test_runs_make_the_same_requests(spans: list[tuple[str, int, bool]], max_records: int) -> None:
    """Libraries that alternate, spans that are broken or too large, requests that are full: byte for byte."""
    told: list[object] = []
    for kind in (SpanEncoder, PythonEncoder):
        lost = Losses()
        encoder = kind(lost, max_records=max_records, max_bytes=12_000, max_record_bytes=3_000)
        records = [
            record(library=library, attributes={"a": "x" * size}, span_id=-1 if broken and size else 2)
            for library, size, broken in spans
        ]
        told.append(([*encoder.encode(RESOURCE, records)], lost))
    assert told[0] == told[1]


def test_encoding_pauses_after_each_slice(lost: Losses) -> None:
    """Other threads get the GIL between slices."""
    pauses: list[int] = []
    encoder = SpanEncoder(lost, pause=lambda: pauses.append(1))
    list(encoder.encode(RESOURCE, [record()] * (SLICE - 1)))
    assert not pauses
    list(encoder.encode(RESOURCE, [record()] * (4 * SLICE)))
    assert len(pauses) == 3


def test_our_libraries_carry_our_version(encoder: SpanEncoder) -> None:
    """Spans of ours name the release; others' keep what they said."""
    spans = [record(library="neuronscope.openai"), record(library="neuronscopes"), record(library="x")]
    (payload,) = encoder.encode(RESOURCE, spans)
    scopes = [group.scope for group in parse(payload).resource_spans[0].scope_spans]
    assert [(scope.name, scope.version) for scope in scopes] == [
        ("neuronscope.openai", __version__),
        ("neuronscopes", ""),
        ("x", ""),
    ]


# --- metrics -----------------------------------------------------------------------------------------

START, NOW = 1_000, 9_000
DURATION_LABELS = (("gen_ai.operation.name", "chat"), ("server.port", "443"), ("error.type", ""))


def _histogram_point() -> MetricPoint:
    counts = [0] * (len(names.SECONDS) + 1)
    counts[3] = 2
    exemplars: list[Exemplar | None] = [None] * len(counts)
    exemplars[3] = Exemplar(0.07, 5_000, 0xABC, 0xDEF)
    return MetricPoint(DURATION_LABELS, HistogramValue(counts, 0.15, 2, exemplars))


def _snapshot() -> MetricsSnapshot:
    return MetricsSnapshot(
        [
            MetricFamily(names.OPERATION_DURATION, [_histogram_point()]),
            MetricFamily(names.EXPORTED, [MetricPoint((("item", "span"), ("exporter", "otlp")), 12)]),
            MetricFamily(names.OVERHEAD_ACCOUNTED, [MetricPoint((), 0.03)]),
        ],
        START,
        NOW,
    )


def _their_metric(metric: names.Metric, data: Any) -> sdk.Metric:
    return sdk.Metric(metric.name, metric.brief, metric.unit, data)


def _their_metrics() -> ExportMetricsServiceRequest:
    histogram = _histogram_point().value
    assert isinstance(histogram, HistogramValue)
    exemplar = sdk_metrics.Exemplar({}, 0.07, 5_000, 0xDEF, 0xABC)
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    unset: Any = None  # we keep no minimum and maximum
    points: list[Any] = [
        sdk.HistogramDataPoint(
            {"gen_ai.operation.name": "chat", "server.port": 443},
            START, NOW, 2, 0.15, histogram.counts, names.SECONDS, unset, unset, [exemplar],
        ),
        sdk.NumberDataPoint({"item": "span", "exporter": "otlp"}, START, NOW, 12.0),
        sdk.NumberDataPoint({}, START, NOW, 0.03),
    ]  # fmt: skip
    families = [
        _their_metric(names.OPERATION_DURATION, sdk.Histogram([points[0]], cumulative)),
        _their_metric(names.EXPORTED, sdk.Sum([points[1]], cumulative, is_monotonic=True)),
        _their_metric(names.OVERHEAD_ACCOUNTED, sdk.Gauge([points[2]])),
    ]
    scope = sdk.ScopeMetrics(InstrumentationScope("neuronscope", __version__), families, "")
    return encode_metrics(sdk.MetricsData([sdk.ResourceMetrics(Resource(RESOURCE), [scope], "")]))


def test_metrics_equal_the_sdks_encoder(lost: Losses) -> None:
    """Histogram with exemplar, monotonic sum and gauge; an empty label is none; ports are integers."""
    (payload,) = MetricEncoder(lost).encode(RESOURCE, _snapshot())
    assert payload.count == 3
    assert not lost
    assert ExportMetricsServiceRequest.FromString(payload.body) == _their_metrics()


def test_labels_folded_into_other_stay_text(lost: Losses) -> None:
    """`other` is no port number; the point must not be lost for it."""
    family = MetricFamily(names.DB_DURATION, [
        MetricPoint((("server.port", "other"),), HistogramValue([0] * 10, 0.0, 0))
    ])  # fmt: skip
    (payload,) = MetricEncoder(lost).encode(RESOURCE, MetricsSnapshot([family], START, NOW))
    metric = (
        ExportMetricsServiceRequest.FromString(payload.body).resource_metrics[0].scope_metrics[0].metrics[0]
    )
    assert metric.histogram.data_points[0].attributes[0].value.string_value == "other"


def test_points_that_backends_refuse_are_lost_alone(lost: Losses) -> None:
    """NaN, and counts that do not fit the buckets, must not spoil a request of good points."""
    families = [
        MetricFamily(names.OVERHEAD_ACCOUNTED, [MetricPoint((), math.nan), MetricPoint((), 1.0)]),
        MetricFamily(names.DB_DURATION, [MetricPoint((), HistogramValue([1, 2], 1.0, 3))]),
    ]
    (payload,) = MetricEncoder(lost).encode(RESOURCE, MetricsSnapshot(families, START, NOW))
    assert payload.count == 1
    assert lost == [("unencodable", 1)] * 2


def test_many_series_are_split_into_requests(lost: Losses) -> None:
    """Thousands of series stay below the collector's limit, and none is lost."""
    points = [MetricPoint((("item", "x" * 100), ("reason", str(n))), n) for n in range(500)]
    snapshot = MetricsSnapshot([MetricFamily(names.DROPPED, points)], START, NOW)
    payloads = list(MetricEncoder(lost, max_bytes=20_000).encode(RESOURCE, snapshot))
    assert max(len(payload.body) for payload in payloads) < 21_000
    requests = [ExportMetricsServiceRequest.FromString(payload.body) for payload in payloads]
    got = [
        point.as_double
        for request in requests
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.sum.data_points
    ]
    assert got == list(range(500))


def test_no_series_no_request(lost: Losses) -> None:
    """Nothing to say, nothing sent."""
    assert not list(MetricEncoder(lost).encode(RESOURCE, MetricsSnapshot([], START, NOW)))


# --- logs --------------------------------------------------------------------------------------------

_log_values = st.recursive(
    st.one_of(_scalars, st.none(), st.binary(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
_logs = st.builds(
    LogRecord,
    time_unix_ns=_uint64,
    observed_unix_ns=_uint64,
    severity=st.integers(0, 24),
    severity_text=st.sampled_from(["", "INFO", "WARN"]),
    body=_log_values,
    attributes=st.dictionaries(
        st.one_of(st.text(max_size=12), st.sampled_from("abc")), _log_values, max_size=8
    ),
    trace_id=st.one_of(st.just(0), _trace_ids),
    span_id=st.one_of(st.just(0), _uint64),
    trace_flags=st.sampled_from([0, 1]),
    event_name=st.sampled_from(["", "gen_ai.client.inference.operation.details"]),
    library=st.sampled_from(["neuronscope.openai", "app.db", ""]),
    library_version=st.sampled_from(["", "2.1"]),
    dropped_attributes=_uint32,
)
_shared_log_encoder = LogEncoder(lambda _reason, _count: pytest.fail("a log was lost"), pause=lambda: None)


def _their_logs(logs: Sequence[LogRecord], resource: dict[str, Any]) -> ExportLogsServiceRequest:
    sdk_resource = Resource(resource)

    def theirs(log: LogRecord) -> ReadableLogRecord:
        their = SdkLogRecord(
            timestamp=log.time_unix_ns,
            observed_timestamp=log.observed_unix_ns,
            severity_text=log.severity_text,
            severity_number=SeverityNumber(log.severity),
            body=log.body,
            attributes=dict(log.attributes),
            event_name=log.event_name,
        )
        their.trace_id, their.span_id = log.trace_id, log.span_id
        their.trace_flags = TraceFlags(log.trace_flags)
        version = log.library_version or (__version__ if log.library.startswith("neuronscope") else "")
        scope = InstrumentationScope(log.library, version)
        readable = TheirLog(their, sdk_resource, scope)
        readable.drops = log.dropped_attributes
        return readable

    return encode_logs([theirs(log) for log in logs])


class TheirLog(ReadableLogRecord):
    drops: int = 0

    @property
    def dropped_attributes(self) -> int:
        return self.drops


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(
    logs=st.lists(_logs, min_size=1, max_size=5),
    resource=st.dictionaries(st.text(min_size=1, max_size=10), _scalars, max_size=4),
)
def test_logs_equal_the_sdks_encoder_on_every_shape(logs: list[LogRecord], resource: dict[str, Any]) -> None:
    """Structured bodies and attributes, with and without a span; one encoder for all examples."""
    (payload,) = _shared_log_encoder.encode(resource, logs)
    assert payload.count == len(logs)
    ours = ExportLogsServiceRequest.FromString(payload.body).SerializeToString(deterministic=True)
    assert ours == _their_logs(logs, resource).SerializeToString(deterministic=True)


def test_a_log_without_form_is_lost_alone(lost: Losses) -> None:
    """A body of no known type, or a time that is none; an attribute costs only itself."""
    logs: list[Any] = [
        LogRecord(1, 1, body="a"),
        LogRecord(1, 1, body=cast(Any, object())),
        LogRecord(-1, 1),
        LogRecord(1, 1, attributes={"a": cast(Any, object()), "b": 1}, dropped_attributes=1),
    ]
    (payload,) = LogEncoder(lost).encode(RESOURCE, logs)
    (scope,) = ExportLogsServiceRequest.FromString(payload.body).resource_logs[0].scope_logs
    assert [record.body.string_value for record in scope.log_records] == ["a", ""]
    assert [pair.key for pair in scope.log_records[1].attributes] == ["b"]
    assert scope.log_records[1].dropped_attributes_count == 2
    assert lost == [("unencodable", 1)] * 2
