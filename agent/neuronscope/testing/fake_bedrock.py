"""A provider that speaks AWS Bedrock's wire format on a real loopback socket, binary event streams included.

::

    with ns.testing.FakeBedrock() as server:
        client = boto3.client("bedrock-runtime", endpoint_url=server.base_url, region_name="eu-west-1")
        client.converse(modelId="anthropic.claude-sonnet-4-v1:0", messages=[...])

Unscripted requests get an answer of the right kind: a conversation, its stream, `InvokeModel` of a Claude
or an embedding model, and a job.  Tokens are 11 in, 5 out; in conversations 4 more were read from the cache.
"""

from __future__ import annotations

import base64
import json
import struct
from binascii import crc32
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast
from urllib.parse import unquote

from neuronscope.testing.fake_provider import FakeProvider, Framing, Received, Reply

__all__ = [
    "FakeBedrock",
    "Reply",
    "converse",
    "converse_stream",
    "error",
    "invoke",
    "invoke_stream",
    "stream_of",
]

USAGE: Final[Mapping[str, int]] = {
    "inputTokens": 11,
    "outputTokens": 5,
    "totalTokens": 20,
    "cacheReadInputTokens": 4,
    "cacheWriteInputTokens": 0,
}
_TOKEN_HEADERS: Final = {"x-amzn-bedrock-input-token-count": "11", "x-amzn-bedrock-output-token-count": "5"}
_METRICS: Final = {
    "inputTokenCount": 11,
    "outputTokenCount": 5,
    "invocationLatency": 20,
    "firstByteLatency": 9,
}
WORDS: Final = "Hello from the fake provider."


@dataclass(frozen=True, slots=True)
class EventStreamFraming(Framing):
    """AWS's binary framing: lengths and their checksum, headers, payload, checksum of the whole.

    An event is a mapping with one key, its kind; a kind that ends in ``Exception`` is an error event.
    """

    content_type: str = "application/vnd.amazon.eventstream"

    def encode(self, event: Any) -> bytes:
        """One event's bytes; bytes are sent as they are."""
        if isinstance(event, bytes):
            return event
        ((kind, payload),) = cast("Mapping[str, Any]", event).items()
        failed = kind.endswith("Exception")
        headers = {
            ":exception-type" if failed else ":event-type": kind,
            ":content-type": "application/json",
            ":message-type": "exception" if failed else "event",
        }
        return message(headers, json.dumps(payload).encode())


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message of an event stream; all its headers are strings (type 7)."""
    head = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    lengths = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    whole = lengths + struct.pack("!I", crc32(lengths)) + head + payload
    return whole + struct.pack("!I", crc32(whole))


EVENT_STREAM: Final = EventStreamFraming()


def converse(text: str = WORDS, *blocks: Any, reason: str = "end_turn") -> Reply:
    """A conversation's answer; `blocks` come after its text."""
    content = [{"text": text}, *blocks]
    return Reply(
        body={
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": reason,
            "usage": dict(USAGE),
            "metrics": {"latencyMs": 20},
        }
    )


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


def converse_stream(text: str = WORDS, **reply: Any) -> Reply:
    """A conversation's streamed answer, a word an event; `reply` are fields of `Reply`."""
    words = [
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": word}}} for word in _words(text)
    ]
    return stream_of([*words, {"contentBlockStop": {"contentBlockIndex": 0}}], **reply)


def stream_of(events: Sequence[Any], reason: str = "end_turn", **reply: Any) -> Reply:
    """A conversation's stream of these events."""
    begin = {"messageStart": {"role": "assistant"}}
    end = [{"messageStop": {"stopReason": reason}}, {"metadata": {"usage": dict(USAGE), "metrics": {}}}]
    return Reply(events=[begin, *events, *end], **reply)


def invoke(body: Any, *, counted: bool = True) -> Reply:
    """The answer of `InvokeModel`; `counted` adds Bedrock's token headers."""
    return Reply(body=body, headers=dict(_TOKEN_HEADERS) if counted else {})


def invoke_stream(chunks: Sequence[Any], **reply: Any) -> Reply:
    """The stream of `InvokeModelWithResponseStream`: chunks of JSON, the last with Bedrock's counts."""
    *others, last = chunks
    whole = [*others, {**last, "amazon-bedrock-invocationMetrics": dict(_METRICS)}]
    events = [{"chunk": {"bytes": base64.b64encode(json.dumps(chunk).encode()).decode()}} for chunk in whole]
    return Reply(events=events, **reply)


_CODES: Final = {
    400: "ValidationException",
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


def error(status: int, message: str = "scripted") -> Reply:
    """An error answer, with AWS's code for it."""
    code = _CODES.get(status, "InternalServerException")
    return Reply(status=status, body={"message": message}, headers={"x-amzn-ErrorType": code})


def _claude(text: str) -> dict[str, Any]:
    return {
        "id": "msg-fake",
        "type": "message",
        "role": "assistant",
        "model": "claude-fake",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 5},
    }


def _claude_chunks(text: str) -> list[Any]:
    begin: dict[str, Any] = {
        **_claude(text),
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 11},
    }
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": begin},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
            for word in _words(text)
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


class FakeBedrock(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``endpoint_url``.
    """

    FRAMING: ClassVar[Framing] = EVENT_STREAM

    def unscripted(self, request: Received) -> Reply:
        """An answer of the right kind."""
        path, _, operation = unquote(request.path).rpartition("/")
        if request.path == "/async-invoke":
            return Reply(body={"invocationArn": "arn:aws:bedrock:eu-west-1:1:async-invoke/fake"})
        match operation:
            case "converse":
                return converse()
            case "converse-stream":
                return converse_stream()
            case "invoke" if "embed" in path:
                return invoke({"embedding": [0.25, 0.25, 0.25], "inputTextTokenCount": 3}, counted=False)
            case "invoke":
                return invoke(_claude(WORDS))
            case "invoke-with-response-stream":
                return invoke_stream(_claude_chunks(WORDS))
            case _:
                return error(404, "no such operation")
