"""A provider that speaks Mistral's wire format on a real loopback socket, for tests of services.

::

    with ns.testing.FakeMistral() as server:
        client = Mistral(server_url=server.base_url, api_key="test")
        client.chat.complete(model="m", messages=[...])

Unscripted requests get an answer of the right kind: a chat, its stream, embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from neuronscope.testing.fake_provider import (
    MODEL,
    SERVER_SENT_DONE,
    FakeProvider,
    Framing,
    Received,
    Reply,
)

__all__ = ["FakeMistral", "Reply", "chat", "chat_stream", "chunks", "embeddings", "error"]

USAGE: Final[Mapping[str, Any]] = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
}
_HEAD: Final = {"id": "cmpl-fake", "created": 1_700_000_000, "model": MODEL}


def chat(text: str = "Hello from the fake provider.", **message: Any) -> Reply:
    """A chat answer of one choice; `message` adds to the message (``tool_calls=…``)."""
    whole = {"role": "assistant", "content": text, **message}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": whole, "finish_reason": reason}
    return Reply(body={**_HEAD, "object": "chat.completion", "choices": [choice], "usage": dict(USAGE)})


def chat_stream(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed chat, a word a chunk; `reply` are fields of `Reply`."""
    words = [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]
    return chunks([{"role": "assistant", "content": ""}, *({"content": word} for word in words)], **reply)


def chunks(deltas: Sequence[Mapping[str, Any]], reason: str = "stop", **reply: Any) -> Reply:
    """A streamed chat of these deltas; finish reason and usage come with the last chunk."""
    told = [_chunk({"index": 0, "delta": dict(delta), "finish_reason": None}) for delta in deltas]
    last = _chunk({"index": 0, "delta": {"content": ""}, "finish_reason": reason})
    return Reply(events=[*told, {**last, "usage": dict(USAGE)}], **reply)


def _chunk(choice: Any) -> dict[str, Any]:
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def embeddings(vectors: Sequence[Sequence[float]]) -> Reply:
    """Embeddings."""
    data = [
        {"object": "embedding", "index": index, "embedding": list(vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
    return Reply(body={"id": "emb-fake", "object": "list", "data": data, "model": MODEL, "usage": usage})


def error(status: int, message: str = "scripted") -> Reply:
    """An error answer."""
    return Reply(
        status=status, body={"object": "error", "message": message, "type": "scripted", "code": None}
    )


class FakeMistral(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``server_url``.
    """

    FRAMING: ClassVar[Framing] = SERVER_SENT_DONE

    def unscripted(self, request: Received) -> Reply:
        """An answer of the right kind."""
        asked: Any = request.json if request.body else {}
        if request.path.endswith("/completions"):
            return chat_stream() if asked.get("stream") else chat()
        if request.path.endswith("/embeddings"):
            inputs = asked.get("input")
            return embeddings([[0.5, 0.25, -1.0]] * (1 if isinstance(inputs, str) else len(inputs)))
        if request.path.endswith("/models"):
            return Reply(body={"object": "list", "data": []})
        return error(404, "no such endpoint")
