"""Where OTLP goes: the endpoint of each signal, by OpenTelemetry's rules.

Source: OpenTelemetry specification, "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from neuronscope.exceptions import ConfigError
from neuronscope.settings import Settings

_DEFAULTS: Final = {"http/protobuf": "http://localhost:4318", "grpc": "http://localhost:4317"}
_GRPC_PORT: Final = 4317
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Signal:
    """One of OTLP's signals: what its requests hold, and where they go."""

    item: Literal["span", "metric_point"]
    path: str
    grpc_method: str


TRACES: Final = Signal("span", "/v1/traces", "/opentelemetry.proto.collector.trace.v1.TraceService/Export")
METRICS: Final = Signal(
    "metric_point", "/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A collector.

    Attributes:
        host: without the brackets of IPv6; for gRPC also a whole ``unix:`` address.
        path: with the query, for HTTP.
        userinfo: ``user:password`` of the URL, decoded.
    """

    secure: bool
    host: str
    port: int | None
    path: str = "/"
    userinfo: str | None = None

    def __str__(self) -> str:
        """The address for logs: without what could be a secret."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path.partition('?')[0]}"

    @property
    def authority(self) -> str:
        """``host:port``, as gRPC and URLs write it."""
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("unix:") else self.host
        return host if self.port is None else f"{host}:{self.port}"


def find(signal: Signal, settings: Settings) -> Endpoint | None:
    """The signal's endpoint, or None when its export is not configured.

    Raises:
        ConfigError: the endpoint can't be one.
    """
    if signal is TRACES:
        exporters, own = settings.traces_exporter, settings.otlp_traces_endpoint
        variable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    else:
        exporters, own = settings.metrics_exporter, settings.otlp_metrics_endpoint
        variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    chosen = {name.strip().lower() for name in exporters.split(",")} - {""}
    if chosen and "otlp" not in chosen:
        return None
    url = own
    if not own:
        variable = "OTEL_EXPORTER_OTLP_ENDPOINT"
        url = settings.otlp_endpoint or (_DEFAULTS[settings.otlp_protocol] if chosen else "")
    if not url:
        return None
    try:
        if settings.otlp_protocol == "grpc":
            return _grpc(url, insecure=settings.otlp_insecure)
        return _http(url, signal.path if not own else "")
    except ValueError as error:
        example = _DEFAULTS[settings.otlp_protocol]
        raise ConfigError(
            f"`{variable}` is no OTLP endpoint: {error}. Write {example}, for example."
        ) from None


def _http(url: str, append: str) -> Endpoint:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("it must start with http:// or https://")
    path = parts.path.rstrip("/") + append if append else parts.path or "/"
    if parts.query:
        path += "?" + parts.query
    if not path.isascii() or any(character <= " " for character in path):
        raise ValueError("its path must be percent-encoded")
    return Endpoint(parts.scheme == "https", _host(parts), parts.port, path, _userinfo(parts))


def _grpc(url: str, *, insecure: bool) -> Endpoint:
    if url.startswith("unix:"):
        return Endpoint(secure=False, host=url, port=None, path="")
    parts = urlsplit(url if "://" in url else f"//{url}")
    if parts.scheme not in ("", "http", "https"):
        raise ValueError("it must be HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    secure = parts.scheme == "https" or (not parts.scheme and not insecure)
    return Endpoint(secure, _host(parts), parts.port or _GRPC_PORT, "", _userinfo(parts))


def _host(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ValueError("it names no host")
    if any(character <= " " for character in parts.hostname):
        raise ValueError("its host holds a blank")
    return parts.hostname


def _userinfo(parts: SplitResult) -> str | None:
    userinfo, at, _ = parts.netloc.rpartition("@")
    return unquote(userinfo) if at else None


def headers(settings: Settings) -> dict[str, str]:
    """The headers to send, names in lower case (gRPC takes no others).

    Raises:
        ConfigError: a name or value can't be sent.
    """
    found: dict[str, str] = {}
    for name, value in settings.otlp_headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"`OTEL_EXPORTER_OTLP_HEADERS`: {name!r} is no header name. Write name=value.")
        if not value.isascii() or not value.isprintable():
            # The value may be a secret: the message keeps it to itself.
            raise ConfigError(f"`OTEL_EXPORTER_OTLP_HEADERS`: the value of {name!r} must be printable ASCII.")
        found[name.lower()] = value
    return found
