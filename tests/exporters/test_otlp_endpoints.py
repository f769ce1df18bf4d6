"""Where OTLP goes, and what is refused at set-up: OpenTelemetry's rules, by the settings."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from neuronscope.exceptions import ConfigError, MissingDependencyError
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals.records import MetricsSnapshot
from neuronscope_exporters.otlp import create
from neuronscope_exporters.otlp.endpoints import LOGS, METRICS, TRACES, Signal, find, headers, protocol
from neuronscope_exporters.otlp.exporter import limits_from


def context(settings: Settings) -> ExporterContext:
    return ExporterContext(
        settings=settings,
        resource={},
        collect=lambda: MetricsSnapshot([], 0, 0),
        count_lost=lambda _item, _reason, _count: None,
        count_exported=lambda _item, _count: None,
    )


def where(signal: Signal, **environ: str) -> str | None:
    """The address that an environment leads to."""
    endpoint = find(signal, Settings.load({f"OTEL_{key}": value for key, value in environ.items()}))
    return (
        None
        if endpoint is None
        else f"{'https' if endpoint.secure else 'http'}://" + (endpoint.authority + endpoint.path)
    )


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, None, None),
        (
            {"EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
            "http://c:4318/v1/traces", "http://c:4318/v1/metrics",
        ),
        (
            {"EXPORTER_OTLP_ENDPOINT": "https://c/otlp/"},
            "https://c/otlp/v1/traces", "https://c/otlp/v1/metrics",
        ),
        ({"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/here?key=a"}, "http://c:1/here?key=a", None),
        ({"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1"}, "http://c:1/", None),
        (
            {"EXPORTER_OTLP_ENDPOINT": "http://c:1", "EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:2/x"},
            "http://c:1/v1/traces", "http://m:2/x",
        ),
        ({"EXPORTER_OTLP_ENDPOINT": "http://[::1]:4318"}, "http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/metrics"),
        ({"TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces", None),
        ({"METRICS_EXPORTER": "otlp"}, None, "http://localhost:4318/v1/metrics"),
        ({"TRACES_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": "http://c:1"}, None, "http://c:1/v1/metrics"),
        ({"METRICS_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": "http://c:1"}, "http://c:1/v1/traces", None),
        ({"TRACES_EXPORTER": "console", "EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1"}, None, None),
        ({"TRACES_EXPORTER": "console, otlp"}, "http://localhost:4318/v1/traces", None),
    ],
)  # fmt: skip
def test_http_endpoints(environ: dict[str, str], traces: str | None, metrics: str | None) -> None:
    """Paths are appended to the general endpoint only; `none` and other exporters switch OTLP off."""
    assert where(TRACES, **environ) == traces
    assert where(METRICS, **environ) == metrics


@pytest.mark.parametrize(
    ("endpoint", "insecure", "expected"),
    [
        ("http://c:4317", "", "http://c:4317"),
        ("http://c:4317/ignored", "", "http://c:4317"),
        ("https://c", "", "https://c:4317"),
        ("c:9", "", "https://c:9"),
        ("c:9", "true", "http://c:9"),
        ("https://c:9", "true", "https://c:9"),
        ("unix:/run/otlp.sock", "", "http://unix:/run/otlp.sock"),
        ("", "", "http://localhost:4317"),
    ],
)
def test_grpc_endpoints(endpoint: str, insecure: str, expected: str) -> None:
    """The scheme decides about TLS; without one, OTEL_EXPORTER_OTLP_INSECURE does."""
    environ = {"EXPORTER_OTLP_PROTOCOL": "grpc", "TRACES_EXPORTER": "otlp"}
    if endpoint:
        environ["EXPORTER_OTLP_ENDPOINT"] = endpoint
    if insecure:
        environ["EXPORTER_OTLP_INSECURE"] = insecure
    assert where(TRACES, **environ) == expected


@pytest.mark.parametrize(
    ("protocol", "endpoint"),
    [
        ("http/protobuf", "localhost:4318"),
        ("http/protobuf", "c"),
        ("http/protobuf", "ftp://c:1"),
        ("http/protobuf", "http://"),
        ("http/protobuf", "http://c:notaport"),
        ("http/protobuf", "http://c:99999"),
        ("http/protobuf", "http://c:1/a b"),
        ("grpc", "ftp://c:1"),
        ("grpc", "http://"),
        ("grpc", "c:port"),
    ],
)
def test_an_endpoint_that_is_none_is_refused_at_set_up(protocol: Any, endpoint: str) -> None:
    """The message names the variable and shows what would be right."""
    settings = Settings(otlp_endpoint=endpoint, otlp_protocol=protocol)
    with pytest.raises(ConfigError, match=r"`OTEL_EXPORTER_OTLP_ENDPOINT` .* Write http://localhost:431"):
        create(context(settings))


@pytest.mark.parametrize(
    ("environ", "logs"),
    [
        ({}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/logs"),
        ({"EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, None),
        ({"EXPORTER_OTLP_LOGS_ENDPOINT": "http://l:1/here"}, "http://l:1/here"),
        ({"LOGS_EXPORTER": "otlp"}, "http://localhost:4318/v1/logs"),
        ({"LOGS_EXPORTER": "none", "EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
        ({"EXPORTER_OTLP_ENDPOINT": "http://c:4317", "EXPORTER_OTLP_LOGS_PROTOCOL": "grpc"}, "http://c:4317"),
    ],
)
def test_logs_go_by_the_same_rules(environ: dict[str, str], logs: str | None) -> None:
    """The general endpoint serves them, too; they have variables of their own."""
    assert where(LOGS, **environ) == logs


def test_a_signals_own_variables_come_before_the_general_ones() -> None:
    """Protocol, headers and timeout; the others keep the general."""
    settings = Settings.load({
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1", "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "b=2",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "7", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3",
    })  # fmt: skip
    assert [protocol(signal, settings) for signal in (TRACES, METRICS, LOGS)] == [
        "http/protobuf", "grpc", "http/protobuf"
    ]  # fmt: skip
    assert [headers(signal, settings) for signal in (TRACES, LOGS)] == [{"a": "1"}, {"b": "2"}]
    limits = limits_from(settings)
    assert [limits.timeout_of(signal.item) for signal in (TRACES, METRICS, LOGS)] == [3, 7, 7]
    with pytest.raises(ConfigError, match=r"`OTEL_EXPORTER_OTLP_LOGS_HEADERS`: 'b d' is no header name"):
        headers(LOGS, Settings(otlp_logs_headers=(("b d", "v"),)))


def test_nothing_configured_is_no_exporter() -> None:
    """Without an endpoint nothing is sent anywhere."""
    assert create(context(Settings())) is None


def test_headers_are_decoded_once_and_secrets_stay_out_of_messages() -> None:
    """As the environment has them; an unusable value is not repeated in the error."""
    text = {"OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=s%2525cret, x=1%2C2"}
    assert headers(TRACES, Settings.load(text)) == {"api-key": "s%25cret", "x": "1,2"}
    with pytest.raises(ConfigError, match="'k' must be printable") as error:
        headers(TRACES, Settings(otlp_headers=(("k", "hush\r\nInjected: 1"),)))
    assert "hush" not in str(error.value)
    with pytest.raises(ConfigError, match="no header name"):
        headers(TRACES, Settings(otlp_headers=(("bad name", "v"),)))


def test_addresses_in_logs_hold_no_credentials() -> None:
    """Neither a password nor a key in the query."""
    settings = Settings(otlp_traces_endpoint="https://user:pass@c:1/v1/traces?key=secret")
    endpoint = find(TRACES, settings)
    assert endpoint is not None
    assert str(endpoint) == "https://c:1/v1/traces"
    assert endpoint.userinfo == "user:pass"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_ca_bundle_that_is_none_is_refused(protocol: Any, tmp_path: Any) -> None:
    """At set-up, by name; not as a failed handshake at midnight."""
    settings = Settings(
        otlp_endpoint="https://c:1", otlp_protocol=protocol, otlp_certificate=str(tmp_path / "none.pem")
    )
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_CERTIFICATE.*No such file"):
        create(context(settings))


def test_grpc_without_grpcio_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that helps."""
    real = importlib.import_module

    def without_grpc(name: str, package: str | None = None) -> Any:
        if name == "grpc":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without_grpc)
    with pytest.raises(MissingDependencyError, match=r"neuronscope\[grpc\]"):
        create(context(Settings(otlp_endpoint="http://c:1", otlp_protocol="grpc")))
