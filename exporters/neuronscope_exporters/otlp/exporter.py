"""The OTLP exporter: encodes on the worker's thread, sends on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals.records import Batch
from neuronscope_exporters.otlp import endpoints
from neuronscope_exporters.otlp.backlog import Limits
from neuronscope_exporters.otlp.encode_logs import LogEncoder
from neuronscope_exporters.otlp.encode_metrics import MetricEncoder
from neuronscope_exporters.otlp.encode_spans import SpanEncoder
from neuronscope_exporters.otlp.endpoints import LOGS, METRICS, TRACES, Endpoint, Signal
from neuronscope_exporters.otlp.grpc_transport import GrpcTransport
from neuronscope_exporters.otlp.requests import MAX_BYTES, Payload
from neuronscope_exporters.otlp.sender import Ledger, Sender
from neuronscope_exporters.otlp.transport import HttpTransport, Transport

_SAMPLED = 1


class OtlpExporter:
    """Spans, metrics and logs over OTLP; layer records stay out of it (they live in `.nsz`).

    Args:
        spans: where spans go, or None.
        metrics: where metrics go, or None.
        logs: where log records go, or None.
        limits: bounds of the sender; from the settings by default.
    """

    name = "otlp"

    def __init__(
        self,
        context: ExporterContext,
        *,
        spans: Transport | None = None,
        metrics: Transport | None = None,
        logs: Transport | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._context = context
        self._foreign = context.settings.otlp_foreign_spans
        self._span_encoder = SpanEncoder(self._lost(TRACES), max_record_bytes=_largest(spans))
        self._log_encoder = LogEncoder(self._lost(LOGS), max_record_bytes=_largest(logs))
        self._metric_encoder = MetricEncoder(self._lost(METRICS))
        self._spans, self._logs = spans is not None, logs is not None
        transports = {TRACES.item: spans, LOGS.item: logs, METRICS.item: metrics}
        self._sender = Sender(
            {item: transport for item, transport in transports.items() if transport is not None},
            collect=self._metric_payloads,
            ledger=Ledger(context.count_lost, context.count_exported),
            limits=limits or limits_from(context.settings),
        )

    def export(self, batch: Batch) -> None:
        """Encode the batch's sampled spans, and its logs, and leave them to the sender.

        Never waits for the network.
        """
        if self._spans:
            foreign = self._foreign
            wanted = [
                span for span in batch.spans if span.trace_flags & _SAMPLED and (foreign or not span.foreign)
            ]
            for payload in self._span_encoder.encode(batch.resource, wanted):
                self._sender.submit(TRACES.item, payload)
        if self._logs:
            for payload in self._log_encoder.encode(batch.resource, batch.logs):
                self._sender.submit(LOGS.item, payload)

    def flush(self, timeout_s: float) -> bool:
        """Send what is buffered, and the metrics of this moment; True if all arrived in time."""
        return self._sender.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Send what is left within the time given, and stop; the rest is counted as lost."""
        self._sender.shutdown(timeout_s)

    def _lost(self, signal: Signal) -> Callable[[str, int], None]:
        return partial(self._context.count_lost, signal.item)

    def _metric_payloads(self) -> Iterator[Payload]:
        return self._metric_encoder.encode(self._context.resource, self._context.collect())


def limits_from(settings: Settings) -> Limits:
    """The sender's bounds, as the settings have them."""
    return Limits(
        timeout_s=settings.otlp_timeout_s,
        timeouts=endpoints.timeouts(settings),
        metric_interval_s=settings.metric_export_interval_s,
    )


def _largest(transport: Transport | None) -> int:
    """The largest record that a request of its own can hold: around it are its resource and scope."""
    return MAX_BYTES if transport is None else transport.max_request_bytes - (64 << 10)


def create(context: ExporterContext) -> OtlpExporter | None:
    """The exporter that the settings describe; None when they name no collector.

    Raises:
        ConfigError: an endpoint, a header or a certificate can't be used.
        MissingDependencyError: gRPC is asked for and grpcio is not installed.
    """
    spans, metrics, logs = (transport_for(signal, context.settings) for signal in (TRACES, METRICS, LOGS))
    if spans is metrics is logs is None:
        return None
    return OtlpExporter(context, spans=spans, metrics=metrics, logs=logs)


def transport_for(signal: Signal, settings: Settings) -> Transport | None:
    """The transport of a signal; None if it is not exported.

    Raises:
        ConfigError: the endpoint, a header or the certificate cannot be used.
        MissingDependencyError: gRPC is asked for and grpcio is not installed.
    """
    endpoint: Endpoint | None = endpoints.find(signal, settings)
    if endpoint is None:
        return None
    headers = endpoints.headers(signal, settings)
    compress = settings.otlp_compression == "gzip"
    certificate = settings.otlp_certificate
    if endpoints.protocol(signal, settings) == "grpc":
        return GrpcTransport(endpoint, signal, headers, compress=compress, certificate=certificate)
    return HttpTransport(endpoint, headers, compress=compress, certificate=certificate)
