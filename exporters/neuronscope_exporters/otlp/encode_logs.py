"""`ExportLogsServiceRequest`s from log records, without protobuf objects.

The messages equal those of OpenTelemetry's own encoder (a property test holds us to it).
Source: opentelemetry-proto, logs/v1/logs.proto.
"""

from __future__ import annotations

from neuronscope.signals.records import LogRecord
from neuronscope_exporters.otlp.attributes import any_value
from neuronscope_exporters.otlp.requests import RequestEncoder, counted
from neuronscope_exporters.otlp.wire import delimited, fixed32, fixed64, string, varint


class LogEncoder(RequestEncoder[LogRecord]):
    """Turns log records into requests; the arguments are `RequestEncoder`'s."""

    def body(self, record: LogRecord) -> bytes:
        """The body of one `LogRecord` message."""
        attributes, unencodable = self._attributes.encode(record.attributes, b"\x32")  # attributes = 6
        parts = [b"\x09", fixed64(record.time_unix_ns)]  # time_unix_nano = 1
        if record.severity:
            parts.append(b"\x10" + varint(record.severity))  # severity_number = 2
        parts += (
            b"\x1a" + string(record.severity_text),  # severity_text = 3
            b"\x2a" + delimited(any_value(record.body)),  # body = 5
            attributes,
        )
        if unencodable or record.dropped_attributes:
            parts.append(b"\x38" + counted(record.dropped_attributes + unencodable))  # = 7
        parts.append(b"\x45" + fixed32(record.trace_flags))  # flags = 8
        if record.trace_id:
            parts.append(b"\x4a\x10" + record.trace_id.to_bytes(16, "big"))  # trace_id = 9
        if record.span_id:
            parts.append(b"\x52\x08" + record.span_id.to_bytes(8, "big"))  # span_id = 10
        parts.append(b"\x59" + fixed64(record.observed_unix_ns))  # observed_time_unix_nano = 11
        if record.event_name:
            parts.append(self.name(record.event_name, b"\x62"))  # event_name = 12
        return b"".join(parts)
