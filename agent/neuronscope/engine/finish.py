"""The worker's half of a call: from a light span and its references to a finished record."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util.types import Attributes as OtelAttributes

from neuronscope._version import __version__
from neuronscope.engine import facts, searches
from neuronscope.engine.content import ContentPolicy, text_value
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import Call
from neuronscope.engine.metrics import Aggregator, labels_of
from neuronscope.engine.retrieval_metrics import record_store
from neuronscope.engine.span import LightSpan
from neuronscope.instrumentation import Request, Response
from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent, SpanLink, SpanRecord

# `error.type` of a stream whose connection ended in order, before the provider had said that it was over.
CUT_OFF: Final = "stream_cut_off"


def call_attributes(call: Call, library: str, content: bool, limit: int) -> dict[str, Any]:
    """Everything the adapter's readers know about the call, as unmasked attributes.

    A reader that fails costs what it would have told, nothing else.

    Args:
        limit: characters that each attribute with content may have.
    """
    endpoint = call.snapshot.endpoint
    attributes: dict[str, Any] = {}
    request = GUARD.call(
        f"{library}.read_request", endpoint.read_request, call.snapshot.arguments, content, default=Request()
    )
    GUARD.call(f"{library}.request_facts", attributes.update, facts.request_facts(request, limit))
    truncated = attributes.pop(names.TRUNCATED, [])
    response = GUARD.call(f"{library}.read_response", _response, call, content)
    if response is not None:
        GUARD.call(f"{library}.response_facts", attributes.update, facts.response_facts(response, limit))
    found = GUARD.call(f"{library}.searches", searches.searches_of, request, response, content, limit)
    if found:
        attributes.update(searches.span_attributes(request, response, found))
        call.searches = found if len(found) > 1 else ()
    if truncated := [*truncated, *attributes.pop(names.TRUNCATED, [])]:
        attributes[names.TRUNCATED] = truncated
    if call.stream is not None:
        attributes.update(facts.stream_facts(call.stream, call.start_perf_ns))
        whole = endpoint.is_complete
        if (
            whole is not None
            and call.stream.end == "complete"
            and GUARD.call(f"{library}.is_complete", whole, response) is False
        ):
            attributes[names.STREAM_END] = "error"
            attributes[names.ERROR_TYPE] = CUT_OFF
    if call.resends:
        attributes[names.HTTP_RESEND_COUNT] = call.resends
    if call.headers is not None and endpoint.read_headers is not None:
        told = GUARD.call(f"{library}.read_headers", endpoint.read_headers, call.headers, default={})
        attributes.update(told)
    if call.error is not None:
        attributes[names.ERROR_TYPE] = call.error.type
        if call.error.status_code is not None:
            attributes[names.HTTP_RESPONSE_STATUS_CODE] = call.error.status_code
    return attributes


def _response(call: Call, content: bool) -> Response | None:
    if call.stream is not None:
        return call.stream.fold()
    read = call.snapshot.endpoint.read_response
    if call.error is not None and (read is None or call.error.response is not None or call.result is None):
        return call.error.response
    return read(call.result, content) if read is not None and call.result is not None else None


def light_record(
    span: LightSpan, policy: ContentPolicy, *, masked: dict[str, Any] | None = None
) -> SpanRecord:
    """The record of one of our spans.

    Args:
        masked: attributes that were already read and masked (a foreign span's); else they are read now.
    """
    attributes = (
        masked
        if masked is not None
        else policy.apply(read_attributes(span, policy.content_on_spans, policy.max_length))
    )
    context, parent = span.get_span_context(), span.parent
    failed = names.ERROR_TYPE in attributes
    status = span.status
    code = StatusCode.ERROR if failed and status.status_code is StatusCode.UNSET else status.status_code
    return SpanRecord(
        trace_id=context.trace_id,
        span_id=context.span_id,
        name=text_value(span.name),
        kind=span.kind,
        start_unix_ns=span.start_time,
        end_unix_ns=span.end_time or span.start_time,
        attributes=attributes,
        parent_span_id=parent.span_id if parent is not None else None,
        parent_is_remote=parent.is_remote if parent is not None else False,
        events=[_masked_event(event, policy) for event in (*(span.event_buffer or ()), *query_events(span))],
        links=[_masked_link(link, policy) for link in span.link_buffer or ()],
        status=code,
        status_message=policy.status_message(status.description),
        trace_state=context.trace_state.to_header() if context.trace_state else "",
        trace_flags=int(context.trace_flags),
        library=span.library,
        library_version=__version__,
        dropped_attributes=span.dropped_attributes,
        dropped_events=span.dropped_events + _unrecorded(span),
        foreign=span.foreign is not None,
    )


def read_attributes(span: LightSpan, content: bool, limit: int) -> dict[str, Any]:
    """The unmasked attributes of a light span: ours, then what the service set on it."""
    attributes = span.attributes_at_start()
    if span.call is not None:
        attributes.update(call_attributes(span.call, span.library, content, limit))
    if span.user_attributes:
        attributes.update(span.user_attributes)
    return attributes


def query_events(span: LightSpan) -> list[SpanEvent]:
    """One event for each query of a batch, unmasked."""
    found = span.call.searches if span.call is not None else ()
    ended = span.end_time or span.start_time
    return [
        SpanEvent(names.RETRIEVAL_QUERY, ended, {names.QUERY_INDEX: index, **search})
        for index, search in enumerate(found[: searches.MAX_RECORDS])
    ]


def _unrecorded(span: LightSpan) -> int:
    return max(0, len(span.call.searches) - searches.MAX_RECORDS) if span.call is not None else 0


def sdk_record(span: ReadableSpan, policy: ContentPolicy) -> SpanRecord:
    """The record of a span that the service made by hand on our provider."""
    context, parent, status = span.get_span_context(), span.parent, span.status
    assert context is not None
    scope = span.instrumentation_scope
    return SpanRecord(
        trace_id=context.trace_id,
        span_id=context.span_id,
        name=text_value(span.name),
        kind=span.kind,
        start_unix_ns=span.start_time or 0,
        end_unix_ns=span.end_time or 0,
        attributes=policy.apply(span.attributes or {}),
        parent_span_id=parent.span_id if parent is not None else None,
        parent_is_remote=parent.is_remote if parent is not None else False,
        events=[
            _masked_event(SpanEvent(event.name, event.timestamp, _plain(event.attributes)), policy)
            for event in span.events
        ],
        links=[
            _masked_link(
                SpanLink(
                    link.context.trace_id,
                    link.context.span_id,
                    _plain(link.attributes),
                    link.context.trace_state.to_header(),
                    int(link.context.trace_flags),
                ),
                policy,
            )
            for link in span.links
        ],
        status=status.status_code,
        status_message=policy.status_message(status.description),
        trace_state=context.trace_state.to_header() if context.trace_state else "",
        trace_flags=int(context.trace_flags),
        library=scope.name if scope is not None else "",
        library_version=(scope.version or "") if scope is not None else "",
        dropped_attributes=span.dropped_attributes,
        dropped_events=span.dropped_events,
        dropped_links=span.dropped_links,
    )


def _plain(attributes: OtelAttributes) -> dict[str, Any]:
    return dict(attributes or {})


def _masked_event(event: SpanEvent, policy: ContentPolicy) -> SpanEvent:
    return SpanEvent(
        text_value(event.name), event.time_unix_ns, policy.apply(event.attributes), event.dropped_attributes
    )


def _masked_link(link: SpanLink, policy: ContentPolicy) -> SpanLink:
    return SpanLink(
        link.trace_id,
        link.span_id,
        policy.apply(link.attributes),
        link.trace_state,
        link.trace_flags,
        link.dropped_attributes,
    )


def record_metrics(record: SpanRecord, call: Call | None, metrics: Aggregator) -> None:
    """Aggregate what a finished span contributes to metrics, each fact once."""
    attributes = record.attributes
    seconds = (record.end_unix_ns - record.start_unix_ns) / 1e9
    exemplar = (record.trace_id, record.span_id) if record.trace_flags & 1 else None

    def observe(metric: names.Metric, value: Any) -> None:
        if isinstance(value, int | float):
            metrics.observe(metric, value, labels_of(metric, attributes), exemplar)

    if record.kind is SpanKind.SERVER and names.HTTP_REQUEST_METHOD in attributes:
        observe(names.HTTP_DURATION, seconds)
    if names.DB_SYSTEM in attributes:
        observe(names.DB_DURATION, seconds)
        for query in searches.measured(attributes, call.searches if call is not None else ()):
            record_store(query, metrics, exemplar)
    if names.PROVIDER_NAME in attributes:
        observe(names.OPERATION_DURATION, seconds)
        observe(names.FIRST_CHUNK, attributes.get(names.TIME_TO_FIRST_CHUNK))
        _count_tokens(record, metrics, exemplar)
        if call is not None and call.stream is not None:
            gaps = ((later - earlier) / 1e9 for earlier, later in pairwise(call.stream.times))
            labels = labels_of(names.PER_CHUNK, attributes)
            metrics.observe_all(names.PER_CHUNK, gaps, labels, exemplar)
    observe(names.PREFILL_SECONDS, attributes.get(names.MODEL_PREFILL))
    observe(names.DECODE_SECONDS, attributes.get(names.MODEL_DECODE))
    non_finite = attributes.get(names.LAYERS_NON_FINITE)
    if isinstance(non_finite, int):
        metrics.add(names.NON_FINITE, non_finite, labels_of(names.NON_FINITE, attributes))


def _count_tokens(record: SpanRecord, metrics: Aggregator, exemplar: tuple[int, int] | None) -> None:
    attributes: dict[str, Any] = dict(record.attributes)
    for kind, key in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
        count = attributes.get(key)
        if isinstance(count, int):
            attributes[names.TOKEN_TYPE] = kind
            metrics.observe(names.TOKEN_USAGE, count, labels_of(names.TOKEN_USAGE, attributes), exemplar)
