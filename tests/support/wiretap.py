"""What passes between an SDK and a real server, copied beside the SDK; and what such an answer says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from neuronscope.signals import names


@dataclass
class Wire:
    """Requests that were sent, and the bytes that came back, as they came."""

    requests: list[httpx2.Request] = field(default_factory=list[httpx2.Request])
    bodies: list[bytearray] = field(default_factory=list[bytearray])

    def kept(self, request: httpx2.Request) -> bytearray:
        """Room for the answer to a request."""
        self.requests.append(request)
        self.bodies.append(bytearray())
        return self.bodies[-1]

    def documents(self, body: int = -1) -> list[dict[str, Any]]:
        """The answer, or the events of a stream."""
        text = self.bodies[body].decode()
        if not text.startswith(("data:", "event:")):
            return [json.loads(text)]
        found = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
        return [json.loads(line) for line in found if line != "[DONE]"]


class Tap(httpx2.HTTPTransport):
    """Passes everything on and keeps a copy.

    Args:
        wire: where to.
        port: of the server that is asked, wherever the URL points.
    """

    def __init__(self, wire: Wire, port: int) -> None:
        super().__init__()
        self._wire, self._port = wire, port

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        copy = self._wire.kept(request)
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        response = super().handle_request(request)
        response.stream = Copied(response.stream, copy)
        return response


class AsyncTap(httpx2.AsyncHTTPTransport):
    """Its asynchronous twin."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        copy = self._wire.kept(request)
        response = await super().handle_async_request(request)
        response.stream = AsyncCopied(response.stream, copy)
        return response


class Copied(httpx2.SyncByteStream):
    """A body that leaves a copy."""

    def __init__(self, stream: Any, copy: bytearray) -> None:
        self._stream, self._copy = stream, copy

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._copy.extend(part)
            yield part

    def close(self) -> None:
        self._stream.close()


class AsyncCopied(httpx2.AsyncByteStream):
    """Its asynchronous twin."""

    def __init__(self, stream: Any, copy: bytearray) -> None:
        self._stream, self._copy = stream, copy

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._copy.extend(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def told_by_openai(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts of an answer in OpenAI's words, whole or streamed."""
    answer = documents[-1].get("response", documents[-1])  # the last event of a stream of responses holds all
    usage = answer["usage"]
    reasons = {
        choice["index"]: choice["finish_reason"]
        for document in documents
        for choice in document.get("choices", ())
        if choice.get("finish_reason")
    }
    details: dict[str, Any] = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return {
        names.RESPONSE_ID: answer["id"],
        names.RESPONSE_MODEL: answer["model"],
        names.INPUT_TOKENS: usage.get("prompt_tokens", usage.get("input_tokens")),
        names.OUTPUT_TOKENS: usage.get("completion_tokens", usage.get("output_tokens")),
        names.CACHE_READ_TOKENS: details.get("cached_tokens"),
        # A response has a status in their place: this server always says that it is completed.
        names.FINISH_REASONS: [reasons[index] for index in sorted(reasons)] or ["stop"],
    }
