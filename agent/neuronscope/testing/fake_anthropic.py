"""A provider that speaks Anthropic's wire format on a real loopback socket, for tests of services.

::

    with ns.testing.FakeAnthropic() as server:
        client = anthropic.Anthropic(base_url=server.base_url, api_key="test")
        server.reply(message("Paris."))
        client.messages.create(model="m", max_tokens=9, messages=[...])

Unscripted requests get a message or its stream.  Usage: 5 fresh input tokens, 4 read from the cache, 2
written to it, 5 output tokens of which 2 are thinking.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from neuronscope.testing.fake_bedrock import EVENT_STREAM
from neuronscope.testing.fake_provider import MODEL, NAMED_EVENTS, FakeProvider, Framing, Received, Reply

__all__ = [
    "FakeAnthropic",
    "Reply",
    "block_events",
    "error",
    "message",
    "message_stream",
    "on_bedrock",
    "stream_of",
]

INPUT_USAGE: Final[Mapping[str, Any]] = {
    "input_tokens": 5,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 2,
}
OUTPUT_USAGE: Final[Mapping[str, Any]] = {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 2}}
_HEAD: Final = {
    "id": "msg_fake",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "stop_sequence": None,
}


def message(text: str = "Hello from the fake provider.", **changes: Any) -> Reply:
    """A message of one text; `changes` replace fields (``content=…``, ``stop_reason=…``)."""
    body = {
        **_HEAD,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {**INPUT_USAGE, **OUTPUT_USAGE},
        **changes,
    }
    return Reply(body=body)


def message_stream(text: str = "Hello from the fake provider.", **reply: Any) -> Reply:
    """A streamed message of one text, a word an event; `reply` are fields of `Reply`."""
    words = [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return stream_of(block_events(0, {"type": "text", "text": ""}, deltas), **reply)


def block_events(index: int, block: Mapping[str, Any], deltas: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The events of one content block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": dict(block)},
        *({"type": "content_block_delta", "index": index, "delta": dict(delta)} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def stream_of(blocks: Sequence[Any], *, stop_reason: str | None = "end_turn", **reply: Any) -> Reply:
    """A streamed message of these events; without a `stop_reason` it breaks off before its end."""
    start: dict[str, Any] = {
        **_HEAD,
        "content": [],
        "stop_reason": None,
        "usage": {**INPUT_USAGE, "output_tokens": 1},
    }
    events: list[Any] = [{"type": "message_start", "message": start}, {"type": "ping"}, *blocks]
    if stop_reason is not None:
        end = {"stop_reason": stop_reason, "stop_sequence": None}
        events += [
            {"type": "message_delta", "delta": end, "usage": dict(OUTPUT_USAGE)},
            {"type": "message_stop"},
        ]
    return Reply(events=events, **reply)


def on_bedrock(reply: Reply) -> Reply:
    """A streamed message as Bedrock sends it: each event in base64, in a frame of AWS's event stream."""
    chunks = [
        event if isinstance(event, bytes) else {"chunk": {"bytes": _base64(event)}}
        for event in reply.events or ()
    ]
    return replace(reply, events=chunks, framing=EVENT_STREAM)


def _base64(event: Any) -> str:
    return base64.b64encode(json.dumps(event).encode()).decode()


def error(status: int, message: str = "scripted", *, retry_after_s: float | None = None) -> Reply:
    """An error answer; `retry_after_s` tells the SDK how long to wait before it tries again."""
    headers = {} if retry_after_s is None else {"retry-after-ms": str(int(retry_after_s * 1000))}
    body = {"type": "error", "error": {"type": "scripted_error", "message": message}}
    return Reply(status=status, body=body, headers=headers)


class FakeAnthropic(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``base_url``.
    """

    FRAMING: ClassVar[Framing] = NAMED_EVENTS

    def unscripted(self, request: Received) -> Reply:
        """A message, its stream, a token count, or the list of models."""
        path = request.path.partition("?")[0]
        if path.endswith(("/v1/messages", ":rawPredict")):
            return message_stream() if _streams(request) else message()
        if path.endswith(":streamRawPredict"):
            return message_stream()
        if path.endswith("/invoke-with-response-stream"):
            return on_bedrock(message_stream())
        if path.endswith("/invoke"):
            return message()
        if path.endswith("/count_tokens"):
            return Reply(body={"input_tokens": 7})
        if path.endswith("/v1/models"):
            model = {
                "id": MODEL,
                "type": "model",
                "display_name": "Fake",
                "created_at": "2026-01-01T00:00:00Z",
            }
            return Reply(body={"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL})
        return error(404, "no such endpoint")


def _streams(request: Received) -> bool:
    return bool(request.body) and bool(json.loads(request.body).get("stream"))
