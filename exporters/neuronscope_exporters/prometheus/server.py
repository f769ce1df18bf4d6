"""A small HTTP server for the page: its own daemon threads, bounded, loopback unless told otherwise."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import socketserver
import threading
import weakref
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, Protocol, cast

from prometheus_client.exposition import gzip_accepted

from neuronscope.engine.guard import GUARD

PATH: Final = "/metrics"
HEALTH: Final = "/healthz"
# More scrapes at once than any honest set of scrapers makes; each holds a thread of the service's.
MAX_CONCURRENT: Final = 8
IDLE_TIMEOUT_S: Final = 10.0
_OPENMETRICS: Final = "application/openmetrics-text"
TEXT: Final = "text/plain; charset=utf-8"
PAGE_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
PAGE_OPENMETRICS: Final = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"


class Page(Protocol):
    """What is served."""

    def text(self, *, openmetrics: bool) -> bytes:
        """The page of this moment."""
        ...


class MetricsServer:
    """Serves one page until closed.

    Args:
        host: address to listen on.
        port: port; 0 picks a free one.
        page: what is served.

    Attributes:
        address: ``(host, port)`` as bound.
        url: where to scrape.

    Raises:
        OSError: the address cannot be had.
    """

    def __init__(self, host: str, port: int, page: Page) -> None:
        server = _server_for(host)((host, port), _Handler)
        server.page = page
        self._server = server
        self._closed = False
        self.address: tuple[str, int] = (host, server.server_address[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.address[1]}{PATH}"
        _OPEN.add(server)
        threading.Thread(target=server.serve_forever, name="neuronscope-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving and free the port.  Safe to call again."""
        if self._closed:
            return
        self._closed = True
        # Wakes the accepting thread, which would otherwise look up only twice a second.
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """Threads for requests, but not more than `MAX_CONCURRENT`; a request too many is turned away."""

    daemon_threads = True
    allow_reuse_address = True  # a port left by the process before; one in use stays refused
    request_queue_size = 16
    page: Page

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONCURRENT)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that goes away mid-answer is no news."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_for(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of two paths."""

    server_version = "neuronscope"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        if path == PATH:
            self._page()
        elif path == HEALTH:
            self._answer(HTTPStatus.OK, TEXT, b"ok\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, TEXT, f"Nothing here. The metrics are at {PATH}\n".encode())

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def _page(self) -> None:
        made = GUARD.call(
            "prometheus.page", render, cast(_Server, self.server).page, self.headers.get("Accept", "")
        )
        if made is None:
            self._answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"The page could not be made; see the log.\n"
            )
            return
        body, content_type = made
        if gzip_accepted(self.headers.get("Accept-Encoding", "")):
            self._answer(HTTPStatus.OK, content_type, gzip.compress(body, 1), "gzip")
        else:
            self._answer(HTTPStatus.OK, content_type, body)

    def _answer(
        self, status: HTTPStatus, content_type: str, body: bytes, encoding: str | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if encoding is not None:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no event of the service."""


def render(page: Page, accept: str) -> tuple[bytes, str]:
    """The page and its content type, in the format that the scraper's `Accept` header asks for."""
    wanted = any(item.partition(";")[0].strip() == _OPENMETRICS for item in accept.split(","))
    return page.text(openmetrics=wanted), PAGE_OPENMETRICS if wanted else PAGE_TEXT


_OPEN: Final[weakref.WeakSet[_Server]] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child must not hold the parent's port: its queue would take scrapes nobody answers."""
    for server in _OPEN:
        server.socket.close()


os.register_at_fork(after_in_child=_close_in_child)
