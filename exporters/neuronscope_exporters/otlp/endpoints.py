"""Where OTLP goes: the endpoint of each signal, by OpenTelemetry's rules.

Source: OpenTelemetry specification, "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from neuronscope.exceptions import ConfigError
from neuronscope.settings import OtlpProtocol, Settings

_DEFAULTS: Final = {"http/protobuf": "http://localhost:4318", "grpc": "http://localhost:4317"}
_GRPC_PORT: Final = 4317
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Signal:
    """One of OTLP's signals: what its requests hold, and where they go.

    Attributes:
        name: as settings and variables have it.
        item: as losses are counted.
    """

    name: Literal["traces", "metrics", "logs"]
    item: Literal["span", "metric_point", "log"]
    service: str

    @property
    def path(self) -> str:
        """Of OTLP/HTTP."""
        return f"/v1/{self.name}"

    @property
    def grpc_method(self) -> str:
        """The full name of the method that takes requests."""
        return f"/opentelemetry.proto.collector.{self.service}/Export"

    def variable(self, what: str) -> str:
        """The environment variable of this signal's own endpoint, headers or protocol."""
        return f"OTEL_EXPORTER_OTLP_{self.name}_{what}".upper()

    def own(self, settings: Settings, what: str) -> Any:
        """What the settings say of this signal alone; empty or None when they leave it to the general."""
        return getattr(settings, f"otlp_{self.name}_{what}")


TRACES: Final = Signal("traces", "span", "trace.v1.TraceService")
METRICS: Final = Signal("metrics", "metric_point", "metrics.v1.MetricsService")
LOGS: Final = Signal("logs", "log", "logs.v1.LogsService")


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
    exporters: str = getattr(settings, f"{signal.name}_exporter")
    chosen = {name.strip().lower() for name in exporters.split(",")} - {""}
    if chosen and "otlp" not in chosen:
        return None
    spoken = protocol(signal, settings)
    own: str = signal.own(settings, "endpoint")
    variable = signal.variable("endpoint") if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
    url = own or settings.otlp_endpoint or (_DEFAULTS[spoken] if chosen else "")
    if not url:
        return None
    try:
        if spoken == "grpc":
            return _grpc(url, insecure=settings.otlp_insecure)
        return _http(url, signal.path if not own else "")
    except ValueError as error:
        example = _DEFAULTS[spoken]
        raise ConfigError(
            f"`{variable}` is no OTLP endpoint: {error}. Write {example}, for example."
        ) from None


def check(settings: Settings) -> None:
    """Find out whether what is set can be collectors' addresses; nothing is connected.

    Raises:
        ConfigError: one of them cannot.
    """
    for signal in (TRACES, METRICS, LOGS):
        find(signal, settings)


def protocol(signal: Signal, settings: Settings) -> OtlpProtocol:
    """How the signal's collector is spoken to."""
    own: OtlpProtocol | Literal[""] = signal.own(settings, "protocol")
    return own or settings.otlp_protocol


def timeouts(settings: Settings) -> dict[str, float]:
    """Seconds that a request may take, of the signals that have their own limit, by item."""
    own = {signal.item: signal.own(settings, "timeout_s") for signal in (TRACES, METRICS, LOGS)}
    return {item: seconds for item, seconds in own.items() if seconds is not None}


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


def headers(signal: Signal, settings: Settings) -> dict[str, str]:
    """The headers to send, names in lower case (gRPC takes no others).

    Raises:
        ConfigError: a name or value can't be sent.
    """
    own: tuple[tuple[str, str], ...] = signal.own(settings, "headers")
    variable = signal.variable("headers") if own else "OTEL_EXPORTER_OTLP_HEADERS"
    found: dict[str, str] = {}
    for name, value in own or settings.otlp_headers:
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"`{variable}`: {name!r} is no header name. Write name=value.")
        if not value.isascii() or not value.isprintable():
            # The value may be a secret: the message keeps it to itself.
            raise ConfigError(f"`{variable}`: the value of {name!r} must be printable ASCII.")
        found[name.lower()] = value
    return found
