"""A provider that speaks both versions of Cohere's wire format on a real loopback socket.

::

    with ns.testing.FakeCohere() as server:
        client = cohere.ClientV2(base_url=server.base_url, api_key="test")
        client.chat(model="m", messages=[...])

Unscripted requests get an answer of the right kind: a chat, its stream, embeddings, a reranking.  Billed
are 11 tokens in and 5 out; `tokens` says more, as Cohere's own prompts add to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from neuronscope.testing.fake_provider import (
    NAMED_EVENTS,
    SERVER_SENT_DONE,
    FakeProvider,
    Framing,
    Received,
    Reply,
)

__all__ = [
    "FakeCohere",
    "Reply",
    "chat",
    "chat_stream",
    "chat_stream_v1",
    "chat_v1",
    "error",
    "rerank",
    "stream_of",
]

USAGE: Final[Mapping[str, Any]] = {
    "billed_units": {"input_tokens": 11.0, "output_tokens": 5.0},
    "tokens": {"input_tokens": 78.0, "output_tokens": 9.0},
    "cached_tokens": 4.0,
}
_META: Final = {"api_version": {"version": "1"}, **USAGE}
STREAM_JSON: Final = Framing("application/stream+json", prefix="", suffix="\n")


def chat(text: str = "Hello from the fake provider.", **message: Any) -> Reply:
    """A chat answer of version 2; `message` adds to the message (``tool_calls=…``)."""
    told = {"role": "assistant", "content": [{"type": "text", "text": text}], **message}
    reason = "TOOL_CALL" if "tool_calls" in message else "COMPLETE"
    return Reply(body={"id": "chat-fake", "finish_reason": reason, "message": told, "usage": dict(USAGE)})


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


def chat_stream(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed chat of version 2, a word an event; `reply` are fields of `Reply`."""
    words = [
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": word}}}}
        for word in _words(text)
    ]
    begin = {"type": "text", "text": ""}
    return stream_of(
        [
            {"type": "content-start", "index": 0, "delta": {"message": {"content": begin}}},
            *words,
            {"type": "content-end", "index": 0},
        ],
        **reply,
    )


def stream_of(events: Sequence[Any], reason: str = "COMPLETE", **reply: Any) -> Reply:
    """A streamed chat of version 2 of these events."""
    begin = {"type": "message-start", "id": "chat-fake", "delta": {"message": {"role": "assistant"}}}
    end = {"type": "message-end", "delta": {"finish_reason": reason, "usage": dict(USAGE)}}
    return Reply(events=[begin, *events, end], **reply)


def chat_v1(text: str = "Hello from the fake provider.") -> Reply:
    """A chat answer of version 1."""
    return Reply(body=_answer_v1(text))


def _answer_v1(text: str) -> dict[str, Any]:
    return {"text": text, "generation_id": "chat-fake", "finish_reason": "COMPLETE", "meta": dict(_META)}


def chat_stream_v1(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed chat of version 1: lines of JSON."""
    words = [{"is_finished": False, "event_type": "text-generation", "text": word} for word in _words(text)]
    end = {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE"}
    events = [
        {"is_finished": False, "event_type": "stream-start", "generation_id": "chat-fake"},
        *words,
        {**end, "response": _answer_v1(text)},
    ]
    return Reply(events=events, framing=STREAM_JSON, **reply)


def rerank(scores: Sequence[float], order: Sequence[int] | None = None) -> Reply:
    """A reranking; `order` are the ranks that the documents had, 0, 1, … if not given."""
    ranks = range(len(scores)) if order is None else order
    results = [{"index": index, "relevance_score": score} for index, score in zip(ranks, scores, strict=True)]
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1.0}}
    return Reply(body={"id": "rerank-fake", "results": results, "meta": meta})


def error(status: int, message: str = "scripted") -> Reply:
    """An error answer."""
    return Reply(status=status, body={"message": message})


class FakeCohere(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``base_url``.
    """

    FRAMING: ClassVar[Framing] = replace(NAMED_EVENTS, end=SERVER_SENT_DONE.end)

    def unscripted(self, request: Received) -> Reply:
        """An answer of the right kind."""
        asked: Any = request.json if request.body else {}
        match request.path:
            case "/v2/chat":
                return chat_stream() if asked.get("stream") else chat()
            case "/v1/chat":
                return chat_stream_v1() if asked.get("stream") else chat_v1()
            case "/v1/embed" | "/v2/embed":
                vectors = [[0.5, 0.25, -1.0]] * len(asked["texts"])
                meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 3.0}}
                told = {"float": vectors} if asked.get("embedding_types") else vectors
                kind = "embeddings_by_type" if asked.get("embedding_types") else "embeddings_floats"
                body = {"id": "embed-fake", "response_type": kind, "embeddings": told, "meta": meta}
                return Reply(body={**body, "texts": asked["texts"]})
            case "/v1/rerank" | "/v2/rerank":
                return rerank([0.9, 0.5, 0.1][: len(asked["documents"])])
            case "/v1/models":
                return Reply(body={"models": []})
            case _:
                return error(404, "no such endpoint")
