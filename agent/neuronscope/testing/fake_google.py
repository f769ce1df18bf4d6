"""A provider that speaks Gemini's wire format on a real loopback socket, for tests of services.

::

    with ns.testing.FakeGoogle() as server:
        client = genai.Client(api_key="test", http_options={"base_url": server.base_url})
        client.models.generate_content(model="m", contents="…")

Unscripted requests get an answer of the right kind: a generation, its stream, embeddings; Vertex's paths
work as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from neuronscope.testing.fake_provider import MODEL, SERVER_SENT, FakeProvider, Framing, Received, Reply

__all__ = ["FakeGoogle", "Reply", "chunks", "error", "generation", "generation_stream"]

USAGE: Final[Mapping[str, Any]] = {
    "promptTokenCount": 11,
    "cachedContentTokenCount": 4,
    "candidatesTokenCount": 3,
    "thoughtsTokenCount": 2,
    "totalTokenCount": 16,
}
_HEAD: Final = {"modelVersion": MODEL, "responseId": "gen-fake"}


def generation(text: str = "Hello from the fake provider.", **candidate: Any) -> Reply:
    """A generation of one candidate; `candidate` replaces its fields (``content=…``)."""
    told = {"index": 0, "content": _content([{"text": text}]), "finishReason": "STOP", **candidate}
    return Reply(body={**_HEAD, "candidates": [told], "usageMetadata": dict(USAGE)})


def _content(parts: Sequence[Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def generation_stream(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed generation, a word a chunk; `reply` are fields of `Reply`."""
    words = [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]
    return chunks([[{"text": word}] for word in words], **reply)


def chunks(parts: Sequence[Sequence[Any]], **reply: Any) -> Reply:
    """A streamed generation of these parts; the last chunk has finish reason and the whole usage."""
    told: list[Any] = []
    for position, some in enumerate(parts):
        candidate: dict[str, Any] = {"index": 0, "content": _content(some)}
        usage: dict[str, Any] = {"promptTokenCount": 11, "totalTokenCount": 11}
        if position == len(parts) - 1:
            candidate["finishReason"], usage = "STOP", dict(USAGE)
        told.append({**_HEAD, "candidates": [candidate], "usageMetadata": usage})
    return Reply(events=told, **reply)


def error(status: int, message: str = "scripted") -> Reply:
    """An error answer."""
    return Reply(status=status, body={"error": {"code": status, "message": message, "status": "SCRIPTED"}})


class FakeGoogle(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``base_url`` in its ``http_options``.
    """

    FRAMING: ClassVar[Framing] = replace(SERVER_SENT, suffix="\r\n\r\n")

    def unscripted(self, request: Received) -> Reply:
        """An answer of the right kind."""
        vector = {"values": [0.5, 0.25, -1.0]}
        match request.path.partition("?")[0].rpartition(":")[2]:
            case "generateContent":
                return generation()
            case "streamGenerateContent":
                return generation_stream()
            case "batchEmbedContents":
                return Reply(body={"embeddings": [vector] * len(request.json["requests"])})
            case "embedContent":
                return Reply(body={"embedding": vector, "usageMetadata": {"promptTokenCount": 3}})
            case "predict":
                told = {"embeddings": {**vector, "statistics": {"token_count": 3, "truncated": False}}}
                return Reply(body={"predictions": [told] * len(request.json["instances"])})
            case "countTokens":
                return Reply(body={"totalTokens": 7})
            case _:
                return error(404, "no such endpoint")
