"""OTLP over gRPC: one method of grpcio that takes our bytes as they are.

grpcio is an extra and has no types; it is imported when this transport is made, never earlier.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from neuronscope.exceptions import MissingDependencyError
from neuronscope_exporters.otlp.endpoints import Endpoint, Signal
from neuronscope_exporters.otlp.transport import (
    USER_AGENT,
    Reply,
    accepted,
    basic_authorization,
    bounded_delay,
    read_certificate,
)
from neuronscope_exporters.otlp.wire import read_fields, signed

# Source: OTLP specification, "Failures" of OTLP/gRPC.  RESOURCE_EXHAUSTED only with a RetryInfo.
_RETRYABLE: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_REASONS: Final = {"UNAVAILABLE": "collector_unreachable", "DEADLINE_EXCEEDED": "collector_timeout"}
_OPTIONS: Final = (
    ("grpc.primary_user_agent", USER_AGENT),
    # Retries are ours, and counted; gRPC's own would wait up to two minutes for a collector to return.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class GrpcTransport:
    """One channel and one unary method.  The channel is made by the thread that sends.

    Raises:
        MissingDependencyError: grpcio is not installed.
        ConfigError: the CA bundle can't be read.
    """

    # A gRPC server's default limit, less what the message's frame takes.
    max_request_bytes = (4 << 20) - 1024

    def __init__(
        self,
        endpoint: Endpoint,
        signal: Signal,
        headers: dict[str, str],
        *,
        compress: bool,
        certificate: str,
    ) -> None:
        try:
            self._grpc: Any = importlib.import_module("grpc")
        except ImportError:
            raise MissingDependencyError("OTLP over gRPC", "grpcio", "grpc") from None
        self.target = str(endpoint)
        self._endpoint = endpoint
        self._method = signal.grpc_method
        if endpoint.userinfo:
            headers = {"authorization": basic_authorization(endpoint.userinfo), **headers}
        self._metadata = tuple(headers.items())
        self._compression = self._grpc.Compression.Gzip if compress else self._grpc.Compression.NoCompression
        self._roots = read_certificate(certificate) if certificate and endpoint.secure else None
        self._channel: Any = None
        self._call: Any = None
        self._under_way: Any = None

    def send(self, body: bytes, timeout_s: float) -> Reply:
        """See `Transport.send`; `timeout_s` is the whole request's deadline."""
        export = self._call or self._connect()
        call = export.future(body, timeout=timeout_s, metadata=self._metadata, compression=self._compression)
        self._under_way = call
        try:
            return accepted(call.result())
        except self._grpc.FutureCancelledError:
            return Reply(retryable=True, reason="collector_timeout", detail="given up")
        except self._grpc.RpcError as error:
            return _failure(error)
        finally:
            self._under_way = None

    def _connect(self) -> Any:
        grpc, target = self._grpc, self._endpoint.authority
        if self._endpoint.secure:
            credentials = grpc.ssl_channel_credentials(self._roots)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        # No serialiser: grpcio passes bytes through.
        self._call = self._channel.unary_unary(self._method)
        return self._call

    def abort(self) -> None:
        """See `Transport.abort`."""
        call = self._under_way
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """See `Transport.close`."""
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()


def _failure(error: Any) -> Reply:
    status = str(error.code().name)
    delay = _retry_delay(error)
    return Reply(
        retryable=status in _RETRYABLE or (status == "RESOURCE_EXHAUSTED" and delay is not None),
        unreachable=status == "UNAVAILABLE" and delay is None,
        reason=_REASONS.get(status, f"grpc_{status.lower()}"),
        retry_after_s=delay,
        detail=f"{status}: {error.details() or ''}"[:200],
    )


def _retry_delay(error: Any) -> float | None:
    """Seconds of the `google.rpc.RetryInfo` among the error's details, if there is one."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            try:
                return _read_retry_info(bytes(value))
            except ValueError:
                return None
    return None


def _read_retry_info(status: bytes) -> float | None:
    """From `google.rpc.Status`: details = 3, each an `Any` with type_url = 1 and value = 2."""
    for number, detail in read_fields(status):
        if number != 3 or not isinstance(detail, bytes):
            continue
        packed = dict(read_fields(detail))
        value = packed.get(2)
        if str(packed.get(1, b"")).find("google.rpc.RetryInfo") < 0 or not isinstance(value, bytes):
            continue
        duration = dict(read_fields(value)).get(1, b"")  # retry_delay = 1: seconds = 1, nanos = 2
        if isinstance(duration, bytes):
            parts = dict(read_fields(duration))
            seconds, nanos = parts.get(1, 0), parts.get(2, 0)
            if isinstance(seconds, int) and isinstance(nanos, int):
                return bounded_delay(signed(seconds) + signed(nanos) / 1e9)
    return None
