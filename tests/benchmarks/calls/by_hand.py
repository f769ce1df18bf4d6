"""The same telemetry written by hand with the OpenTelemetry SDK, as lean as its API allows: the peer of our
whole pipeline.  One span with the attributes that ours has, three histogram records, W3C context."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from openai.resources.chat.completions import Completions
from opentelemetry import context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from tests.benchmarks.calls.peers import Counter


class CountingSdkExporter(SpanExporter):
    """Counts spans, and keeps the last ones."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.last: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self._counter.spans += len(spans)
        self._counter.attributes = len(spans[-1].attributes or ())
        self.last = [*self.last, *spans][-512:]
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def set_up(exporter: SpanExporter) -> TracerProvider:
    """Global providers with a batch processor, as an application sets them up."""
    resource = Resource.create({"service.name": "bench"})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider(resource=resource, metric_readers=[InMemoryMetricReader()]))
    return provider


def switch_on() -> None:
    """Wrap `Completions.create`."""
    owner: Any = Completions
    owner.create = _wrapper(owner.create)


def _wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    tracer, meter = trace.get_tracer("by-hand"), metrics.get_meter("by-hand")
    duration = meter.create_histogram("gen_ai.client.operation.duration", unit="s")
    tokens = meter.create_histogram("gen_ai.client.token.usage", unit="{token}")
    # The address costs the SDK 10 µs to find; nobody would look it up at every call.
    address: dict[int, tuple[str, int]] = {}

    def create(self: Any, **kwargs: Any) -> Any:
        client = self._client
        host, port = address.get(id(client)) or address.setdefault(
            id(client), (client.base_url.host, client.base_url.port or 80)
        )
        attributes = _request_attributes(kwargs, host, port)
        start = time.perf_counter()
        span = tracer.start_span(f"chat {kwargs['model']}", kind=SpanKind.CLIENT, attributes=attributes)
        token = context.attach(trace.set_span_in_context(span))
        try:
            answer = original(self, **kwargs)
        finally:
            context.detach(token)
        response = _response_attributes(answer)
        span.set_attributes(response)
        span.end()
        labels = {
            **{key: attributes[key] for key in _LABELS},
            "gen_ai.response.model": response["gen_ai.response.model"],
        }
        duration.record(time.perf_counter() - start, labels)
        tokens.record(response["gen_ai.usage.input_tokens"], {**labels, "gen_ai.token.type": "input"})
        tokens.record(response["gen_ai.usage.output_tokens"], {**labels, "gen_ai.token.type": "output"})
        return answer

    return create


_LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "server.address",
    "server.port",
)


def _request_attributes(kwargs: dict[str, Any], host: str, port: int) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": kwargs["model"],
        "server.address": host,
        "server.port": port,
        "gen_ai.request.temperature": kwargs["temperature"],
        "gen_ai.request.max_tokens": kwargs["max_tokens"],
        "input_message_count": len(kwargs["messages"]),
    }


def _response_attributes(answer: Any) -> dict[str, Any]:
    usage = answer.usage
    return {
        "gen_ai.response.id": answer.id,
        "gen_ai.response.model": answer.model,
        "gen_ai.response.finish_reasons": [choice.finish_reason for choice in answer.choices],
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.completion_tokens_details.reasoning_tokens,
        "openai.response.service_tier": answer.service_tier,
        "openai.response.system_fingerprint": answer.system_fingerprint,
        "openai.api.type": "chat_completions",
    }
