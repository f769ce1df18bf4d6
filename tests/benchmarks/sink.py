"""A collector on the loopback, in a process of its own, so that its work is not the service's.

    python -m tests.benchmarks.sink answering|silent

``answering`` takes OTLP over HTTP and says 200; ``silent`` accepts connections and never answers.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.benchmarks.children import serve

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"


class _Bodies:
    """Request bodies not decoded yet: decoding waits until someone asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._spans = 0

    def add(self, body: bytes) -> None:
        with self._lock:
            self._waiting.append(body)

    def spans(self) -> int:
        """Spans received since the start."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for body in waiting:
            request = ExportTraceServiceRequest.FromString(body)
            self._spans += sum(
                len(scope.spans) for item in request.resource_spans for scope in item.scope_spans
            )
        return self._spans


BODIES = _Bodies()


class _Answering(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while request := self.rfile.readline():
            size = 0
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    size = int(value)
            body = self.rfile.read(size)
            if b"/v1/traces" in request:
                BODIES.add(body)
            self.wfile.write(_OK)


class _Silent(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.read(1 << 16):
            pass


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


def main() -> None:
    server = _Server(("127.0.0.1", 0), _Silent if sys.argv[1:] == ["silent"] else _Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def answer(command: str, **_: Any) -> Any:
        return server.server_address[1] if command == "port" else BODIES.spans()

    serve(answer)


if __name__ == "__main__":
    main()
