"""The peers: who else instruments these clients, how each is installed, and how it is switched on.

`PEERS` is read by the benchmark; the functions run in the peer's own environment, so every import of
a peer stands inside its function.  Each is switched on as its documentation says for the most telemetry
it gives by default: spans, metrics and logs through the SDK's batch processors into an exporter that only
counts.  Where content cannot be switched off, or is not content in our sense, `inequality` says so.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.calls.openai_client import Seam

SDK = ("opentelemetry-sdk==1.45.2",)
OPENAI = ("openai==3.57.0",)
QDRANT = ("qdrant-client==1.20.0",)
ANTHROPIC = ("anthropic==2.14.0",)
GOOGLE = ("google-genai==3.6.1",)
COHERE = ("cohere==7.3.1",)


@dataclass(slots=True)
class Counter:
    """How many spans came out of a peer, and a look at the last one."""

    spans: int = 0
    attributes: int = 0
    flush: Callable[[], object] = field(default=lambda: None)


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer.

    Attributes:
        title: its name in reports.
        requirements: what its environment holds.
        alone: further packages, installed without what they depend on.
        distribution: the package whose version is reported.
        openai: switches it on for the openai client; ``(content) -> Counter``.
        qdrant: the same for the Qdrant client.
        others: the same for further SDKs, by the name of our adapter.
        seam: the function of the openai SDK that it wraps.
        inequality: where its work is not equal to the others'.
    """

    title: str
    requirements: tuple[str, ...]
    distribution: str
    alone: tuple[str, ...] = ()
    openai: Callable[[bool], Counter] | None = None
    qdrant: Callable[[bool], Counter] | None = None
    others: Mapping[str, Callable[[bool], Counter]] = field(default_factory=dict[str, Any])
    seam: Seam = "create"
    inequality: str = ""


def _module(name: str) -> Any:
    return importlib.import_module(name)


def counting_exporter(counter: Counter) -> Any:
    """An SDK span exporter that counts what it is given."""
    export = _module("opentelemetry.sdk.trace.export")

    class Counting(export.SpanExporter):  # type: ignore[misc, name-defined]  # imported as Any
        def export(self, spans: Any) -> Any:
            counter.spans += len(spans)
            counter.attributes = len(spans[-1].attributes or ())
            return export.SpanExportResult.SUCCESS

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    return Counting()


def otel_providers(counter: Counter) -> dict[str, Any]:
    """Global tracer, meter and logger providers with batch processors, as an application sets them up."""
    trace, metrics = _module("opentelemetry.trace"), _module("opentelemetry.metrics")
    sdk, export = _module("opentelemetry.sdk.trace"), _module("opentelemetry.sdk.trace.export")
    sdk_metrics, metrics_export = (
        _module("opentelemetry.sdk.metrics"),
        _module("opentelemetry.sdk.metrics.export"),
    )
    logs, sdk_logs = _module("opentelemetry._logs"), _module("opentelemetry.sdk._logs")
    logs_export = _module("opentelemetry.sdk._logs.export")
    resource = _module("opentelemetry.sdk.resources").Resource.create({"service.name": "bench"})
    tracer_provider = sdk.TracerProvider(resource=resource)
    tracer_provider.add_span_processor(export.BatchSpanProcessor(counting_exporter(counter)))
    meter_provider = sdk_metrics.MeterProvider(
        resource=resource, metric_readers=[metrics_export.InMemoryMetricReader()]
    )
    logger_provider = sdk_logs.LoggerProvider(resource=resource)
    logger_provider.add_log_record_processor(
        logs_export.BatchLogRecordProcessor(logs_export.InMemoryLogRecordExporter())
    )
    trace.set_tracer_provider(tracer_provider)
    metrics.set_meter_provider(meter_provider)
    logs.set_logger_provider(logger_provider)
    counter.flush = tracer_provider.force_flush
    return {
        "tracer_provider": tracer_provider,
        "meter_provider": meter_provider,
        "logger_provider": logger_provider,
    }


def instrument(target: str, *, logs: bool = True) -> Counter:
    """Switch an OpenTelemetry instrumentor on: ``"module:Class"``."""
    counter = Counter()
    providers = otel_providers(counter)
    if not logs:
        providers.pop("logger_provider")
    module, _, name = target.partition(":")
    getattr(_module(module), name)().instrument(skip_dep_check=True, **providers)
    return counter


def _openai_v2(content: bool) -> Counter:
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = (
        "span_only" if content else "no_content"
    )
    return instrument("opentelemetry.instrumentation.openai_v2:OpenAIInstrumentor")


def _genai(content: bool) -> Counter:
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = (
        "span_only" if content else "no_content"
    )
    return instrument("opentelemetry.instrumentation.genai.openai:OpenAIInstrumentor")


def _traceloop_openai(content: bool) -> Counter:
    os.environ["TRACELOOP_TRACE_CONTENT"] = "true" if content else "false"
    return instrument("opentelemetry.instrumentation.openai:OpenAIInstrumentor", logs=False)


def _traceloop_qdrant(content: bool) -> Counter:
    os.environ["TRACELOOP_TRACE_CONTENT"] = "true" if content else "false"
    return instrument("opentelemetry.instrumentation.qdrant:QdrantInstrumentor", logs=False)


def _openinference(content: bool) -> Counter:
    if not content:
        for name in ("INPUTS", "OUTPUTS", "EMBEDDING_VECTORS", "EMBEDDINGS_VECTORS"):
            os.environ[f"OPENINFERENCE_HIDE_{name}"] = "true"
    return instrument("openinference.instrumentation.openai:OpenAIInstrumentor", logs=False)


def openlit(content: bool) -> Counter:
    """Switch OpenLIT on, for everything that it finds."""
    counter = Counter()
    otel_providers(counter)
    _module("openlit").init(
        capture_message_content=content, disable_metrics=False, application_name="bench", environment="bench"
    )
    return counter


def _logfire(content: bool) -> Counter:
    counter = Counter()
    logfire = _module("logfire")
    processor = _module("opentelemetry.sdk.trace.export").BatchSpanProcessor(counting_exporter(counter))
    logfire.configure(
        send_to_logfire=False,
        console=False,
        inspect_arguments=False,
        additional_span_processors=[processor],
        **({} if content else {"scrubbing": False}),
    )
    logfire.instrument_openai()
    counter.flush = logfire.force_flush
    return counter


def _langfuse(content: bool) -> Counter:
    counter = Counter()

    def mask(**_: Any) -> str:
        return "<masked>"

    client = _module("langfuse").Langfuse(
        public_key="pk-lf-bench",
        secret_key="sk-lf-bench",
        base_url="http://127.0.0.1:9",
        span_exporter=counting_exporter(counter),
        **({} if content else {"mask": mask}),
    )
    _module("langfuse.openai")
    counter.flush = client.flush
    return counter


def _ddtrace(content: bool) -> Counter:
    os.environ["DD_INSTRUMENTATION_TELEMETRY_ENABLED"] = "false"
    os.environ["DD_REMOTE_CONFIGURATION_ENABLED"] = "false"
    counter = Counter()
    ddtrace, tracer = _module("ddtrace"), _module("ddtrace.trace").tracer

    def drop(event: Any) -> None:
        """Where its events would be encoded and sent."""

    if content:
        observability = _module("ddtrace.llmobs").LLMObs
        observability.enable(
            ml_app="bench", api_key="x", site="localhost", agentless_enabled=True, integrations_enabled=False
        )
        observability._instance._llmobs_span_writer.enqueue = drop

    def write(spans: Any = None) -> None:
        counter.spans += len(spans or ())
        counter.attributes = len(spans[-1].get_tags()) if spans else 0

    tracer._span_aggregator.writer.write = write
    ddtrace.patch(openai=True)
    return counter


def _other(module: str, instrumentor: str, *, logs: bool, **environment: str) -> Callable[[bool], Counter]:
    """An instrumentor of a further SDK, with content off."""

    def switch_on(content: bool) -> Counter:
        assert not content
        os.environ.update(environment)
        return instrument(f"{module}:{instrumentor}", logs=logs)

    return switch_on


_SEMCONV: dict[str, str] = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "no_content",
}
_HIDDEN: dict[str, str] = {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"}
_TRACELOOP: dict[str, str] = {"TRACELOOP_TRACE_CONTENT": "false"}

PEERS: dict[str, Peer] = {
    "openai-v2": Peer(
        "OpenTelemetry openai-v2",
        # A plain install does not import: httpx is undeclared, and util-genai 1.x lost what it uses.
        (
            *OPENAI,
            *SDK,
            "opentelemetry-instrumentation-openai-v2==2.4b0",
            "opentelemetry-util-genai==0.4b0",
            "httpx",
        ),
        "opentelemetry-instrumentation-openai-v2",
        openai=_openai_v2,
    ),
    "genai": Peer(
        "OpenTelemetry genai-openai",
        (*OPENAI, *SDK, "opentelemetry-instrumentation-genai-openai==1.3b0"),
        "opentelemetry-instrumentation-genai-openai",
        openai=_genai,
    ),
    "openinference": Peer(
        "OpenInference",
        (*OPENAI, *SDK, "openinference-instrumentation-openai==0.1.66"),
        "openinference-instrumentation-openai",
        openai=_openinference,
        seam="request",
        inequality="with content on it records whole embedding vectors",
    ),
    "traceloop": Peer(
        "Traceloop (OpenLLMetry)",
        (
            *OPENAI,
            *QDRANT,
            *SDK,
            "opentelemetry-instrumentation-openai==0.62.4",
            "opentelemetry-instrumentation-qdrant==0.62.4",
        ),
        "opentelemetry-instrumentation-openai",
        openai=_traceloop_openai,
        qdrant=_traceloop_qdrant,
        inequality="records an event for each stream chunk; its Qdrant span has three attributes, no scores",
    ),
    "openlit": Peer(
        "OpenLIT",
        (
            "openai==2.54.0",
            *QDRANT,
            *SDK,
            "opentelemetry-instrumentation==0.66b2",
            "opentelemetry-exporter-otlp==1.45.2",
            "requests",
            "schedule",
            "xmltodict",
        ),
        "openlit",
        # Its full list of dependencies cannot be installed any more: parts of it pin others' versions apart.
        alone=("openlit==1.44.0",),
        openai=openlit,
        qdrant=openlit,
        inequality="pins an older openai (2.54.0)",
    ),
    "logfire": Peer(
        "Logfire",
        (*OPENAI, *SDK, "logfire==5.4.0"),
        "logfire",
        openai=_logfire,
        seam="request",
        inequality="cannot leave content out: “content off” only switches its scrubbing off",
    ),
    "langfuse": Peer(
        "Langfuse",
        (*OPENAI, *SDK, "langfuse==5.0.4"),
        "langfuse",
        openai=_langfuse,
        inequality="records no metrics; “content off” masks what it has read",
    ),
    "ddtrace": Peer(
        "Datadog ddtrace",
        (*OPENAI, "ddtrace==4.16.0"),
        "ddtrace",
        openai=_ddtrace,
        inequality="not OpenTelemetry; content on means LLM Observability on; what it makes is dropped "
        "before its own encoding",
    ),
    # The same three for further SDKs, in environments of their own.
    "genai-others": Peer(
        "OpenTelemetry genai-anthropic, google-genai",
        (
            *ANTHROPIC,
            *GOOGLE,
            *SDK,
            "opentelemetry-instrumentation-genai-anthropic==1.3b0",
            "opentelemetry-instrumentation-google-genai==1.3b0",
        ),
        "opentelemetry-instrumentation-genai-anthropic",
        others={
            "anthropic": _other(
                "opentelemetry.instrumentation.genai.anthropic",
                "AnthropicInstrumentor",
                logs=True,
                **_SEMCONV,
            ),
            "google_genai": _other(
                "opentelemetry.instrumentation.google_genai",
                "GoogleGenAiSdkInstrumentor",
                logs=True,
                **_SEMCONV,
            ),
        },
    ),
    "openinference-others": Peer(
        "OpenInference anthropic, google-genai",
        (
            *ANTHROPIC,
            *GOOGLE,
            *SDK,
            "openinference-instrumentation-anthropic==3.1.0",
            "openinference-instrumentation-google-genai==1.4.14",
        ),
        "openinference-instrumentation-anthropic",
        others={
            "anthropic": _other(
                "openinference.instrumentation.anthropic", "AnthropicInstrumentor", logs=False, **_HIDDEN
            ),
            "google_genai": _other(
                "openinference.instrumentation.google_genai", "GoogleGenAIInstrumentor", logs=False, **_HIDDEN
            ),
        },
        inequality="wraps a second function beneath the public one; hot, only the public one is measured",
    ),
    "traceloop-others": Peer(
        "Traceloop anthropic, google-generativeai, cohere",
        (
            *ANTHROPIC,
            *GOOGLE,
            *COHERE,
            *SDK,
            "opentelemetry-instrumentation-anthropic==0.62.4",
            "opentelemetry-instrumentation-google-generativeai==0.62.4",
            "opentelemetry-instrumentation-cohere==0.62.4",
        ),
        "opentelemetry-instrumentation-anthropic",
        others={
            "anthropic": _other(
                "opentelemetry.instrumentation.anthropic", "AnthropicInstrumentor", logs=False, **_TRACELOOP
            ),
            "google_genai": _other(
                "opentelemetry.instrumentation.google_generativeai",
                "GoogleGenerativeAiInstrumentor",
                logs=False,
                **_TRACELOOP,
            ),
            "cohere": _other(
                "opentelemetry.instrumentation.cohere", "CohereInstrumentor", logs=False, **_TRACELOOP
            ),
        },
    ),
}
