"""A provider that speaks OpenAI's wire format on a real loopback socket, for tests of services.

::

    with ns.testing.FakeOpenAI() as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="test")
        server.reply(chat("Paris."))
        client.chat.completions.create(model="m", messages=[...])
        assert server.requests[0].json["model"] == "m"

Unscripted requests get a plain answer of the right kind: a chat completion, its stream, embeddings, a
response (`fake_responses` makes them), images, sound and so on (`fake_media`).
Whatever can go wrong on the wire can be scripted: errors, waits, connections cut off.  Nothing is imported
but the standard library.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from neuronscope.testing import fake_media, fake_responses
from neuronscope.testing.fake_provider import (
    MODEL,
    SERVER_SENT_DONE,
    FakeProvider,
    Framing,
    Received,
    Reply,
)

__all__ = [
    "FakeOpenAI",
    "Reply",
    "chat",
    "chat_events",
    "chat_stream",
    "completion",
    "delta",
    "embeddings",
    "error",
]

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


class FakeOpenAI(FakeProvider):
    """The server: a context manager, one thread a connection.  Thread-safe.

    Attributes:
        base_url: what the client takes as ``base_url``.
    """

    BASE_PATH: ClassVar[str] = "/v1"
    FRAMING: ClassVar[Framing] = SERVER_SENT_DONE

    def unscripted(self, request: Received) -> Reply:
        """A chat completion, its stream, embeddings, or the list of models."""
        return _default(request)


def _default(request: Received) -> Reply:
    asked = _asked(request)
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
    if "/responses" in path:
        return _responses(request.method, path, asked)
    if path.endswith("/models"):
        return Reply(
            body={"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "x"}]}
        )
    found = fake_media.answer(path, streams=bool(asked.get("stream")))
    return found if found is not None else error(404, "no such endpoint")


def _asked(request: Received) -> Any:
    """The body of a request; of a form only whether it asks for a stream."""
    if "multipart/form-data" in "".join(request.headers.get("content-type", ())):
        return {"stream": b'name="stream"\r\n\r\ntrue' in request.body}
    return request.json if request.body else {}


def _responses(method: str, path: str, asked: Mapping[str, Any]) -> Reply:
    name = path.rpartition("/")[2]
    if method == "POST" and name == "responses":
        return fake_responses.answer(asked)
    if method == "POST" and name == "compact":
        compacted = {"id": "comp-fake", "encrypted_content": "…", "type": "compaction"}
        return fake_responses.response(object="response.compaction", status=None, output=[compacted])
    if name == "input_tokens":
        return Reply(body={"object": "response.input_tokens", "input_tokens": 11})
    if name == "cancel":
        return fake_responses.response(status="cancelled", output=[], usage=None)
    if name == "input_items":
        return Reply(body={"object": "list", "data": [], "has_more": False})
    return fake_responses.response()
