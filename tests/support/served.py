"""A real uvicorn in a thread, a plain socket to talk to it, and an exporter that keeps what it gets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import uvicorn
from opentelemetry.trace import SpanKind

from neuronscope.signals.records import Batch, SpanRecord

PATIENCE_S = 60.0


@dataclass(slots=True)
class Kept:
    """An exporter for tests: every span, in the order of arrival."""

    name: str = "kept"
    spans: list[SpanRecord] = field(default_factory=list[SpanRecord])

    def export(self, batch: Batch) -> None:
        self.spans += batch.spans

    def flush(self, timeout_s: float) -> bool:
        return True

    def shutdown(self, timeout_s: float) -> None:
        pass

    @property
    def servers(self) -> list[SpanRecord]:
        return [span for span in self.spans if span.kind is SpanKind.SERVER]


@dataclass(frozen=True, slots=True)
class Server:
    """Where the service listens."""

    port: int
    config: uvicorn.Config

    def exchange(self, request: bytes) -> bytes:
        """Send bytes, and read until the server closes the connection."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_all(connection)

    def get(self, path: str, *headers: str) -> bytes:
        """GET on a connection of its own."""
        lines = [f"GET {path} HTTP/1.1", "host: test", "connection: close", *headers, "", ""]
        return self.exchange("\r\n".join(lines).encode())

    @property
    def app(self) -> Any:
        """The application as uvicorn calls it."""
        return cast(Any, self.config).loaded_app

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


@contextmanager
def served(app: Any, **options: Any) -> Generator[Server]:
    """The application behind uvicorn on a free port; everything that varies is off."""
    # h11, also where another package has brought httptools: that refuses methods it does not know.
    defaults: dict[str, Any] = {
        "http": "h11",
        "log_config": None,
        "date_header": False,
        "timeout_graceful_shutdown": 2,
    }
    config = uvicorn.Config(app, host="127.0.0.1", port=0, **{**defaults, **options})
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    assert server.started, "uvicorn did not start"
    try:
        yield Server(listener.getsockname()[1], config)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
    assert not thread.is_alive(), "uvicorn did not stop"


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Poll until `condition()` is true, or fail."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
