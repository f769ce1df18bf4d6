"""`ExportTraceServiceRequest`s from finished spans, without protobuf objects.

The messages equal those of OpenTelemetry's own encoder (a property test holds us to it) with one
addition: links keep their trace state, for which OTLP has a field.
Source: opentelemetry-proto, trace/v1/trace.proto.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import SpanKind, StatusCode

from neuronscope._version import __version__
from neuronscope.signals.records import Attributes, SpanEvent, SpanLink, SpanRecord
from neuronscope_exporters.otlp.attributes import AttributeEncoder
from neuronscope_exporters.otlp.wire import KNOWN, VARINTS, delimited, fixed32, fixed64, string, varint

MAX_SPANS: Final = 512
# Collectors' gRPC servers refuse messages above 4 MiB.
MAX_BYTES: Final = 3_500 * 1024
# Building a request holds the GIL: a service's thread that wakes meanwhile waits for at most this many.
SLICE: Final = 16
_MAX_NAMES: Final = 1024
_MAX_NAME_LENGTH: Final = 256
_MAX_UINT32: Final = (1 << 32) - 1

_KINDS: Final = {kind: b"\x30" + bytes([kind.value + 1]) for kind in SpanKind}  # kind = 6
_UNSET: Final = StatusCode.UNSET
# Span.flags: whether the parent was remote is always known (bit 8); bit 9 says that it was.
_PARENT_LOCAL: Final = b"\x85\x01" + fixed32(0x100)  # flags = 16
_PARENT_REMOTE: Final = b"\x85\x01" + fixed32(0x300)
_LINK_FLAGS: Final = b"\x35" + fixed32(0x100)  # Link.flags = 6
_EMPTY_STATUS: Final = b"\x7a\x00"  # status = 15


@dataclass(frozen=True, slots=True)
class Payload:
    """An encoded request and the number of items in it (spans, or metric points)."""

    body: bytes
    count: int


class SpanEncoder:
    """Turns spans into requests of bounded size.  Safe to use from several threads.

    Args:
        lost: ``lost(reason, n)`` is told of spans that can't be encoded or are too large.
        max_bytes: size that a request of several spans stays below.
        max_span_bytes: a span larger than this is not sent at all.
        pause: called between slices, so that other threads get the GIL.
    """

    def __init__(
        self,
        lost: Callable[[str, int], None],
        *,
        max_spans: int = MAX_SPANS,
        max_bytes: int = MAX_BYTES,
        max_span_bytes: int = MAX_BYTES,
        pause: Callable[[], None] = lambda: time.sleep(0),
    ) -> None:
        self._lost = lost
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._max_span_bytes = max_span_bytes
        self._pause = pause
        self._attributes = AttributeEncoder()
        self._names: dict[str, bytes] = {}
        self._scopes: dict[tuple[str, str], bytes] = {}
        self._resource: tuple[Attributes, bytes] = ({}, b"\x0a\x00")

    def encode(self, resource: Attributes, spans: Iterable[SpanRecord]) -> Iterator[Payload]:
        """The spans, in order, in as few requests as the limits allow.

        A span that is too large for company goes alone; one that is too large or broken is counted as
        lost, and the others go.
        """
        head = self._encoded_resource(resource)
        scopes: dict[tuple[str, str], list[bytes]] = {}
        library = version = members = None
        size, count = len(head), 0
        for index, span in enumerate(spans, 1):
            if index % SLICE == 0:
                self._pause()
            try:
                encoded = self.span(span)
            except (OverflowError, TypeError, AttributeError, KeyError, struct.error):
                # An id, a time or a name that is none: its neighbours must not suffer.
                self._lost("unencodable", 1)
                continue
            length = len(encoded)
            if length > self._max_span_bytes:
                self._lost("too_large", 1)
                continue
            if count and (count >= self._max_spans or size + length + 512 > self._max_bytes):
                yield self._request(head, scopes, count)
                scopes, size, count, members = {}, len(head), 0, None
            if members is None or span.library is not library or span.library_version is not version:
                library, version = span.library, span.library_version
                members = scopes.setdefault((library, version), [])
                size += len(self._scope((library, version)))
            members.append(b"\x12" + (VARINTS[length] if length < KNOWN else varint(length)) + encoded)
            size += length + 6
            count += 1
        if count:
            yield self._request(head, scopes, count)

    def span(self, span: SpanRecord) -> bytes:
        """The body of one `Span` message."""
        attributes, unencodable = self._attributes.encode(span.attributes, b"\x4a")  # attributes = 9
        parts = [
            b"\x0a\x10",  # trace_id = 1
            span.trace_id.to_bytes(16, "big"),
            b"\x12\x08",  # span_id = 2
            span.span_id.to_bytes(8, "big"),
        ]
        if span.trace_state:
            parts += (b"\x1a", string(span.trace_state))  # trace_state = 3
        if span.parent_span_id is not None:
            parts += (b"\x22\x08", span.parent_span_id.to_bytes(8, "big"))  # parent_span_id = 4
        parts += (
            self._names.get(span.name) or self._name(span.name),
            _KINDS[span.kind],
            b"\x39",  # start_time_unix_nano = 7
            fixed64(span.start_unix_ns),
            b"\x41",  # end_time_unix_nano = 8
            fixed64(span.end_unix_ns),
            attributes,
        )
        if unencodable or span.dropped_attributes:
            parts.append(b"\x50" + _count(span.dropped_attributes + unencodable))  # = 10
        if span.events:
            parts += [b"\x5a" + delimited(self._event(event)) for event in span.events]  # = 11
        if span.dropped_events:
            parts.append(b"\x60" + _count(span.dropped_events))  # = 12
        if span.links:
            parts += [b"\x6a" + delimited(self._link(link)) for link in span.links]  # = 13
        if span.dropped_links:
            parts.append(b"\x70" + _count(span.dropped_links))  # = 14
        unset = span.status is _UNSET
        parts.append(_EMPTY_STATUS if unset else _status(span.status, span.status_message))
        parts.append(_PARENT_REMOTE if span.parent_is_remote else _PARENT_LOCAL)
        return b"".join(parts)

    def _event(self, event: SpanEvent) -> bytes:
        attributes, unencodable = self._attributes.encode(event.attributes, b"\x1a")  # = 3
        dropped = event.dropped_attributes + unencodable
        return b"".join(
            (
                b"\x09" + fixed64(event.time_unix_ns),  # time_unix_nano = 1
                b"\x12" + string(event.name),  # name = 2
                attributes,
                b"\x20" + _count(dropped) if dropped else b"",  # dropped_attributes_count = 4
            )
        )

    def _link(self, link: SpanLink) -> bytes:
        attributes, unencodable = self._attributes.encode(link.attributes, b"\x22")  # = 4
        dropped = link.dropped_attributes + unencodable
        return b"".join(
            (
                b"\x0a\x10" + link.trace_id.to_bytes(16, "big"),  # trace_id = 1
                b"\x12\x08" + link.span_id.to_bytes(8, "big"),  # span_id = 2
                b"\x1a" + string(link.trace_state) if link.trace_state else b"",  # trace_state = 3
                attributes,
                b"\x28" + _count(dropped) if dropped else b"",  # dropped_attributes_count = 5
                _LINK_FLAGS,
            )
        )

    def _name(self, name: str) -> bytes:
        encoded = b"\x2a" + string(name)  # name = 5
        if len(self._names) < _MAX_NAMES and len(name) <= _MAX_NAME_LENGTH:
            self._names[name] = encoded
        return encoded

    def _encoded_resource(self, resource: Attributes) -> bytes:
        """`ResourceSpans.resource`; a process has one, so the last one is kept."""
        known, encoded = self._resource
        if known is not resource:
            encoded = encode_resource(resource)
            self._resource = (resource, encoded)
        return encoded

    def _scope(self, key: tuple[str, str]) -> bytes:
        encoded = self._scopes.get(key)
        if encoded is None:
            encoded = encode_scope(*key)
            if len(self._scopes) < _MAX_NAMES:
                self._scopes[key] = encoded
        return encoded

    def _request(self, head: bytes, scopes: dict[tuple[str, str], list[bytes]], count: int) -> Payload:
        body = head + b"".join(
            [b"\x12" + delimited(self._scope(key) + b"".join(spans)) for key, spans in scopes.items()]
        )  # ResourceSpans.scope_spans = 2
        return Payload(b"\x0a" + delimited(body), count)  # resource_spans = 1


def encode_resource(resource: Attributes) -> bytes:
    """The `resource` field (1) of `ResourceSpans` and `ResourceMetrics`."""
    attributes, unencodable = AttributeEncoder().encode(resource, b"\x0a")  # attributes = 1
    if unencodable:
        attributes += b"\x10" + _count(unencodable)  # dropped_attributes_count = 2
    return b"\x0a" + delimited(attributes)


def encode_scope(library: str, version: str = "") -> bytes:
    """The `scope` field (1) of `ScopeSpans` and `ScopeMetrics`; our own libraries have our version."""
    if not version and library.partition(".")[0] == "neuronscope":
        version = __version__
    body = b"\x0a" + string(library)  # name = 1
    if version:
        body += b"\x12" + string(version)  # version = 2
    return b"\x0a" + delimited(body)


def _status(code: StatusCode, message: str | None) -> bytes:
    """`Span.status` (15); only errors have a description, by OpenTelemetry's rule."""
    body = b"\x12" + string(message) if message and code is StatusCode.ERROR else b""  # message = 2
    return b"\x7a" + delimited(body + b"\x18" + varint(code.value))  # code = 3


def _count(number: int) -> bytes:
    return varint(min(number, _MAX_UINT32))
