"""OTLP: spans, metrics and logs to any OpenTelemetry collector, over HTTP or gRPC.

Bytes are written by our own encoder (`encode_spans`, `encode_metrics`, `encode_logs`), carried by one thread
(`sender`), over one connection a signal (`transport`, `grpc_transport`), to where the standard ``OTEL_*``
variables point (`endpoints`).
"""

from neuronscope_exporters.otlp.exporter import OtlpExporter, create

__all__ = ["OtlpExporter", "create"]
