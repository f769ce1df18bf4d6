"""The worker's half of a call: from a light span and its references to a finished record."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode, TraceState
from opentelemetry.util.types import Attributes as OtelAttributes

from neuronscope._version import __version__
from neuronscope.engine import facts, searches
from neuronscope.engine.content import ContentPolicy, text_value
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import Invocation
from neuronscope.engine.span import NO_STATE, LightSpan
from neuronscope.engine.structure import Structure
from neuronscope.instrumentation import Endpoint, Operation, Request, Response
from neuronscope.prices import PRICES
from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent, SpanLink, SpanRecord

# `error.type` of a stream whose connection ended in order, before the provider had said that it was over.
CUT_OFF: Final = "stream_cut_off"
_NO_REQUEST: Final = Request()
_NOTHING_TOLD: Final = False, False
_STRUCTURED: Final = (  # compared by identity, in this order; an enum's hash is a function in Python
    Operation.CHAT,
    Operation.EMBEDDINGS,
    Operation.RETRIEVAL,
    Operation.GENERATE_CONTENT,
    Operation.TEXT_COMPLETION,
)
Attributes = dict[str, Any]


class _Sites(NamedTuple):
    """Where faults of a library's readers are counted."""

    request: str
    response: str
    searches: str
    whole: str
    headers: str
    usual: str


@lru_cache(maxsize=256)
def _sites(library: str) -> _Sites:
    readers = ("read_request", "read_response", "searches", "is_complete", "read_headers", "tell")
    return _Sites(*(f"{library}.{reader}" for reader in readers))


def add_call(
    attributes: Attributes,
    call: Invocation,
    library: str,
    content: bool,
    limit: int,
    structure: Structure | None = None,
    trace_id: int = 0,
) -> None:
    """Add everything the adapter's readers know about the call, unmasked.

    A reader that fails costs what it would have told, nothing else.

    Args:
        limit: characters that each attribute with content may have.
        structure: also adds what the prompt is made of.
    """
    endpoint, sites = call.snapshot.endpoint, _sites(library)
    if structure is not None and not (endpoint.operation in _STRUCTURED and structure.admits(trace_id)):
        structure = None
    found = structure is not None and endpoint.operation is Operation.RETRIEVAL
    told = None if content or found else GUARD.begin(sites.usual, _tell, attributes, call, endpoint)
    asked, answered = _NOTHING_TOLD if told is None else told
    request, response = _NO_REQUEST, None
    if not asked:
        request = GUARD.call(
            sites.request, _add_request, attributes, call, content, limit, default=_NO_REQUEST
        )
    if structure is not None and not found:
        GUARD.call(sites.request, _add_structure, attributes, call, structure, trace_id)
    if not answered:
        response = GUARD.call(sites.response, _add_response, attributes, call, content or found, limit)
    if structure is not None and response is not None and response.hits:
        GUARD.call(sites.response, structure.of_hits, trace_id, response.hits)
    if request.queries is not None or (response is not None and response.hits is not None):
        GUARD.call(sites.searches, _add_searches, attributes, call, request, response, content, limit)
    if endpoint.operation is Operation.STORE:
        attributes.pop(names.RETRIEVAL_TOP_K, None)  # the length of a listing
    _add_outcome(attributes, call, endpoint, sites, response)


def _add_outcome(
    attributes: Attributes, call: Invocation, endpoint: Endpoint, sites: _Sites, response: Response | None
) -> None:
    """Add how the call went: as a stream, over HTTP, and how it failed."""
    if call.stream is not None:
        attributes.update(facts.stream_facts(endpoint.operation, call.stream, call.start_perf_ns))
        whole = endpoint.is_complete
        if (
            whole is not None
            and call.stream.end == "complete"
            and GUARD.call(sites.whole, whole, response) is False
        ):
            attributes[names.STREAM_END] = "error"
            attributes[names.ERROR_TYPE] = CUT_OFF
    if call.resends:
        attributes[names.HTTP_RESEND_COUNT] = call.resends
    if call.headers is not None and endpoint.read_headers is not None:
        headers = GUARD.call(sites.headers, endpoint.read_headers, call.headers)
        if headers is not None:
            attributes.update(headers)
    if call.error is not None:
        attributes[names.ERROR_TYPE] = call.error.type
        if call.error.status_code is not None:
            attributes[names.HTTP_RESPONSE_STATUS_CODE] = call.error.status_code


def _tell(attributes: Attributes, call: Invocation, endpoint: Endpoint) -> tuple[bool, bool]:
    """Add what a usual request and its answer tell; says of which of the two that was done."""
    tell_request, tell_response = endpoint.tell_request, endpoint.tell_response
    asked = tell_request is not None and tell_request(attributes, call.snapshot.arguments)
    result = call.result
    if tell_response is None or result is None or result.__class__ is bytes:
        return asked, False
    if call.error is not None or call.stream is not None:
        return asked, False
    return asked, tell_response(attributes, result)


def _add_request(attributes: Attributes, call: Invocation, content: bool, limit: int) -> Request:
    request = call.snapshot.endpoint.read_request(call.snapshot.arguments, content)
    facts.add_request(attributes, request, limit)
    return request


def _add_structure(attributes: Attributes, call: Invocation, structure: Structure, trace_id: int) -> None:
    # Read once more, with its texts: of that reading nothing but the structure is recorded.
    request = call.snapshot.endpoint.read_request(call.snapshot.arguments, True)
    attributes.update(structure.of_request(trace_id, request))


def _add_response(attributes: Attributes, call: Invocation, content: bool, limit: int) -> Response | None:
    response = _response(call, content)
    if response is not None:
        facts.add_response(attributes, response, limit)
    return response


def _response(call: Invocation, content: bool) -> Response | None:
    if call.stream is not None:
        return call.stream.fold()
    read = call.snapshot.endpoint.read_response
    if call.error is not None and (read is None or call.error.response is not None or call.result is None):
        return call.error.response
    return read(call.result, content) if read is not None and call.result is not None else None


def _add_searches(
    attributes: Attributes,
    call: Invocation,
    request: Request,
    response: Response | None,
    content: bool,
    limit: int,
) -> None:
    found = searches.searches_of(request, response, content, limit)
    if found:
        attributes.update(searches.span_attributes(request, response, found))
        call.searches = found if len(found) > 1 else ()


def light_record(span: LightSpan, policy: ContentPolicy) -> SpanRecord:
    """The record of one of our spans."""
    attributes = span.masked
    if attributes is None:
        attributes = policy.apply(
            read_attributes(span, policy.content_on_spans, policy.max_length, policy.structure)
        )
    else:  # a foreign span's were read when it ended; the service may have set some of its own
        theirs = getattr(span.inner or span.foreign, "attributes", None)
        if theirs is not None:
            known = attributes if span.inner is not None else {}
            attributes = {**known, **policy.apply(theirs)}
    trace_id, span_id, _, flags, state, _ = span.get_span_context()  # by name each is a call
    parent = span.parent
    status, message = span.outcome()
    if status is StatusCode.UNSET and names.ERROR_TYPE in attributes:
        status = StatusCode.ERROR
    name = span.name
    record = SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        name=name if name.__class__ is str and name.isascii() else text_value(name),
        kind=span.kind,
        start_unix_ns=span.start_time,
        end_unix_ns=span.end_time or span.start_time,
        attributes=attributes,
        parent_span_id=None if parent is None else parent.span_id,
        parent_is_remote=parent is not None and parent.is_remote,
        status=status,
        trace_flags=int(flags),
        library=span.library,
        library_version=__version__,
    )
    rare = _rare(span, policy, message, state)
    return replace(record, **rare) if rare else record


def _rare(span: LightSpan, policy: ContentPolicy, message: str | None, state: TraceState) -> dict[str, Any]:
    """What few spans have: most cost nothing here."""
    found: dict[str, Any] = {}
    if state is not NO_STATE and state:
        found["trace_state"] = state.to_header()
    if message is not None:
        found["status_message"] = policy.status_message(message)
    if span.foreign is not None:
        found["foreign"] = True
    events = [_masked_event(event, policy) for event in span.event_buffer] if span.event_buffer else []
    unrecorded = 0
    call = span.call
    if call is not None and call.searches:
        events += [_masked_event(event, policy) for event in query_events(span)]
        unrecorded = max(0, len(call.searches) - searches.MAX_RECORDS)
    if events:
        found["events"] = events
    if span.link_buffer:
        found["links"] = [_masked_link(link, policy) for link in span.link_buffer]
    if span.dropped_attributes or span.dropped_events or unrecorded:
        found["dropped_attributes"] = span.dropped_attributes
        found["dropped_events"] = span.dropped_events + unrecorded
    return found


def read_attributes(
    span: LightSpan, content: bool, limit: int, structure: Structure | None = None
) -> dict[str, Any]:
    """The unmasked attributes of a light span: ours, then what the service set on it."""
    attributes = span.attributes_at_start()
    call = span.call
    if call is not None:
        trace_id = 0 if structure is None else span.get_span_context().trace_id
        add_call(attributes, call, span.library, content, limit, structure, trace_id)
        GUARD.one("prices", PRICES.bill, attributes)
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
