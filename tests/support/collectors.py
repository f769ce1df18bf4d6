"""OTLP collectors for tests: a real one (rotel), and one that answers from a script."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import random
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Protocol = Literal["http/protobuf", "grpc"]
Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"")


# Below those that systems hand out by themselves: what is free stays so until the test's server has it.
_PORTS: Final = itertools.cycle(random.sample(range(20_000, 32_000), 12_000))


def free_port() -> int:
    """A port that nobody listens on; another one each time."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):  # it is taken
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


@contextmanager
def rotel(forward_to: int, folder: Path) -> Generator[dict[Protocol, str]]:
    """A real collector that takes OTLP both ways and passes it on."""
    spec = importlib.util.find_spec("rotel")
    assert spec is not None
    assert spec.submodule_search_locations
    program = Path(spec.submodule_search_locations[0]) / "rotel-agent"
    ports: dict[Protocol, int] = {"grpc": free_port(), "http/protobuf": free_port()}
    command: list[str | Path] = [
        program, "start", "--pid-file", folder / "rotel.pid", "--log-file", folder / "rotel.log",
        "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}",
        "--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}",
        "--exporter", "otlp", "--otlp-exporter-protocol", "http",
        "--otlp-exporter-endpoint", f"http://127.0.0.1:{forward_to}",
        "--batch-timeout", "100ms",
    ]  # fmt: skip
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: process.poll() is not None or all(map(listens, ports.values())))
        assert process.poll() is None, (folder / "output").read_text()
        yield {protocol: f"http://127.0.0.1:{port}" for protocol, port in ports.items()}
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def spans_in(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [s for r in request.resource_spans for group in r.scope_spans for s in group.spans]


def logs_in(body: bytes) -> list[LogRecord]:
    request = ExportLogsServiceRequest.FromString(body)
    return [log for r in request.resource_logs for group in r.scope_logs for log in group.log_records]


class Collector:
    """Answers from a list, then with its last answer; keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [OK]
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.port = 0
        self.url = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.requests.append((path, headers, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def spans(self) -> list[str]:
        return [s.name for path, _, body in self.requests if path.endswith("traces") for s in spans_in(body)]

    @property
    def logs(self) -> list[LogRecord]:
        return [log for path, _, body in self.requests if path.endswith("logs") for log in logs_in(body)]

    @property
    def metrics(self) -> list[Metric]:
        return [
            metric
            for path, _, body in self.requests
            if path.endswith("metrics")
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for group in resource.scope_metrics
            for metric in group.metrics
        ]


@contextmanager
def serving(port: int = 0, tls: ssl.SSLContext | None = None) -> Generator[Collector]:
    collector = Collector()
    open_connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            collector.connections += 1
            open_connections.append(self.request)
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, extra, content = collector.take(self.path, headers, body)
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **extra}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    collector.port = int(server.server_address[1])
    collector.url = f"http{'s' if tls else ''}://127.0.0.1:{collector.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in open_connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)
