"""For `neuronscope doctor`: does a collector take what is sent to it?  One probe for each signal."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.trace import SpanKind

from neuronscope.exceptions import NeuronscopeError
from neuronscope.exporters import Examination, ExporterContext
from neuronscope.signals.records import LogRecord, SpanRecord
from neuronscope_exporters.otlp import endpoints
from neuronscope_exporters.otlp.encode_logs import LogEncoder
from neuronscope_exporters.otlp.encode_metrics import MetricEncoder
from neuronscope_exporters.otlp.encode_spans import SpanEncoder
from neuronscope_exporters.otlp.endpoints import LOGS, METRICS, TRACES, Signal
from neuronscope_exporters.otlp.exporter import transport_for
from neuronscope_exporters.otlp.requests import Payload
from neuronscope_exporters.otlp.transport import Reply

TIMEOUT_S: Final = 5.0
NAME: Final = "neuronscope.doctor"
_STATUS: Final = {
    "http_401": "The credentials are missing or wrong: see OTEL_EXPORTER_OTLP_HEADERS.",
    "http_403": "The credentials do not allow this: see OTEL_EXPORTER_OTLP_HEADERS.",
    "http_404": "Something else listens there, or the path is wrong: OTEL_EXPORTER_OTLP_ENDPOINT is without "
    "/v1/traces, which is added; the endpoint of one signal is taken as it is.",
    "http_405": "That is no OTLP receiver: does the port belong to a web page?",
    "http_415": "The receiver wants another form: set OTEL_EXPORTER_OTLP_PROTOCOL=grpc, or use its HTTP "
    "port.",
    "grpc_unauthenticated": "The credentials are missing or wrong: see OTEL_EXPORTER_OTLP_HEADERS.",
    "grpc_unimplemented": "That server takes no OTLP of this signal: is it the collector's port (4317)?",
}


def examine(context: ExporterContext) -> Iterator[Examination]:
    """Send a span, the metrics of this moment and a log record, each where its kind goes."""
    for signal in (TRACES, METRICS, LOGS):
        try:
            found = _examine(signal, context)
        except NeuronscopeError as error:
            yield Examination(signal.name, "", ok=False, detail=str(error), advice="Correct the setting.")
            continue
        if found is not None:
            yield found


def _examine(signal: Signal, context: ExporterContext) -> Examination | None:
    transport = transport_for(signal, context.settings)
    if transport is None:
        return None
    trace_id = secrets.randbits(128)
    try:
        replies = [transport.send(payload.body, TIMEOUT_S) for payload in _probe(signal, context, trace_id)]
    finally:
        transport.close()
    if not replies:
        return Examination(signal.name, transport.target, ok=True, detail="nothing to send yet")
    reply = next((reply for reply in replies if not reply.delivered or reply.rejected), replies[0])
    if reply.delivered and not reply.rejected:
        told = f"; look for trace {trace_id:032x} in the back end" if signal is TRACES else ""
        return Examination(
            signal.name,
            transport.target,
            ok=True,
            detail=f"the receiver took it{told}",
            trace_id=f"{trace_id:032x}" if signal is TRACES else "",
        )
    reason = f"{reply.reason} ({reply.detail})" if reply.detail else reply.reason or "it was rejected"
    grpc = endpoints.protocol(signal, context.settings) == "grpc"
    return Examination(
        signal.name, transport.target, ok=False, detail=reason, advice=_advice(reply, grpc=grpc)
    )


def _advice(reply: Reply, *, grpc: bool) -> str:
    if reply.rejected:
        return "The receiver took the request and rejected what is in it; its log says why."
    if reply.reason in _STATUS:
        return _STATUS[reply.reason]
    if reply.reason == "collector_timeout":
        return "Something accepts the connection and does not answer: a firewall, or another protocol."
    if reply.unreachable:
        other = "http/protobuf (port 4318)" if grpc else "grpc (port 4317)"
        return (
            "Nobody listens there. Is the collector running, and is this address its address from here (in a "
            f"container, localhost is the container itself)? If it speaks {other}, set "
            "OTEL_EXPORTER_OTLP_PROTOCOL."
        )
    if reply.retryable:
        return "The receiver is there and cannot take more at the moment; we would try again."
    return "See the receiver's log."


def _probe(signal: Signal, context: ExporterContext, trace_id: int) -> Iterator[Payload]:
    now = time.time_ns()

    def lost(_reason: str, _n: int) -> None:
        """A probe is no loss."""

    library: dict[str, Any] = {"library": NAME}
    if signal is TRACES:
        span = SpanRecord(
            trace_id,
            secrets.randbits(64),
            NAME,
            SpanKind.INTERNAL,
            now - 1_000_000,
            now,
            attributes={},
            **library,
        )
        return SpanEncoder(lost).encode(context.resource, [span])
    if signal is LOGS:
        log = LogRecord(now, now, body="neuronscope doctor was here", trace_id=trace_id, **library)
        return LogEncoder(lost).encode(context.resource, [log])
    return MetricEncoder(lost).encode(context.resource, context.collect())
