"""The OTLP exporter: encodes on the worker's thread, sends on its own."""

from __future__ import annotations

from collections.abc import Iterator

from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals.records import Batch, SpanRecord
from neuronscope_exporters.otlp import endpoints
from neuronscope_exporters.otlp.backlog import Limits
from neuronscope_exporters.otlp.encode_metrics import MetricEncoder
from neuronscope_exporters.otlp.encode_spans import SpanEncoder
from neuronscope_exporters.otlp.endpoints import METRICS, TRACES, Endpoint, Signal
from neuronscope_exporters.otlp.grpc_transport import GrpcTransport
from neuronscope_exporters.otlp.requests import Payload
from neuronscope_exporters.otlp.sender import Ledger, Sender
from neuronscope_exporters.otlp.transport import HttpTransport, Transport

_SAMPLED = 1


class OtlpExporter:
    """Spans and metrics over OTLP; layer records stay out of it (they live in `.nsz`).

    Args:
        spans: where spans go, or None.
        metrics: where metrics go, or None.
        limits: bounds of the sender; from the settings by default.
    """

    name = "otlp"

    def __init__(
        self,
        context: ExporterContext,
        *,
        spans: Transport | None,
        metrics: Transport | None,
        limits: Limits | None = None,
    ) -> None:
        self._context = context
        self._foreign = context.settings.otlp_foreign_spans
        self._metric_encoder = MetricEncoder(lambda reason, n: context.count_lost("metric_point", reason, n))
        self._span_encoder: SpanEncoder | None = None
        if spans is not None:
            self._span_encoder = SpanEncoder(
                lambda reason, n: context.count_lost("span", reason, n),
                # The request around a lone span adds its resource and scope.
                max_record_bytes=spans.max_request_bytes - (64 << 10),
            )
        self._sender = Sender(
            spans=spans,
            metrics=metrics,
            collect=self._metric_payloads,
            ledger=Ledger(context.count_lost, context.count_exported),
            limits=limits or limits_from(context.settings),
        )

    def export(self, batch: Batch) -> None:
        """Encode the batch's sampled spans and leave them to the sender.  Never waits for the network."""
        if self._span_encoder is not None:
            wanted = [span for span in batch.spans if self._wants(span)]
            for payload in self._span_encoder.encode(batch.resource, wanted):
                self._sender.submit(payload)

    def flush(self, timeout_s: float) -> bool:
        """Send what is buffered, and the metrics of this moment; True if all arrived in time."""
        return self._sender.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Send what is left within the time given, and stop; the rest is counted as lost."""
        self._sender.shutdown(timeout_s)

    def _wants(self, span: SpanRecord) -> bool:
        return bool(span.trace_flags & _SAMPLED) and (self._foreign or not span.foreign)

    def _metric_payloads(self) -> Iterator[Payload]:
        return self._metric_encoder.encode(self._context.resource, self._context.collect())


def limits_from(settings: Settings) -> Limits:
    """The sender's bounds, as the settings have them."""
    return Limits(timeout_s=settings.otlp_timeout_s, metric_interval_s=settings.metric_export_interval_s)


def create(context: ExporterContext) -> OtlpExporter | None:
    """The exporter that the settings describe; None when they name no collector.

    Raises:
        ConfigError: an endpoint, a header or a certificate can't be used.
        MissingDependencyError: gRPC is asked for and grpcio is not installed.
    """
    spans = _transport(TRACES, context.settings)
    metrics = _transport(METRICS, context.settings)
    if spans is None and metrics is None:
        return None
    return OtlpExporter(context, spans=spans, metrics=metrics)


def _transport(signal: Signal, settings: Settings) -> Transport | None:
    endpoint: Endpoint | None = endpoints.find(signal, settings)
    if endpoint is None:
        return None
    headers = endpoints.headers(settings)
    compress = settings.otlp_compression == "gzip"
    certificate = settings.otlp_certificate
    if settings.otlp_protocol == "grpc":
        return GrpcTransport(endpoint, signal, headers, compress=compress, certificate=certificate)
    return HttpTransport(endpoint, headers, compress=compress, certificate=certificate)
