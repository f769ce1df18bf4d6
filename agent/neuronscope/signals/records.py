"""What the worker hands to exporters: finished spans, layer records, log records, metric points.

Frozen values, the same whether they come from the live queue or from a file.  They are msgspec's structs,
not dataclasses: one is made for every span, and a frozen dataclass of this size costs several times more.
`msgspec.structs.replace` makes changed copies.  Times are unix nanoseconds; ids are integers as in
OpenTelemetry's `SpanContext`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.signals.names import Metric
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

AttributeScalar = str | bool | int | float
AttributeValue = AttributeScalar | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes = Mapping[str, AttributeValue]
# What logs may hold besides, by OpenTelemetry's data model: structure, and bytes.
LogValue: TypeAlias = (
    "AttributeScalar | bytes | Sequence[AttributeScalar] | Sequence[LogValue] | Mapping[str, LogValue] | None"
)


class Fidelity(StrEnum):
    """How much of an observation is kept, richest first (see `neuronscope.governor`)."""

    FULL = "full"
    SUMMARY = "summary"
    CRITICAL = "critical"
    OFF = "off"


class SpanEvent(Struct, frozen=True):
    """A timed event of a span."""

    name: str
    time_unix_ns: int
    attributes: Attributes = {}
    dropped_attributes: int = 0


class SpanLink(Struct, frozen=True):
    """A link from a span to another span."""

    trace_id: int
    span_id: int
    attributes: Attributes = {}
    trace_state: str = ""
    trace_flags: int = 1
    dropped_attributes: int = 0


class SpanRecord(Struct, frozen=True, gc=False):
    """A finished span, its content already masked by policy.

    Attributes:
        library: instrumentation scope name, ``"neuronscope.openai"``.
        foreign: True when the user's own OpenTelemetry pipeline already exports this span; the
            OTLP exporter then leaves it alone unless `Settings.otlp_foreign_spans` asks for it.
    """

    trace_id: int
    span_id: int
    name: str
    kind: SpanKind
    start_unix_ns: int
    end_unix_ns: int
    attributes: Attributes
    parent_span_id: int | None = None
    parent_is_remote: bool = False
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    status: StatusCode = StatusCode.UNSET
    status_message: str | None = None
    trace_state: str = ""
    trace_flags: int = 1
    library: str = "neuronscope"
    library_version: str = ""
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0
    foreign: bool = False

    @property
    def duration_ms(self) -> float:
        """Wall-clock duration in milliseconds."""
        return (self.end_unix_ns - self.start_unix_ns) / 1e6


class LayerRecord(Struct, frozen=True, gc=False):
    """One observation of one layer: a summary, and the full tensor if it was affordable.

    Attributes:
        model: name of the model the layer belongs to.
        layer_id: the runtime's dotted path.
        role: ``"output"``, ``"input"``, ``"gradient"`` or ``"attention"``.
        index: position of the tensor in a structured output (0 for a plain tensor).
        step: how often the layer had run before within its span (in generation: 0 is the prefill).
        span_id: span during which the layer ran; None when it could not be attributed.
        tensor: the full values; lazily read when the record comes from a file.
        attributes: what else the probe measured or the adapter knows: headroom, rank, recomputation, ….
    """

    model: str
    layer_id: str
    step: int
    time_unix_ns: int
    shape: tuple[int, ...]
    dtype: str
    role: str = "output"
    index: int = 0
    trace_id: int | None = None
    span_id: int | None = None
    fidelity: Fidelity = Fidelity.SUMMARY
    summary: TensorSummary | None = None
    tensor: TensorSnapshot | None = None
    attributes: Attributes = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the full tensor held by this record (0 for a summary)."""
        return self.tensor.nbytes if self.tensor is not None else 0


class LogRecord(Struct, frozen=True):
    """A log record: an event of ours, or one that the service logged; its content already masked by policy.

    Attributes:
        time_unix_ns: when it happened; `observed_unix_ns` is when we learned of it.
        severity: OpenTelemetry's number (1 to 24; 0: unknown), and the source's own word for it.
        body: the message of what the service logged; events have none.
        trace_id: 0 when no span was current; so is `span_id`.
        event_name: ``gen_ai.client.inference.operation.details``, for example; empty for plain logs.
        library: instrumentation scope name: an adapter's, or the service's logger.
    """

    time_unix_ns: int
    observed_unix_ns: int
    severity: int = 0
    severity_text: str = ""
    body: LogValue = None
    attributes: Mapping[str, LogValue] = {}
    trace_id: int = 0
    span_id: int = 0
    trace_flags: int = 0
    event_name: str = ""
    library: str = "neuronscope"
    library_version: str = ""
    dropped_attributes: int = 0


class Exemplar(Struct, frozen=True):
    """A measured value and the sampled span it came from."""

    value: float
    time_unix_ns: int
    trace_id: int
    span_id: int


class HistogramValue(Struct, frozen=True):
    """Explicit-bucket histogram: `counts` has one more entry than the metric's buckets."""

    counts: Sequence[int]
    sum: float
    count: int
    exemplars: Sequence[Exemplar | None] = ()


class MetricPoint(Struct, frozen=True):
    """One series of a metric; `labels` are (label, value) pairs in the metric's own order."""

    labels: tuple[tuple[str, str], ...]
    value: float | HistogramValue


class MetricFamily(Struct, frozen=True):
    """All series of one metric at one moment, cumulative since `MetricsSnapshot.start_unix_ns`."""

    metric: Metric
    points: Sequence[MetricPoint]


class MetricsSnapshot(Struct, frozen=True):
    """Everything the aggregator holds."""

    families: Sequence[MetricFamily]
    start_unix_ns: int
    time_unix_ns: int


class Batch(Struct, frozen=True):
    """What one export call carries.

    Attributes:
        resource: the process's OTel resource attributes.
        events: what the agent has to tell about itself.
    """

    resource: Attributes
    spans: Sequence[SpanRecord] = ()
    layers: Sequence[LayerRecord] = ()
    logs: Sequence[LogRecord] = ()
    events: Sequence[SpanEvent] = ()
