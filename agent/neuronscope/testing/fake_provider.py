"""A fake provider on a real loopback socket: what the servers of the several wire formats share.

Scripted answers, what came over the wire, and everything that can go wrong there: errors, waits,
connections cut off.  Nothing is imported but the standard library.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Final, Self, cast

MODEL: Final = "fake-model-1"


@dataclass(frozen=True, slots=True)
class Framing:
    """How the events of a stream look on the wire.

    Attributes:
        content_type: of the response.
        prefix: before each event's JSON; ``{event}`` stands for the event's ``type``.
        suffix: after it.
        end: after the last event.
    """

    content_type: str = "text/event-stream"
    prefix: str = "data: "
    suffix: str = "\n\n"
    end: str = ""

    def encode(self, event: Any) -> bytes:
        """One event's bytes; bytes are sent as they are."""
        if isinstance(event, bytes):
            return event
        kind = str(cast("Mapping[str, Any]", event).get("type")) if isinstance(event, dict) else ""
        return f"{self.prefix.replace('{event}', kind)}{json.dumps(event)}{self.suffix}".encode()


SERVER_SENT: Final = Framing()
SERVER_SENT_DONE: Final = Framing(end="data: [DONE]\n\n")
NAMED_EVENTS: Final = Framing(prefix="event: {event}\ndata: ")
JSON_LINES: Final = Framing("application/x-ndjson", prefix="", suffix="\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer.

    Attributes:
        body: JSON value of the body; ignored when there are `events`.
        events: the events of a stream.
        framing: how they look on the wire; None: as the provider's usually do.
        delay_s: seconds to wait before the body, and before each event.
        cut_after: cut the connection after so many events (0: before the first byte of the body).
        done: False leaves out what ends a stream (``[DONE]``).
    """

    status: int = 200
    body: Any = None
    events: Sequence[Any] | None = None
    framing: Framing | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay_s: float = 0.0
    cut_after: int | None = None
    done: bool = True


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came over the wire; header names in lower case, every value in order."""

    method: str
    path: str
    headers: Mapping[str, Sequence[str]]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class FakeProvider:
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as its base URL.
    """

    BASE_PATH: ClassVar[str] = ""
    FRAMING: ClassVar[Framing] = SERVER_SENT

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Received] = []
        self._script: deque[Reply] = deque()
        self._stopping = threading.Event()
        self._server = _Server(self)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}{self.BASE_PATH}"

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="fake-provider", daemon=True
        ).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def requests(self) -> list[Received]:
        """Requests so far, in the order they came."""
        with self._lock:
            return list(self._requests)

    def reply(self, *replies: Reply) -> None:
        """Answer the next requests with these, in order."""
        with self._lock:
            self._script.extend(replies)

    def clear(self) -> None:
        """Forget requests and what is left of the script."""
        with self._lock:
            self._requests.clear()
            self._script.clear()

    def answer(self, request: Received) -> Reply:
        """Take note of a request, and what to answer it."""
        with self._lock:
            self._requests.append(request)
            if self._script:
                return self._script.popleft()
        return self.unscripted(request)

    def unscripted(self, request: Received) -> Reply:
        """A plain answer of the right kind."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the server's end."""
        if seconds > 0:
            self._stopping.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, fake: FakeProvider) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may leave whenever they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The same in every run, since some errors quote their headers."""
        return "Thu, 01 Jan 2026 00:00:00 GMT"

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""

    @property
    def _fake(self) -> FakeProvider:
        return cast(_Server, self.server).fake

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers: dict[str, list[str]] = {}
        for name, value in self.headers.items():
            headers.setdefault(name.lower(), []).append(value)
        fake = self._fake
        reply = fake.answer(Received(self.command, self.path, headers, body))
        self.send_response(reply.status)
        self.send_header("x-request-id", "req-fake")
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.events is None:
            self._send_document(reply)
        else:
            self._send_events(reply, reply.events)

    def _send_document(self, reply: Reply) -> None:
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if "content-type" not in reply.headers:
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self._fake.wait(reply.delay_s)
        if reply.cut_after is not None:
            self.close_connection = True
            return
        self.wfile.write(content)

    def _send_events(self, reply: Reply, events: Sequence[Any]) -> None:
        framing = reply.framing or self._fake.FRAMING
        self.send_header("content-type", framing.content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for position, event in enumerate(events):
            self._fake.wait(reply.delay_s)
            if position == reply.cut_after:
                self.close_connection = True
                return
            self._send_piece(framing.encode(event))
        if reply.done and framing.end:
            self._send_piece(framing.end.encode())
        self.wfile.write(b"0\r\n\r\n")

    def _send_piece(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
