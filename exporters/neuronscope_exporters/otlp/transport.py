"""How a request reaches the collector: what every transport answers, and OTLP over HTTP."""

from __future__ import annotations

import base64
import gzip
import http.client
import os
import socket
import ssl
import time
from _socket import SHUT_RDWR
from _socket import socket as RealSocket  # noqa: N812 - it is a class
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as Urllib3Timeout

from neuronscope._version import __version__
from neuronscope.exceptions import ConfigError
from neuronscope_exporters.otlp.endpoints import Endpoint
from neuronscope_exporters.otlp.wire import read_fields, signed

USER_AGENT: Final = f"neuronscope-otlp/{__version__}"
# What OTLP calls retryable.  Source: OTLP specification, "Failures" of OTLP/HTTP.
_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_MAX_RESPONSE: Final = 64 << 10
_MAX_RETRY_AFTER_S: Final = 120.0
_MAX_DETAIL: Final = 200
# Level 1 to 3 give nearly the same size on OTLP, at a third of the default's CPU.
_GZIP_LEVEL: Final = 3
# To copy a body of at most so many bytes behind the head takes less than to send it apart.
_JOINED: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of one request.

    Attributes:
        delivered: the collector has taken it, all but `rejected` items.
        retryable: the same request may succeed later.
        reason: why it was not delivered, in a word of low cardinality.
        unreachable: there was nobody to talk to.
        retry_after_s: when the collector wants to see it again.
        detail: for the log.
    """

    delivered: bool = False
    rejected: int = 0
    retryable: bool = False
    unreachable: bool = False
    reason: str = ""
    retry_after_s: float | None = None
    detail: str = ""


class Transport(Protocol):
    """Carries requests of one signal to one collector.  `send` and `close` belong to one thread.

    Attributes:
        target: the collector's address, for logs.
        max_request_bytes: what a collector of this kind is sure to refuse is larger.
    """

    target: str
    max_request_bytes: int

    def send(self, body: bytes, timeout_s: float) -> Reply:
        """Send one request and wait for the answer; failures are replies, never exceptions."""
        ...

    def abort(self) -> None:
        """Make a `send` that is under way in another thread fail soon.  Never waits."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...


class HttpTransport:
    """OTLP/HTTP with binary protobuf over one kept-alive connection."""

    # The collector's HTTP receiver takes 20 MiB by default.
    max_request_bytes = 16 << 20

    def __init__(
        self, endpoint: Endpoint, headers: dict[str, str], *, compress: bool, certificate: str
    ) -> None:
        self.target = str(endpoint)
        self._path = endpoint.path
        self._compress = compress
        self._headers = {
            "user-agent": USER_AGENT,
            "content-type": "application/x-protobuf",
            **({"content-encoding": "gzip"} if compress else {}),
            **({"authorization": basic_authorization(endpoint.userinfo)} if endpoint.userinfo else {}),
            **headers,
        }
        self._head: bytes | None = None
        self._connection = (
            HTTPSConnection(endpoint.host, endpoint.port, ssl_context=_trust(certificate))
            if endpoint.secure
            else HTTPConnection(endpoint.host, endpoint.port)
        )

    def send(self, body: bytes, timeout_s: float) -> Reply:
        """See `Transport.send`; `timeout_s` bounds each step: connecting, sending, each read."""
        if self._compress:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        try:
            return self._exchange(body, timeout_s)
        except (OSError, HTTPError, http.client.HTTPException) as error:
            self.close()
            # urllib3 counts a refused connection among the timeouts.
            late = isinstance(error, TimeoutError | Urllib3Timeout) and not isinstance(
                error, NewConnectionError
            )
            return Reply(
                retryable=True,
                unreachable=not late,
                reason="collector_timeout" if late else "collector_unreachable",
                detail=_brief(f"{type(error).__name__}: {error}"),
            )

    def _exchange(self, body: bytes, timeout_s: float) -> Reply:
        sock = self._connected(timeout_s)
        head = self._head_of(len(body))
        if len(body) <= _JOINED:
            sock.sendall(head + body)
        else:
            sock.sendall(head)
            sock.sendall(body)
        with http.client.HTTPResponse(sock, method="POST") as response:
            response.begin()
            content = response.read(_MAX_RESPONSE)
            # With more than anybody needs to say the connection cannot be used again.
            if response.will_close or response.read(1):
                self.close()
        if 200 <= response.status < 300:
            return accepted(content)
        return Reply(
            retryable=response.status in _RETRYABLE,
            reason=f"http_{response.status}",
            retry_after_s=_retry_after(response.headers.get("retry-after")),
            detail=_brief(f"{response.status} {response.reason or ''}"),
        )

    def _connected(self, timeout_s: float) -> socket.socket:
        connection = self._connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            if connection.is_connected:
                connection.sock.settimeout(timeout_s)
                return connection.sock
            connection.close()  # the collector has closed the idle connection meanwhile
        connection.connect()
        sock = connection.sock
        assert sock is not None
        return sock

    def _head_of(self, size: int) -> bytes:
        """A request up to its body; all but its length is the same every time."""
        if self._head is None:
            self._head = _Head(self._connection).bytes(self._path, self._headers)
        return b"%bContent-Length: %d\r\n\r\n" % (self._head, size)

    def abort(self) -> None:
        """See `Transport.abort`: the blocked read or write returns, and its thread closes the socket."""
        sock = self._connection.sock
        if sock is None:
            return
        try:
            # Below the object's own `shutdown`: an SSLSocket's takes the TLS state from under the reader, and
            # a monkey-patched one's belongs to another thread's event loop.
            same = RealSocket(fileno=os.dup(sock.fileno()))
        except OSError:  # closed
            return
        try:
            same.shutdown(SHUT_RDWR)
        except OSError:  # not connected any more
            return
        finally:
            same.close()

    def close(self) -> None:
        """See `Transport.close`."""
        self._connection.close()


class _Head(http.client.HTTPConnection):
    """Writes a request's head as the standard library does, checks included, but sends it to nobody."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        super().__init__(connection.host, connection.port)
        self.default_port = connection.default_port
        self._written = b""

    def send(self, data: Any) -> None:
        self._written = data

    def bytes(self, path: str, headers: Mapping[str, str]) -> bytes:
        """The head without its end.

        Raises:
            ValueError: a header holds what none may.
        """
        self.putrequest("POST", path)
        for name, value in headers.items():
            self.putheader(name, value)
        self.endheaders()
        return self._written.removesuffix(b"\r\n")


def basic_authorization(userinfo: str) -> str:
    """The `Authorization` of credentials in a URL."""
    return "Basic " + base64.b64encode(userinfo.encode()).decode("ascii")


def read_certificate(path: str) -> bytes:
    """The CA bundle's bytes.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"`OTEL_EXPORTER_OTLP_CERTIFICATE`: {path!r} cannot be read: {error.strerror}."
        ) from None


def _trust(certificate: str) -> ssl.SSLContext:
    if not certificate:
        return ssl.create_default_context()
    text = read_certificate(certificate)
    try:
        return ssl.create_default_context(cadata=text.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ConfigError(
            f"`OTEL_EXPORTER_OTLP_CERTIFICATE`: {certificate!r} holds no certificate in PEM form."
        ) from None


def accepted(response: bytes) -> Reply:
    """The reply to a request that the collector took, read from an `Export…ServiceResponse`.

    All signals have the same shape: partial_success = 1 with a count = 1 and a message = 2.
    Bytes that are no such message (some servers answer with text) mean success: the status said so.
    """
    rejected, detail = 0, ""
    try:
        for number, value in read_fields(response):
            if number == 1 and isinstance(value, bytes):
                for inner, part in read_fields(value):
                    if inner == 1 and isinstance(part, int):
                        rejected = max(0, signed(part))
                    elif inner == 2 and isinstance(part, bytes):
                        detail = part.decode(errors="replace")
    except ValueError:
        rejected, detail = 0, ""
    return Reply(delivered=True, rejected=rejected, reason="rejected", detail=_brief(detail))


def bounded_delay(seconds: float) -> float:
    """A delay that the collector asked for, within reason."""
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER_S)


def _retry_after(header: str | None) -> float | None:
    """Seconds from a `Retry-After`: a number, or a date."""
    if not header:
        return None
    try:
        return bounded_delay(float(int(header)))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return bounded_delay((when - datetime.fromtimestamp(time.time(), UTC)).total_seconds())


def _brief(text: str) -> str:
    return " ".join(text.split())[:_MAX_DETAIL]
