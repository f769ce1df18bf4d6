"""A provider that speaks OpenAI's wire format on a real loopback socket, for tests of services.

::

    with ns.testing.FakeOpenAI() as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="test")
        server.reply(chat("Paris."))
        client.chat.completions.create(model="m", messages=[...])
        assert server.requests[0].json["model"] == "m"

Unscripted requests get a plain answer of the right kind: a chat completion, its stream, or embeddings.
Whatever can go wrong on the wire can be scripted: errors, waits, connections cut off.  Nothing is imported
but the standard library.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, cast

MODEL: Final = "fake-model-1"
USAGE: Final[Mapping[str, Any]] = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
_HEAD: Final = {
    "id": "chatcmpl-fake",
    "created": 1_700_000_000,
    "model": MODEL,
    "system_fingerprint": "fp_fake",
    "service_tier": "default",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer.

    Attributes:
        body: JSON value of the body; ignored when there are `events`.
        events: data of server-sent events; ``[DONE]`` follows the last one.
        delay_s: seconds to wait before the body, and before each event.
        cut_after: cut the connection after so many events (0: before the first byte of the body).
        done: False leaves out ``[DONE]``.
    """

    status: int = 200
    body: Any = None
    events: Sequence[Any] | None = None
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


def chat(text: str = "Hello from the fake.", **message: Any) -> Reply:
    """A chat completion of one choice; `message` adds to the message (``tool_calls=…``)."""
    return completion([_choice(0, {"role": "assistant", "content": text, **message})])


def completion(choices: Sequence[Any], **changes: Any) -> Reply:
    """A chat completion of these choices; `changes` replace top-level fields (``usage=…``)."""
    return Reply(
        body={**_HEAD, "object": "chat.completion", "choices": list(choices), "usage": dict(USAGE), **changes}
    )


def _choice(index: int, message: Mapping[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {"index": index, "message": message, "finish_reason": finish_reason, "logprobs": None}


def chat_stream(text: str = "Hello from the fake.", *, usage: bool = True, **reply: Any) -> Reply:
    """A streamed chat completion, a word a chunk; `reply` are fields of `Reply`."""
    words = [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]
    deltas: list[Any] = [delta({"role": "assistant", "content": ""})]
    deltas += [delta({"content": word}) for word in words]
    deltas.append(delta({}, finish_reason="stop"))
    return chat_events(deltas, usage=usage, **reply)


def chat_events(choices: Sequence[Any], *, usage: bool = True, **reply: Any) -> Reply:
    """A streamed chat completion: each item is one chunk's choice, or list of choices."""
    events = [_chunk(choice if issubclass(type(choice), list) else [choice]) for choice in choices]
    if usage:
        events.append({**_chunk([]), "usage": dict(USAGE)})
    return Reply(events=events, **reply)


def delta(content: Mapping[str, Any], *, index: int = 0, finish_reason: str | None = None) -> dict[str, Any]:
    """A choice of a chunk."""
    return {"index": index, "delta": dict(content), "finish_reason": finish_reason, "logprobs": None}


def _chunk(choices: Any) -> dict[str, Any]:
    return {**_HEAD, "object": "chat.completion.chunk", "choices": choices}


def embeddings(vectors: Sequence[Sequence[float]], *, base64_encoded: bool = False) -> Reply:
    """Embeddings, as numbers or as base64 of 32-bit floats."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(vector) if base64_encoded else list(vector),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return Reply(body={"object": "list", "data": data, "model": MODEL, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def error(status: int, message: str = "scripted", *, retry_after_s: float | None = None) -> Reply:
    """An error answer; `retry_after_s` tells the SDK how long to wait before it tries again."""
    headers = {} if retry_after_s is None else {"retry-after-ms": str(int(retry_after_s * 1000))}
    body = {"error": {"message": message, "type": "scripted_error", "param": None, "code": None}}
    return Reply(status=status, body=body, headers=headers)


class FakeOpenAI:
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``base_url``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Received] = []
        self._script: deque[Reply] = deque()
        self._stopping = threading.Event()
        self._server = _Server(self)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeOpenAI:
        threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="fake-openai", daemon=True
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
        return _default(request)

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the server's end."""
        if seconds > 0:
            self._stopping.wait(seconds)


def _default(request: Received) -> Reply:
    asked: Any = request.json if request.body else {}
    path = request.path.partition("?")[0]
    if path.endswith("/embeddings"):
        inputs: Any = asked.get("input")
        many = 1 if isinstance(inputs, str) or isinstance(inputs[0], int) else len(inputs)
        return embeddings([[0.5, 0.25, -1.0]] * many, base64_encoded=asked.get("encoding_format") == "base64")
    if path.endswith("/chat/completions") and request.method == "POST":
        if asked.get("stream"):
            options: Any = asked.get("stream_options") or {}
            return chat_stream(usage=bool(options.get("include_usage")))
        return chat()
    if path.endswith("/models"):
        return Reply(
            body={"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "x"}]}
        )
    return error(404, "no such endpoint")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, fake: FakeOpenAI) -> None:
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

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""

    @property
    def _fake(self) -> FakeOpenAI:
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
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for position, event in enumerate(events):
            self._fake.wait(reply.delay_s)
            if position == reply.cut_after:
                self.close_connection = True
                return
            self._send_piece(b"data: " + json.dumps(event).encode() + b"\n\n")
        if reply.done:
            self._send_piece(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_piece(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
