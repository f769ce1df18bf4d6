"""A server that speaks Ollama's wire format on a real loopback socket, for tests of services.

::

    with ns.testing.FakeOllama() as server:
        client = ollama.Client(host=server.base_url)
        client.chat(model="m", messages=[...])

Unscripted requests get an answer of the right kind: a chat, a completion, either's stream, embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from neuronscope.testing.fake_provider import JSON_LINES, MODEL, FakeProvider, Framing, Received, Reply

__all__ = ["FakeOllama", "Reply", "chat", "chat_stream", "completion", "completion_stream", "embed", "error"]

USAGE: Final[Mapping[str, Any]] = {
    "total_duration": 9_000_000,
    "load_duration": 1_000_000,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 2_000_000,
    "eval_count": 5,
    "eval_duration": 6_000_000,
}
_HEAD: Final = {"model": MODEL, "created_at": "2026-01-01T00:00:00Z"}
_LAST: Final = {"done": True, "done_reason": "stop", **USAGE}


def chat(text: str = "Hello from the fake provider.", **message: Any) -> Reply:
    """A chat answer; `message` adds to the message (``tool_calls=…``)."""
    return Reply(body={**_HEAD, "message": {"role": "assistant", "content": text, **message}, **_LAST})


def chat_stream(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed chat, a word a part; `reply` are fields of `Reply`."""
    return parts([{"content": word} for word in _words(text)], **reply)


def parts(messages: Sequence[Mapping[str, Any]], **reply: Any) -> Reply:
    """A streamed chat of these pieces of a message."""
    told = [{**_HEAD, "message": {"role": "assistant", **piece}, "done": False} for piece in messages]
    return Reply(events=[*told, {**_HEAD, "message": {"role": "assistant", "content": ""}, **_LAST}], **reply)


def completion(text: str = "Hello from the fake provider.") -> Reply:
    """A completion."""
    return Reply(body={**_HEAD, "response": text, **_LAST})


def completion_stream(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed completion, a word a part."""
    told = [{**_HEAD, "response": word, "done": False} for word in _words(text)]
    return Reply(events=[*told, {**_HEAD, "response": "", **_LAST}], **reply)


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


def embed(vectors: Sequence[Sequence[float]]) -> Reply:
    """Embeddings."""
    return Reply(
        body={"model": MODEL, "embeddings": [list(vector) for vector in vectors], "prompt_eval_count": 3}
    )


def error(status: int, message: str = "scripted") -> Reply:
    """An error answer."""
    return Reply(status=status, body={"error": message})


class FakeOllama(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``host``.
    """

    FRAMING: ClassVar[Framing] = JSON_LINES

    def unscripted(self, request: Received) -> Reply:
        """An answer of the right kind."""
        asked: Any = request.json if request.body else {}
        streams = bool(asked.get("stream"))
        match request.path:
            case "/api/chat":
                return chat_stream() if streams else chat()
            case "/api/generate":
                return completion_stream() if streams else completion()
            case "/api/embed":
                inputs = asked.get("input")
                return embed([[0.5, 0.25, -1.0]] * (1 if isinstance(inputs, str) else len(inputs)))
            case "/api/embeddings":
                return Reply(body={"embedding": [0.5, 0.25, -1.0]})
            case "/api/tags":
                return Reply(body={"models": [{"model": MODEL}]})
            case _:
                return error(404, "no such endpoint")
