"""Records to JSON and back, exactly: spans, layer records, log records, events, resources."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.exceptions import NszError
from neuronscope.signals.records import (
    Attributes,
    AttributeValue,
    Fidelity,
    LayerRecord,
    LogRecord,
    SpanEvent,
    SpanLink,
    SpanRecord,
)
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters.nsz.attributes import (
    finite,
    from_pairs,
    from_value,
    identifier,
    integer,
    number,
    to_pairs,
    to_value,
)
from neuronscope_exporters.nsz.documents import (
    EventDocument,
    LayerDocument,
    LinkDocument,
    LogDocument,
    ResourceDocument,
    ScopeDocument,
    SpanDocument,
    StatusDocument,
    SummaryDocument,
    TensorDocument,
    decode,
    encode,
)

_HAS_REMOTE: Final = 0x100  # OTLP's span flags above the eight of W3C
_IS_REMOTE: Final = 0x200
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
_CODES: Final = {code.value: code for code in StatusCode}
_NO_STATUS: Final = StatusDocument()
_NO_SCOPE: Final = ScopeDocument("")

# --- spans and events ---------------------------------------------------------------------------


def encode_span(span: SpanRecord, resource: int = 0) -> bytes:
    """JSON of a span; `resource` is its resource's position in the manifest."""
    status = None
    if span.status is not StatusCode.UNSET or span.status_message is not None:
        status = StatusDocument(span.status.value, span.status_message)
    remote = _IS_REMOTE if span.parent_is_remote else 0
    document = SpanDocument(
        f"{span.trace_id:032x}",
        f"{span.span_id:016x}",
        span.name,
        span.kind.value + 1,  # OTLP counts from "unspecified"
        str(span.start_unix_ns),
        str(span.end_unix_ns),
        to_pairs(span.attributes),
        None if span.parent_span_id is None else f"{span.parent_span_id:016x}",
        int(span.trace_flags) & 0xFF | _HAS_REMOTE | remote,
        span.trace_state,
        ScopeDocument(span.library, span.library_version),
        status,
        [_event_document(event) for event in span.events] if span.events else [],
        [_link_document(link) for link in span.links] if span.links else [],
        span.dropped_attributes,
        span.dropped_events,
        span.dropped_links,
        span.foreign,
        resource,
    )
    return encode(document)


def decode_span(data: bytes | memoryview) -> tuple[SpanRecord, int]:
    """(span, position of its resource in the manifest).

    Raises:
        NszError: the JSON is no span.
    """
    document = decode(SpanDocument, data)
    status = document.status or _NO_STATUS
    scope = document.scope or _NO_SCOPE
    parent = document.parent_span_id
    try:
        kind, code = _KINDS[document.kind], _CODES[status.code]
    except KeyError as error:
        raise NszError(f"span with an unknown kind or status: {error}") from None
    span = SpanRecord(  # by position: this is where the time of reading goes
        identifier(document.trace_id, 32),
        identifier(document.span_id, 16),
        document.name,
        kind,
        integer(document.start_time_unix_nano),
        integer(document.end_time_unix_nano),
        from_pairs(document.attributes),
        identifier(parent, 16) if parent else None,
        bool(document.flags & _IS_REMOTE),
        tuple([_event_record(event) for event in document.events]) if document.events else (),
        tuple([_link_record(link) for link in document.links]) if document.links else (),
        code,
        status.message,
        document.trace_state,
        document.flags & 0xFF,
        scope.name,
        scope.version,
        document.dropped_attributes_count,
        document.dropped_events_count,
        document.dropped_links_count,
        document.foreign,
    )
    return span, document.resource


def encode_event(event: SpanEvent) -> bytes:
    """JSON of an event of the agent."""
    return encode(_event_document(event))


def decode_event(data: bytes | memoryview) -> SpanEvent:
    """An event of the agent.

    Raises:
        NszError: the JSON is no event.
    """
    return _event_record(decode(EventDocument, data))


def _event_document(event: SpanEvent) -> EventDocument:
    return EventDocument(
        str(event.time_unix_ns), event.name, to_pairs(event.attributes), event.dropped_attributes
    )


def _event_record(document: EventDocument) -> SpanEvent:
    return SpanEvent(
        document.name,
        integer(document.time_unix_nano),
        from_pairs(document.attributes),
        document.dropped_attributes_count,
    )


def _link_document(link: SpanLink) -> LinkDocument:
    return LinkDocument(
        f"{link.trace_id:032x}",
        f"{link.span_id:016x}",
        link.trace_state,
        to_pairs(link.attributes),
        link.dropped_attributes,
        int(link.trace_flags) & 0xFF,
    )


def _link_record(document: LinkDocument) -> SpanLink:
    return SpanLink(
        trace_id=identifier(document.trace_id, 32),
        span_id=identifier(document.span_id, 16),
        attributes=from_pairs(document.attributes),
        trace_state=document.trace_state,
        trace_flags=document.flags & 0xFF,
        dropped_attributes=document.dropped_attributes_count,
    )


# --- log records --------------------------------------------------------------------------------


def encode_log(log: LogRecord, resource: int = 0) -> bytes:
    """JSON of a log record; `resource` is its resource's position in the manifest."""
    document = LogDocument(
        str(log.time_unix_ns),
        str(log.observed_unix_ns),
        int(log.severity),
        log.severity_text,
        to_value(log.body),
        to_pairs(log.attributes),
        f"{log.trace_id:032x}" if log.trace_id else None,
        f"{log.span_id:016x}" if log.span_id else None,
        int(log.trace_flags) & 0xFF,
        log.event_name,
        ScopeDocument(log.library, log.library_version),
        log.dropped_attributes,
        resource,
    )
    return encode(document)


def decode_log(data: bytes | memoryview) -> tuple[LogRecord, int]:
    """(log record, position of its resource in the manifest).

    Raises:
        NszError: the JSON is no log record.
    """
    document = decode(LogDocument, data)
    scope = document.scope or _NO_SCOPE
    log = LogRecord(
        time_unix_ns=integer(document.time_unix_nano),
        observed_unix_ns=integer(document.observed_time_unix_nano or document.time_unix_nano),
        severity=document.severity_number,
        severity_text=document.severity_text,
        body=from_value(document.body),
        attributes=from_pairs(document.attributes),
        trace_id=identifier(document.trace_id, 32) if document.trace_id else 0,
        span_id=identifier(document.span_id, 16) if document.span_id else 0,
        trace_flags=document.flags & 0xFF,
        event_name=document.event_name,
        library=scope.name,
        library_version=scope.version,
        dropped_attributes=document.dropped_attributes_count,
    )
    return log, document.resource


# --- layers -------------------------------------------------------------------------------------


def encode_layer(layer: LayerRecord, resource: int = 0, tensor: TensorDocument | None = None) -> bytes:
    """JSON of a layer record: a tensor summary, or with `tensor` a reference to its chunks."""
    document = LayerDocument(
        layer.model,
        layer.layer_id,
        int(layer.step),
        str(layer.time_unix_ns),
        [int(size) for size in layer.shape],
        layer.dtype,
        layer.role,
        int(layer.index),
        None if layer.trace_id is None else f"{layer.trace_id:032x}",
        None if layer.span_id is None else f"{layer.span_id:016x}",
        str(layer.fidelity),
        None if layer.summary is None else _summary_document(layer.summary),
        tensor,
        resource,
        to_pairs(layer.attributes) if layer.attributes else [],
    )
    return encode(document)


def layer_record(document: LayerDocument, tensor: TensorSnapshot | None) -> LayerRecord:
    """The record that a document describes.

    Raises:
        NszError: a value that no layer record can have.
    """
    if any(size < 0 for size in document.shape):
        raise NszError("a shape cannot be negative")
    try:
        fidelity = Fidelity(document.fidelity)
    except ValueError as error:
        raise NszError(str(error)) from None
    return LayerRecord(
        model=document.model,
        layer_id=document.module,
        step=document.step,
        time_unix_ns=integer(document.time_unix_nano),
        shape=tuple(document.shape),
        dtype=document.dtype,
        role=document.role,
        index=document.index,
        trace_id=None if document.trace_id is None else identifier(document.trace_id, 32),
        span_id=None if document.span_id is None else identifier(document.span_id, 16),
        fidelity=fidelity,
        summary=None if document.summary is None else _summary_record(document.summary),
        tensor=tensor,
        attributes=from_pairs(document.attributes) if document.attributes else {},
    )


def _summary_document(summary: TensorSummary) -> SummaryDocument:
    return SummaryDocument(
        int(summary.count),
        finite(float(summary.mean)),
        finite(float(summary.std)),
        finite(float(summary.l2)),
        finite(float(summary.min)),
        finite(float(summary.max)),
        finite(float(summary.abs_max)),
        int(summary.zero_count),
        int(summary.nan_count),
        int(summary.inf_count),
        finite(float(summary.sampled_fraction)),
        list(summary.histogram or ()),
        list(summary.sketch or ()),
    )


def _summary_record(document: SummaryDocument) -> TensorSummary:
    return TensorSummary(
        count=document.count,
        mean=number(document.mean),
        std=number(document.std),
        l2=number(document.l2),
        min=number(document.min),
        max=number(document.max),
        abs_max=number(document.abs_max),
        zero_count=document.zero_count,
        nan_count=document.nan_count,
        inf_count=document.inf_count,
        sampled_fraction=number(document.sampled_fraction),
        histogram=tuple(document.histogram) or None,
        sketch=tuple(document.sketch) or None,
    )


def resource_document(attributes: Attributes) -> ResourceDocument:
    """A resource for the manifest."""
    return ResourceDocument(to_pairs(attributes))


def resource_attributes(document: ResourceDocument) -> dict[str, AttributeValue]:
    """The attributes of a resource of the manifest.

    Raises:
        NszError: a value that cannot be read.
    """
    return from_pairs(document.attributes)
