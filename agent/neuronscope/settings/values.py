"""Every setting, once: its name, environment variable, type, default and meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from neuronscope.settings.kinds import (
    address,
    boolean,
    check,
    choice,
    counts,
    integer,
    level,
    names,
    number,
    pairs,
    setting,
    text,
)
from neuronscope.settings.sources import from_arguments, from_environment, from_file

OverheadAction = Literal["warn", "reduce", "abort"]
ContentCapture = Literal["no_content", "span_only", "event_only", "span_and_event"]
EmbedderProbes = Literal["auto", "off", "local", "all"]
LogsMode = Literal["off", "correlate", "export"]
NszMode = Literal["continuous", "flight"]
OtlpProtocol = Literal["http/protobuf", "grpc"]
_PROTOCOL: Final = choice("http/protobuf", "grpc")
_TIMEOUT: Final = number(0.001, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of one process.

    `Settings(...)` takes values as they are; `Settings.load(...)` adds environment and file.

    Raises:
        ConfigError: a value cannot be used; the message names it, and what would be right.
    """

    enabled: bool = setting(True, "NEURONSCOPE_ENABLED", "false switches everything off.", boolean)
    service_name: str = setting("", "OTEL_SERVICE_NAME", "Name of the service.", text)
    instrument: tuple[str, ...] = setting(
        ("all",), "NEURONSCOPE_INSTRUMENT", "Adapters to switch on: names, or `all`.", names
    )
    disable: tuple[str, ...] = setting((), "NEURONSCOPE_DISABLE", "Adapters to leave alone.", names)
    max_overhead_pct: float = setting(
        15.0, "NEURONSCOPE_MAX_OVERHEAD_PCT", "Budget: per cent of observed time.", number(0.0, 1000.0)
    )
    overhead_action: OverheadAction = setting(
        "reduce",
        "NEURONSCOPE_OVERHEAD_ACTION",
        "Beyond the budget: only warn, reduce fidelity, or abort the scope.",
        choice("warn", "reduce", "abort"),
    )
    overhead_measure: bool = setting(
        True,
        "NEURONSCOPE_OVERHEAD_MEASURE",
        "Now and then switch the agent's captures off and on for some seconds, to measure what they cost.",
        boolean,
    )
    overhead_block_s: float = setting(
        2.0,
        "NEURONSCOPE_OVERHEAD_BLOCK",
        "Seconds of one such block; twenty are compared.",
        number(0.05, 600.0),
    )
    overhead_rest_s: float = setting(
        600.0, "NEURONSCOPE_OVERHEAD_REST", "Seconds between two measurements.", number(0.0, 1e6)
    )
    capture_content: ContentCapture = setting(
        "no_content",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "Where prompts, answers and documents may be recorded.",
        choice("no_content", "span_only", "event_only", "span_and_event"),
    )
    prices: str = setting(
        "",
        "NEURONSCOPE_PRICES",
        "A file of prices that replace or extend the built-in ones (`neuronscope prices`).",
        text,
    )
    structure: bool = setting(
        True,
        "NEURONSCOPE_STRUCTURE",
        "Record lengths, short checksums and fingerprints of prompts: they tell what changed without words.",
        boolean,
    )
    hash_identifiers: bool = setting(
        False, "NEURONSCOPE_HASH_IDENTIFIERS", "Hash document ids, collections and user ids.", boolean
    )
    hash_key: str = setting(
        "",
        "NEURONSCOPE_HASH_KEY",
        "Secret key of prompts' checksums and hashed identifiers, the same in all processes to be compared.",
        text,
    )
    logs: LogsMode = setting(
        "off",
        "NEURONSCOPE_LOGS",
        "The service's own log records: leave them alone, put trace ids on them, or also export them.",
        choice("off", "correlate", "export"),
    )
    logs_level: str = setting(
        "info",
        "NEURONSCOPE_LOGS_LEVEL",
        "Least severe log record to export: notset, debug, info, warning, error or critical.",
        level,
        also=("OTEL_PYTHON_LOG_HANDLER_LEVEL",),
    )
    nsz: str = setting("", "NEURONSCOPE_NSZ", "Directory for this process's `.nsz` segments.", text)
    nsz_mode: NszMode = setting(
        "continuous",
        "NEURONSCOPE_NSZ_MODE",
        "Record everything (continuous), or keep the last seconds in memory and write them when something is "
        "wrong (flight).",
        choice("continuous", "flight"),
    )
    nsz_sample_pct: float = setting(
        100.0,
        "NEURONSCOPE_NSZ_SAMPLE_PCT",
        "Per cent of the ordinary traces to keep in `.nsz` files; those with an error, a slow root, an empty "
        "or low-margin retrieval or non-finite layers are kept in any case.",
        number(0.0, 100.0),
    )
    nsz_segment_bytes: int = setting(
        1 << 30, "NEURONSCOPE_NSZ_SEGMENT_BYTES", "Size at which a new segment is begun.", integer(1 << 16)
    )
    nsz_segment_age_s: float = setting(
        3600.0,
        "NEURONSCOPE_NSZ_SEGMENT_AGE",
        "Age in seconds at which a new segment is begun.",
        number(1.0, 1e9),
    )
    nsz_keep_bytes: int = setting(
        10 << 30,
        "NEURONSCOPE_NSZ_KEEP_BYTES",
        "Bytes of finished segments to keep in the directory; the oldest are deleted. 0 keeps all.",
        integer(0),
    )
    nsz_keep_age_s: float = setting(
        604_800.0,
        "NEURONSCOPE_NSZ_KEEP_AGE",
        "Seconds to keep finished segments. 0 keeps all.",
        number(0.0, 1e10),
    )
    nsz_sync_s: float = setting(
        5.0,
        "NEURONSCOPE_NSZ_SYNC",
        "Seconds between waits for the disk: what a power failure may cost. 0 never waits.",
        number(0.0, 3600.0),
    )
    nsz_compress_tensors: bool = setting(
        False, "NEURONSCOPE_NSZ_COMPRESS_TENSORS", "Compress full tensors in `.nsz` files.", boolean
    )
    flight_s: float = setting(
        30.0, "NEURONSCOPE_FLIGHT_SECONDS", "Seconds that the flight recorder holds.", number(0.1, 86_400.0)
    )
    flight_bytes: int = setting(
        64 << 20, "NEURONSCOPE_FLIGHT_BYTES", "Bytes that the flight recorder may hold.", integer(1 << 16)
    )
    flight_pause_s: float = setting(
        60.0,
        "NEURONSCOPE_FLIGHT_PAUSE",
        "Seconds between two dumps of the flight recorder for the same reason.",
        number(0.0, 86_400.0),
    )
    flight_margin: float = setting(
        0.02,
        "NEURONSCOPE_FLIGHT_MARGIN",
        "A retrieval with a smaller relative margin makes the flight recorder dump. 0 never does.",
        number(0.0, 1.0),
    )
    baseline: str = setting(
        "",
        "NEURONSCOPE_BASELINE",
        "Baseline of retrieval to compare with: a file of `neuronscope baseline make`, or a recording. A "
        "file that is not there yet is made from the first queries.",
        text,
    )
    drift_window: int = setting(
        500,
        "NEURONSCOPE_DRIFT_WINDOW",
        "Distinct queries of a window that is compared with the baseline.",
        integer(200, 10_000),
    )
    drift_window_s: float = setting(
        3600.0,
        "NEURONSCOPE_DRIFT_WINDOW_SECONDS",
        "Seconds after which a window is compared though it is not full, if it has 200 queries.",
        number(1.0, 1e7),
    )
    canary_interval_s: float = setting(
        300.0,
        "NEURONSCOPE_CANARY_INTERVAL",
        "Seconds between two replays of canary queries.",
        number(1.0, 1e7),
    )
    embedder_probes: EmbedderProbes = setting(
        "auto",
        "NEURONSCOPE_EMBEDDER_PROBES",
        "Which embedders get our probe texts to embed: those in the process (local), also those behind an "
        "API, which bills sixteen short texts (all); none (off); local ones if there is a baseline (auto).",
        choice("auto", "off", "local", "all"),
    )
    embedder_interval_s: float = setting(
        21_600.0, "NEURONSCOPE_EMBEDDER_INTERVAL", "Seconds between two such checks.", number(1.0, 1e7)
    )
    prometheus: str = setting(
        "", "NEURONSCOPE_PROMETHEUS", "Serve /metrics here: HOST:PORT, or a port; 0 picks one.", address
    )
    prometheus_dir: str = setting(
        "",
        "NEURONSCOPE_PROMETHEUS_DIR",
        "Folder in which the processes of a service (workers of a prefork server) share one /metrics page; "
        "clear it before the service starts.",
        text,
        also=("PROMETHEUS_MULTIPROC_DIR",),
    )
    system_metrics: bool = setting(
        True,
        "NEURONSCOPE_SYSTEM_METRICS",
        "Metrics of the process and its GPUs, by psutil and nvidia-ml-py if installed (the extra `system`).",
        boolean,
    )
    label_values: int = setting(
        40,
        "NEURONSCOPE_LABEL_VALUES",
        "Values of a free-form metric label (model, route, collection, tenant) that have series of their "
        "own: the most frequent ones; the rest are counted as `other`.",
        integer(1),
    )
    label_values_of: tuple[tuple[str, int], ...] = setting(
        (),
        "NEURONSCOPE_LABEL_VALUES_OF",
        "The same for single labels, by OpenTelemetry's names: `http.route=200,neuronscope.tenant=100`.",
        counts,
    )
    tenant_baggage: str = setting(
        "",
        "NEURONSCOPE_TENANT_BAGGAGE",
        "Entry of OpenTelemetry's baggage that names the tenant where the service does not, by `ns.tenant`.",
        text,
    )
    probes: tuple[str, ...] = setting(
        ("blocks:summary",),
        "NEURONSCOPE_PROBES",
        "Layers to watch in every in-process model: `PATTERN[:full|:summary]`, `blocks`, or `off`.",
        names,
    )
    models: tuple[str, ...] = setting(
        (), "NEURONSCOPE_MODELS", "Models that no seam finds: `module:attribute`.", names
    )
    propagate_to: tuple[str, ...] = setting(
        ("loopback", "private"),
        "NEURONSCOPE_PROPAGATE_TO",
        "Hosts that receive `traceparent`: names, `loopback`, `private`, `all`, or `none`.",
        names,
    )
    propagate_threads: bool = setting(
        False,
        "NEURONSCOPE_PROPAGATE_THREADS",
        "Give functions that run in a thread pool the context in which they were submitted.",
        boolean,
    )
    deferred: bool = setting(
        True, "NEURONSCOPE_DEFERRED", "false finishes every span in the caller's thread.", boolean
    )
    set_global_provider: bool = setting(
        True,
        "NEURONSCOPE_SET_GLOBAL_PROVIDER",
        "Become OpenTelemetry's global tracer provider if there is none at the first span.",
        boolean,
    )
    queue_max_spans: int = setting(
        65_536, "NEURONSCOPE_QUEUE_MAX_SPANS", "Spans that may wait for the worker.", integer(1)
    )
    queue_max_bytes: int = setting(
        256 << 20, "NEURONSCOPE_QUEUE_MAX_BYTES", "Bytes that may wait for the worker.", integer(1024)
    )
    scope_max_bytes: int = setting(
        1 << 30, "NEURONSCOPE_SCOPE_MAX_BYTES", "Bytes of tensors one scope may hold.", integer(0)
    )
    attribute_max_length: int = setting(
        65_536, "NEURONSCOPE_ATTRIBUTE_MAX_LENGTH", "Longest attribute text, in characters.", integer(32)
    )
    export_interval_s: float = setting(
        1.0, "NEURONSCOPE_EXPORT_INTERVAL", "Seconds between span batches.", number(0.01, 3600.0)
    )
    metric_export_interval_s: float = setting(
        15.0,
        "NEURONSCOPE_METRIC_EXPORT_INTERVAL",
        "Seconds between OTLP metric exports.",
        number(0.1, 3600.0),
    )
    exit_timeout_s: float = setting(
        2.0, "NEURONSCOPE_EXIT_TIMEOUT", "Longest delay of the process's exit, in seconds.", number(0.0, 60.0)
    )
    otlp_endpoint: str = setting("", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTLP collector for all signals.", text)
    otlp_traces_endpoint: str = setting(
        "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTLP collector for traces (full URL).", text
    )
    otlp_metrics_endpoint: str = setting(
        "", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTLP collector for metrics (full URL).", text
    )
    otlp_logs_endpoint: str = setting(
        "", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTLP collector for logs (full URL).", text
    )
    otlp_protocol: OtlpProtocol = setting(
        "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf or grpc.", _PROTOCOL
    )
    otlp_headers: tuple[tuple[str, str], ...] = setting(
        (), "OTEL_EXPORTER_OTLP_HEADERS", "Headers sent to the collector: key=value,…", pairs
    )
    otlp_compression: Literal["none", "gzip"] = setting(
        "none", "OTEL_EXPORTER_OTLP_COMPRESSION", "none or gzip.", choice("none", "gzip")
    )
    otlp_timeout_s: float = setting(
        10.0, "OTEL_EXPORTER_OTLP_TIMEOUT", "Seconds one OTLP request may take.", _TIMEOUT
    )
    otlp_certificate: str = setting(
        "", "OTEL_EXPORTER_OTLP_CERTIFICATE", "CA bundle to verify the collector with.", text
    )
    otlp_insecure: bool = setting(
        False, "OTEL_EXPORTER_OTLP_INSECURE", "gRPC without TLS where the URL has no scheme.", boolean
    )
    otlp_traces_protocol: OtlpProtocol | Literal[""] = setting(
        "", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "The same for traces alone.", _PROTOCOL
    )
    otlp_metrics_protocol: OtlpProtocol | Literal[""] = setting(
        "", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "The same for metrics alone.", _PROTOCOL
    )
    otlp_logs_protocol: OtlpProtocol | Literal[""] = setting(
        "", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "The same for logs alone.", _PROTOCOL
    )
    otlp_traces_headers: tuple[tuple[str, str], ...] = setting(
        (), "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Headers of traces, instead of the general ones.", pairs
    )
    otlp_metrics_headers: tuple[tuple[str, str], ...] = setting(
        (), "OTEL_EXPORTER_OTLP_METRICS_HEADERS", "Headers of metrics, instead of the general ones.", pairs
    )
    otlp_logs_headers: tuple[tuple[str, str], ...] = setting(
        (), "OTEL_EXPORTER_OTLP_LOGS_HEADERS", "Headers of logs, instead of the general ones.", pairs
    )
    otlp_traces_timeout_s: float | None = setting(
        None, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "Seconds one request of traces may take.", _TIMEOUT
    )
    otlp_metrics_timeout_s: float | None = setting(
        None, "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "Seconds one request of metrics may take.", _TIMEOUT
    )
    otlp_logs_timeout_s: float | None = setting(
        None, "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "Seconds one request of logs may take.", _TIMEOUT
    )
    otlp_foreign_spans: bool = setting(
        False,
        "NEURONSCOPE_OTLP_FOREIGN_SPANS",
        "Also export spans that the user's own OpenTelemetry pipeline exports.",
        boolean,
    )
    traces_exporter: str = setting(
        "", "OTEL_TRACES_EXPORTER", "`none` switches OTLP traces off; `otlp` on without an endpoint.", text
    )
    metrics_exporter: str = setting(
        "", "OTEL_METRICS_EXPORTER", "`none` switches OTLP metrics off; `otlp` on without an endpoint.", text
    )
    logs_exporter: str = setting(
        "", "OTEL_LOGS_EXPORTER", "`none` switches OTLP logs off; `otlp` on without an endpoint.", text
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            check(item, getattr(self, item.name))

    @property
    def content(self) -> bool:
        """True when prompts, answers and documents may be put on spans."""
        return self.capture_content in ("span_only", "span_and_event")

    @property
    def content_on_events(self) -> bool:
        """True when they may be put on events, which are made then."""
        return self.capture_content in ("event_only", "span_and_event")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
        """Settings from arguments, then the environment, then the file, then defaults.

        Args:
            environ: the environment to read; the process's own by default.
            arguments: field values; those that are None count as not given.
        """
        settings, env = fields(cls), os.environ if environ is None else environ
        given = from_arguments(settings, arguments)
        return cls(**(from_file(settings, env) | from_environment(settings, env) | given))
