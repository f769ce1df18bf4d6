"""`ExportTraceServiceRequest`s from finished spans, without protobuf objects.

The messages equal those of OpenTelemetry's own encoder (a property test holds us to it) with one
addition: links keep their trace state, for which OTLP has a field.
Source: opentelemetry-proto, trace/v1/trace.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from opentelemetry.trace import SpanKind, StatusCode

from neuronscope import compiled
from neuronscope.signals.records import SpanEvent, SpanLink, SpanRecord
from neuronscope_exporters.otlp.attributes import TWINS
from neuronscope_exporters.otlp.requests import RequestEncoder, counted
from neuronscope_exporters.otlp.wire import delimited, fixed32, fixed64, string, varint

_KINDS: Final = {kind: b"\x30" + bytes([kind.value + 1]) for kind in SpanKind}  # kind = 6
_UNSET: Final = StatusCode.UNSET
# Span.flags: whether the parent was remote is always known (bit 8); bit 9 says that it was.
_PARENT_LOCAL: Final = b"\x85\x01" + fixed32(0x100)  # flags = 16
_PARENT_REMOTE: Final = b"\x85\x01" + fixed32(0x300)
_LINK_FLAGS: Final = b"\x35" + fixed32(0x100)  # Link.flags = 6
_EMPTY_STATUS: Final = b"\x7a\x00"  # status = 15
_USUAL_END: Final = _EMPTY_STATUS + _PARENT_LOCAL
_LOW: Final = (1 << 64) - 1
# Ids are big-endian bytes, times little-endian numbers; each with the tags in front of them.
_identity: Final[Callable[..., bytes]] = struct.Struct(">2sQQ2sQ").pack
_times: Final[Callable[..., bytes]] = struct.Struct("<cQcQ").pack
# The same compiled, which knows members of enums by their places.
_compiled: Final = compiled.find("encode_span")
_compiled_run: Final = compiled.find("encode_spans")
_KINDS_IN_ORDER: Final = tuple(sorted(SpanKind, key=lambda kind: kind.value))
_STATUSES_IN_ORDER: Final = tuple(sorted(StatusCode, key=lambda code: code.value))


class SpanEncoder(RequestEncoder[SpanRecord]):
    """Turns spans into requests; the arguments are `RequestEncoder`'s."""

    def body(self, record: SpanRecord) -> bytes:
        """The body of one `Span` message."""
        if _compiled is not None:
            body: bytes = _compiled(record, _KINDS_IN_ORDER, _STATUSES_IN_ORDER, TWINS)
            return body
        return self.body_in_python(record)

    def run(self, records: list[SpanRecord], start: int, stop: int, room: int) -> tuple[bytes, int, int]:
        """See `RequestEncoder.run`; in Python there is nothing to gain."""
        if _compiled_run is None:
            return b"", 0, 0
        first = records[start]
        found: tuple[bytes, int, int] = _compiled_run(
            records,
            start,
            stop,
            first.library,
            first.library_version,
            self._max_record_bytes,
            room,
            _KINDS_IN_ORDER,
            _STATUSES_IN_ORDER,
            TWINS,
        )
        return found

    def body_in_python(self, record: SpanRecord) -> bytes:
        """The twin of the compiled function."""
        span = record
        # The attributes are field 9.
        attributes, unencodable = self._attributes.encode_in_python(span.attributes, b"\x4a")
        trace_id, parent = span.trace_id, span.parent_span_id
        parts = [
            _identity(b"\x0a\x10", trace_id >> 64, trace_id & _LOW, b"\x12\x08", span.span_id),  # = 1, 2
            b"\x1a" + string(span.trace_state) if span.trace_state else b"",  # trace_state = 3
            b"" if parent is None else b"\x22\x08" + parent.to_bytes(8, "big"),  # parent_span_id = 4
            self._names.get(span.name) or self.name(span.name, b"\x2a"),  # name = 5
            _KINDS[span.kind],
            _times(b"\x39", span.start_unix_ns, b"\x41", span.end_unix_ns),  # = 7, 8
            attributes,
        ]
        if unencodable or span.dropped_attributes:
            parts.append(b"\x50" + counted(span.dropped_attributes + unencodable))  # = 10
        if span.events:
            parts += [b"\x5a" + delimited(self._event(event)) for event in span.events]  # = 11
        if span.dropped_events:
            parts.append(b"\x60" + counted(span.dropped_events))  # = 12
        if span.links:
            parts += [b"\x6a" + delimited(self._link(link)) for link in span.links]  # = 13
        if span.dropped_links:
            parts.append(b"\x70" + counted(span.dropped_links))  # = 14
        if span.status is _UNSET and not span.parent_is_remote:
            parts.append(_USUAL_END)
        else:
            parts.append(_status(span.status, span.status_message))
            parts.append(_PARENT_REMOTE if span.parent_is_remote else _PARENT_LOCAL)
        return b"".join(parts)

    def _event(self, event: SpanEvent) -> bytes:
        attributes, unencodable = self._attributes.encode_in_python(event.attributes, b"\x1a")  # = 3
        dropped = event.dropped_attributes + unencodable
        return b"".join(
            (
                b"\x09" + fixed64(event.time_unix_ns),  # time_unix_nano = 1
                b"\x12" + string(event.name),  # name = 2
                attributes,
                b"\x20" + counted(dropped) if dropped else b"",  # dropped_attributes_count = 4
            )
        )

    def _link(self, link: SpanLink) -> bytes:
        attributes, unencodable = self._attributes.encode_in_python(link.attributes, b"\x22")  # = 4
        dropped = link.dropped_attributes + unencodable
        return b"".join(
            (
                b"\x0a\x10" + link.trace_id.to_bytes(16, "big"),  # trace_id = 1
                b"\x12\x08" + link.span_id.to_bytes(8, "big"),  # span_id = 2
                b"\x1a" + string(link.trace_state) if link.trace_state else b"",  # trace_state = 3
                attributes,
                b"\x28" + counted(dropped) if dropped else b"",  # dropped_attributes_count = 5
                _LINK_FLAGS,
            )
        )


def _status(code: StatusCode, message: str | None) -> bytes:
    """`Span.status` (15); only errors have a description, by OpenTelemetry's rule."""
    if code is _UNSET:
        return _EMPTY_STATUS
    body = b"\x12" + string(message) if message and code is StatusCode.ERROR else b""  # message = 2
    return b"\x7a" + delimited(body + b"\x18" + varint(code.value))  # code = 3
