"""Every setting, once: its name, environment variable, type, default and meaning.

Order of precedence: argument, environment, ``neuronscope.toml`` (or the file that
``NEURONSCOPE_CONFIG`` names), default.  Values are parsed and checked once, then passed down as a
value; nothing else in NeuronScope reads the environment.  CLI help and the reference page are
generated from `FIELDS`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from neuronscope.exceptions import ConfigError

T = TypeVar("T")
OverheadAction = Literal["warn", "reduce", "abort"]
ContentCapture = Literal["no_content", "span_only", "event_only", "span_and_event"]
EmbedderProbes = Literal["auto", "off", "local", "all"]
LogsMode = Literal["off", "correlate", "export"]
NszMode = Literal["continuous", "flight"]
OtlpProtocol = Literal["http/protobuf", "grpc"]
CONFIG_FILE: Final = "neuronscope.toml"


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__doc__ = f"a number between {low:g} and {high:g}"
    return parse


def _integer(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text.replace("_", ""))
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__doc__ = f"a whole number of at least {low}"
    return parse


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError
        return value

    parse.__doc__ = "one of " + ", ".join(allowed)
    return parse


def _level(text: str) -> str:
    """notset, debug, info, warning, error or critical"""
    value = text.strip().lower()
    value = {"warn": "warning", "fatal": "critical"}.get(value, value)
    if value not in {"notset", "debug", "info", "warning", "error", "critical"}:
        raise ValueError
    return value


def _boolean(text: str) -> bool:
    """true or false"""
    value = text.strip().lower()
    if value in {"true", "1", "yes", "on"}:
        return True
    if value in {"false", "0", "no", "off"}:
        return False
    raise ValueError


def _text(text: str) -> str:
    """text"""
    return text


def _names(text: str) -> tuple[str, ...]:
    """names, separated by commas"""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """key=value pairs, separated by commas"""
    from urllib.parse import unquote

    pairs: list[tuple[str, str]] = []
    for part in _names(text):
        key, separator, value = part.partition("=")
        if not separator:
            raise ValueError
        pairs.append((unquote(key.strip()), unquote(value.strip())))
    return tuple(pairs)


def _counts(text: str) -> tuple[tuple[str, int], ...]:
    """key=number pairs, separated by commas"""
    counts = tuple((key, int(value)) for key, value in _pairs(text))
    if any(count < 1 for _, count in counts):
        raise ValueError
    return counts


def _address(text: str) -> str:
    """HOST:PORT, or a port"""
    host, _, port = text.rpartition(":")
    if not 0 <= int(port) <= 65535:
        raise ValueError
    return f"{host or '127.0.0.1'}:{port}"


_PROTOCOL: Final = _choice("http/protobuf", "grpc")
_TIMEOUT: Final = _number(0.001, 3600.0)


def _setting(
    default: T, env: str, help_: str, parse: Callable[[str], Any], *, also: tuple[str, ...] = ()
) -> T:
    """A `Settings` field; `also` are further variables that are read when `env` is not set."""
    metadata = {"env": (env, *also), "help": help_, "parse": parse}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of one process.

    `Settings(...)` takes values as they are; `Settings.load(...)` adds environment and file.

    Raises:
        ConfigError: a value cannot be used; the message names it, and what would be right.
    """

    enabled: bool = _setting(True, "NEURONSCOPE_ENABLED", "false switches everything off.", _boolean)
    service_name: str = _setting("", "OTEL_SERVICE_NAME", "Name of the service.", _text)
    instrument: tuple[str, ...] = _setting(
        ("all",), "NEURONSCOPE_INSTRUMENT", "Adapters to switch on: names, or `all`.", _names
    )
    disable: tuple[str, ...] = _setting((), "NEURONSCOPE_DISABLE", "Adapters to leave alone.", _names)
    max_overhead_pct: float = _setting(
        15.0, "NEURONSCOPE_MAX_OVERHEAD_PCT", "Budget: per cent of observed time.", _number(0.0, 1000.0)
    )
    overhead_action: OverheadAction = _setting(
        "reduce",
        "NEURONSCOPE_OVERHEAD_ACTION",
        "Beyond the budget: only warn, reduce fidelity, or abort the scope.",
        _choice("warn", "reduce", "abort"),
    )
    overhead_measure: bool = _setting(
        True,
        "NEURONSCOPE_OVERHEAD_MEASURE",
        "Now and then switch the agent's captures off and on for some seconds, to measure what they cost.",
        _boolean,
    )
    overhead_block_s: float = _setting(
        2.0,
        "NEURONSCOPE_OVERHEAD_BLOCK",
        "Seconds of one such block; twenty are compared.",
        _number(0.05, 600.0),
    )
    overhead_rest_s: float = _setting(
        600.0, "NEURONSCOPE_OVERHEAD_REST", "Seconds between two measurements.", _number(0.0, 1e6)
    )
    capture_content: ContentCapture = _setting(
        "no_content",
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "Where prompts, answers and documents may be recorded.",
        _choice("no_content", "span_only", "event_only", "span_and_event"),
    )
    prices: str = _setting(
        "",
        "NEURONSCOPE_PRICES",
        "A file of prices that replace or extend the built-in ones (`neuronscope prices`).",
        _text,
    )
    structure: bool = _setting(
        True,
        "NEURONSCOPE_STRUCTURE",
        "Record lengths, short checksums and fingerprints of prompts: they tell what changed without words.",
        _boolean,
    )
    hash_identifiers: bool = _setting(
        False, "NEURONSCOPE_HASH_IDENTIFIERS", "Hash document ids, collections and user ids.", _boolean
    )
    hash_key: str = _setting(
        "",
        "NEURONSCOPE_HASH_KEY",
        "Secret key of prompts' checksums and hashed identifiers, the same in all processes to be compared.",
        _text,
    )
    logs: LogsMode = _setting(
        "off",
        "NEURONSCOPE_LOGS",
        "The service's own log records: leave them alone, put trace ids on them, or also export them.",
        _choice("off", "correlate", "export"),
    )
    logs_level: str = _setting(
        "info",
        "NEURONSCOPE_LOGS_LEVEL",
        "Least severe log record to export: notset, debug, info, warning, error or critical.",
        _level,
        also=("OTEL_PYTHON_LOG_HANDLER_LEVEL",),
    )
    nsz: str = _setting("", "NEURONSCOPE_NSZ", "Directory for this process's `.nsz` segments.", _text)
    nsz_mode: NszMode = _setting(
        "continuous",
        "NEURONSCOPE_NSZ_MODE",
        "Record everything (continuous), or keep the last seconds in memory and write them when something is "
        "wrong (flight).",
        _choice("continuous", "flight"),
    )
    nsz_sample_pct: float = _setting(
        100.0,
        "NEURONSCOPE_NSZ_SAMPLE_PCT",
        "Per cent of the ordinary traces to keep in `.nsz` files; those with an error, a slow root, an empty "
        "or low-margin retrieval or non-finite layers are kept in any case.",
        _number(0.0, 100.0),
    )
    nsz_segment_bytes: int = _setting(
        1 << 30, "NEURONSCOPE_NSZ_SEGMENT_BYTES", "Size at which a new segment is begun.", _integer(1 << 16)
    )
    nsz_segment_age_s: float = _setting(
        3600.0,
        "NEURONSCOPE_NSZ_SEGMENT_AGE",
        "Age in seconds at which a new segment is begun.",
        _number(1.0, 1e9),
    )
    nsz_keep_bytes: int = _setting(
        10 << 30,
        "NEURONSCOPE_NSZ_KEEP_BYTES",
        "Bytes of finished segments to keep in the directory; the oldest are deleted. 0 keeps all.",
        _integer(0),
    )
    nsz_keep_age_s: float = _setting(
        604_800.0,
        "NEURONSCOPE_NSZ_KEEP_AGE",
        "Seconds to keep finished segments. 0 keeps all.",
        _number(0.0, 1e10),
    )
    nsz_sync_s: float = _setting(
        5.0,
        "NEURONSCOPE_NSZ_SYNC",
        "Seconds between waits for the disk: what a power failure may cost. 0 never waits.",
        _number(0.0, 3600.0),
    )
    nsz_compress_tensors: bool = _setting(
        False, "NEURONSCOPE_NSZ_COMPRESS_TENSORS", "Compress full tensors in `.nsz` files.", _boolean
    )
    flight_s: float = _setting(
        30.0, "NEURONSCOPE_FLIGHT_SECONDS", "Seconds that the flight recorder holds.", _number(0.1, 86_400.0)
    )
    flight_bytes: int = _setting(
        64 << 20, "NEURONSCOPE_FLIGHT_BYTES", "Bytes that the flight recorder may hold.", _integer(1 << 16)
    )
    flight_pause_s: float = _setting(
        60.0,
        "NEURONSCOPE_FLIGHT_PAUSE",
        "Seconds between two dumps of the flight recorder for the same reason.",
        _number(0.0, 86_400.0),
    )
    flight_margin: float = _setting(
        0.02,
        "NEURONSCOPE_FLIGHT_MARGIN",
        "A retrieval with a smaller relative margin makes the flight recorder dump. 0 never does.",
        _number(0.0, 1.0),
    )
    baseline: str = _setting(
        "",
        "NEURONSCOPE_BASELINE",
        "Baseline of retrieval to compare with: a file of `neuronscope baseline make`, or a recording. A "
        "file that is not there yet is made from the first queries.",
        _text,
    )
    drift_window: int = _setting(
        500,
        "NEURONSCOPE_DRIFT_WINDOW",
        "Distinct queries of a window that is compared with the baseline.",
        _integer(200, 10_000),
    )
    drift_window_s: float = _setting(
        3600.0,
        "NEURONSCOPE_DRIFT_WINDOW_SECONDS",
        "Seconds after which a window is compared though it is not full, if it has 200 queries.",
        _number(1.0, 1e7),
    )
    canary_interval_s: float = _setting(
        300.0,
        "NEURONSCOPE_CANARY_INTERVAL",
        "Seconds between two replays of canary queries.",
        _number(1.0, 1e7),
    )
    embedder_probes: EmbedderProbes = _setting(
        "auto",
        "NEURONSCOPE_EMBEDDER_PROBES",
        "Which embedders get our probe texts to embed: those in the process (local), also those behind an "
        "API, which bills sixteen short texts (all); none (off); local ones if there is a baseline (auto).",
        _choice("auto", "off", "local", "all"),
    )
    embedder_interval_s: float = _setting(
        21_600.0, "NEURONSCOPE_EMBEDDER_INTERVAL", "Seconds between two such checks.", _number(1.0, 1e7)
    )
    prometheus: str = _setting(
        "", "NEURONSCOPE_PROMETHEUS", "Serve /metrics here: HOST:PORT, or a port; 0 picks one.", _address
    )
    prometheus_dir: str = _setting(
        "",
        "NEURONSCOPE_PROMETHEUS_DIR",
        "Folder in which the processes of a service (workers of a prefork server) share one /metrics page; "
        "clear it before the service starts.",
        _text,
        also=("PROMETHEUS_MULTIPROC_DIR",),
    )
    system_metrics: bool = _setting(
        True,
        "NEURONSCOPE_SYSTEM_METRICS",
        "Metrics of the process and its GPUs, by psutil and nvidia-ml-py if installed (the extra `system`).",
        _boolean,
    )
    label_values: int = _setting(
        40,
        "NEURONSCOPE_LABEL_VALUES",
        "Values of a free-form metric label (model, route, collection, tenant) that have series of their "
        "own: the most frequent ones; the rest are counted as `other`.",
        _integer(1),
    )
    label_values_of: tuple[tuple[str, int], ...] = _setting(
        (),
        "NEURONSCOPE_LABEL_VALUES_OF",
        "The same for single labels, by OpenTelemetry's names: `http.route=200,neuronscope.tenant=100`.",
        _counts,
    )
    tenant_baggage: str = _setting(
        "",
        "NEURONSCOPE_TENANT_BAGGAGE",
        "Entry of OpenTelemetry's baggage that names the tenant where the service does not, by `ns.tenant`.",
        _text,
    )
    probes: tuple[str, ...] = _setting(
        ("blocks:summary",),
        "NEURONSCOPE_PROBES",
        "Layers to watch in every in-process model: `PATTERN[:full|:summary]`, `blocks`, or `off`.",
        _names,
    )
    models: tuple[str, ...] = _setting(
        (), "NEURONSCOPE_MODELS", "Models that no seam finds: `module:attribute`.", _names
    )
    propagate_to: tuple[str, ...] = _setting(
        ("loopback", "private"),
        "NEURONSCOPE_PROPAGATE_TO",
        "Hosts that receive `traceparent`: names, `loopback`, `private`, `all`, or `none`.",
        _names,
    )
    propagate_threads: bool = _setting(
        False,
        "NEURONSCOPE_PROPAGATE_THREADS",
        "Give functions that run in a thread pool the context in which they were submitted.",
        _boolean,
    )
    deferred: bool = _setting(
        True, "NEURONSCOPE_DEFERRED", "false finishes every span in the caller's thread.", _boolean
    )
    set_global_provider: bool = _setting(
        True,
        "NEURONSCOPE_SET_GLOBAL_PROVIDER",
        "Become OpenTelemetry's global tracer provider if there is none at the first span.",
        _boolean,
    )
    queue_max_spans: int = _setting(
        65_536, "NEURONSCOPE_QUEUE_MAX_SPANS", "Spans that may wait for the worker.", _integer(1)
    )
    queue_max_bytes: int = _setting(
        256 << 20, "NEURONSCOPE_QUEUE_MAX_BYTES", "Bytes that may wait for the worker.", _integer(1024)
    )
    scope_max_bytes: int = _setting(
        1 << 30, "NEURONSCOPE_SCOPE_MAX_BYTES", "Bytes of tensors one scope may hold.", _integer(0)
    )
    attribute_max_length: int = _setting(
        65_536, "NEURONSCOPE_ATTRIBUTE_MAX_LENGTH", "Longest attribute text, in characters.", _integer(32)
    )
    export_interval_s: float = _setting(
        1.0, "NEURONSCOPE_EXPORT_INTERVAL", "Seconds between span batches.", _number(0.01, 3600.0)
    )
    metric_export_interval_s: float = _setting(
        15.0,
        "NEURONSCOPE_METRIC_EXPORT_INTERVAL",
        "Seconds between OTLP metric exports.",
        _number(0.1, 3600.0),
    )
    exit_timeout_s: float = _setting(
        2.0,
        "NEURONSCOPE_EXIT_TIMEOUT",
        "Longest delay of the process's exit, in seconds.",
        _number(0.0, 60.0),
    )
    otlp_endpoint: str = _setting("", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTLP collector for all signals.", _text)
    otlp_traces_endpoint: str = _setting(
        "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTLP collector for traces (full URL).", _text
    )
    otlp_metrics_endpoint: str = _setting(
        "", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTLP collector for metrics (full URL).", _text
    )
    otlp_logs_endpoint: str = _setting(
        "", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTLP collector for logs (full URL).", _text
    )
    otlp_protocol: OtlpProtocol = _setting(
        "http/protobuf",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "http/protobuf or grpc.",
        _PROTOCOL,
    )
    otlp_headers: tuple[tuple[str, str], ...] = _setting(
        (), "OTEL_EXPORTER_OTLP_HEADERS", "Headers sent to the collector: key=value,…", _pairs
    )
    otlp_compression: Literal["none", "gzip"] = _setting(
        "none",
        "OTEL_EXPORTER_OTLP_COMPRESSION",
        "none or gzip.",
        _choice("none", "gzip"),
    )
    otlp_timeout_s: float = _setting(
        10.0, "OTEL_EXPORTER_OTLP_TIMEOUT", "Seconds one OTLP request may take.", _TIMEOUT
    )
    otlp_certificate: str = _setting(
        "", "OTEL_EXPORTER_OTLP_CERTIFICATE", "CA bundle to verify the collector with.", _text
    )
    otlp_insecure: bool = _setting(
        False, "OTEL_EXPORTER_OTLP_INSECURE", "gRPC without TLS where the URL has no scheme.", _boolean
    )
    otlp_traces_protocol: OtlpProtocol | Literal[""] = _setting(
        "", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "The same for traces alone.", _PROTOCOL
    )
    otlp_metrics_protocol: OtlpProtocol | Literal[""] = _setting(
        "", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "The same for metrics alone.", _PROTOCOL
    )
    otlp_logs_protocol: OtlpProtocol | Literal[""] = _setting(
        "", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "The same for logs alone.", _PROTOCOL
    )
    otlp_traces_headers: tuple[tuple[str, str], ...] = _setting(
        (), "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Headers of traces, instead of the general ones.", _pairs
    )
    otlp_metrics_headers: tuple[tuple[str, str], ...] = _setting(
        (), "OTEL_EXPORTER_OTLP_METRICS_HEADERS", "Headers of metrics, instead of the general ones.", _pairs
    )
    otlp_logs_headers: tuple[tuple[str, str], ...] = _setting(
        (), "OTEL_EXPORTER_OTLP_LOGS_HEADERS", "Headers of logs, instead of the general ones.", _pairs
    )
    otlp_traces_timeout_s: float | None = _setting(
        None, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "Seconds one request of traces may take.", _TIMEOUT
    )
    otlp_metrics_timeout_s: float | None = _setting(
        None, "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "Seconds one request of metrics may take.", _TIMEOUT
    )
    otlp_logs_timeout_s: float | None = _setting(
        None, "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "Seconds one request of logs may take.", _TIMEOUT
    )
    otlp_foreign_spans: bool = _setting(
        False,
        "NEURONSCOPE_OTLP_FOREIGN_SPANS",
        "Also export spans that the user's own OpenTelemetry pipeline exports.",
        _boolean,
    )
    traces_exporter: str = _setting(
        "", "OTEL_TRACES_EXPORTER", "`none` switches OTLP traces off; `otlp` on without an endpoint.", _text
    )
    metrics_exporter: str = _setting(
        "", "OTEL_METRICS_EXPORTER", "`none` switches OTLP metrics off; `otlp` on without an endpoint.", _text
    )

    logs_exporter: str = _setting(
        "", "OTEL_LOGS_EXPORTER", "`none` switches OTLP logs off; `otlp` on without an endpoint.", _text
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), item.metadata)

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
        env = os.environ if environ is None else environ
        unknown = set(arguments) - {item.name for item in fields(cls)}
        if unknown:
            known = ", ".join(sorted(item.name for item in fields(cls)))
            raise ConfigError(f"no setting is called {min(unknown)!r}. There are: {known}")
        values = _from_file(env)
        for item in fields(cls):
            for variable in item.metadata["env"]:
                if text := env.get(variable, "").strip():
                    values[item.name] = _parse(variable, text, item.metadata["parse"])
                    break
        values.update({key: value for key, value in arguments.items() if value is not None})
        return cls(**values)


def _parse(source: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except (ValueError, TypeError):
        raise ConfigError(f"`{source}` must be {parse.__doc__}; got {text!r}.") from None


def _check(name: str, value: object, metadata: Mapping[Any, Any]) -> None:
    """Numbers and choices given as values are held to the same rules as text."""
    parse = metadata["parse"]
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value == "":
        return
    if parse in (_text, _names, _pairs):
        return
    _parse(name, str(value), parse)


def _from_file(env: Mapping[str, str]) -> dict[str, Any]:
    named = env.get("NEURONSCOPE_CONFIG", "")
    path = Path(named or CONFIG_FILE)
    if not path.is_file():
        if named:
            raise ConfigError(f"`NEURONSCOPE_CONFIG` names {named!r}, which is no file.")
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    known = {item.name: item for item in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: no setting is called {key!r}. See `neuronscope doctor`.")
        text = ",".join(map(str, cast(list[object], value))) if isinstance(value, list) else str(value)
        values[key] = _parse(f"{path}: {key}", text, known[key].metadata["parse"])
    return values
