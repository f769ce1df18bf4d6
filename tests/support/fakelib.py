"""A tiny client library, and its integration: what engine tests instrument."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    Stream,
    WrappedMethod,
)

__all__ = ["Client", "Endpoint", "FakeAsyncStream", "FakeStream", "Operation", "integration"]


class FakeStream:
    """A stream object as SDKs have them: an inner iterator, `close`, `with`."""

    def __init__(self, chunks: list[str], fail_after: int | None = None) -> None:
        self._iterator = self._read(chunks, fail_after)
        self.closed = False

    def _read(self, chunks: list[str], fail_after: int | None) -> Iterator[str]:
        for position, chunk in enumerate(chunks):
            if position == fail_after:
                raise ConnectionError("cut")
            yield chunk

    def __iter__(self) -> Iterator[str]:
        yield from self._iterator

    def __next__(self) -> str:
        return next(self._iterator)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeAsyncStream:
    """The asynchronous twin."""

    def __init__(self, chunks: list[str]) -> None:
        self._iterator = self._read(chunks)

    async def _read(self, chunks: list[str]) -> AsyncIterator[str]:
        for chunk in chunks:
            yield chunk

    async def __aiter__(self) -> AsyncIterator[str]:
        async for chunk in self._iterator:
            yield chunk

    async def close(self) -> None:
        """Nothing to release."""


@dataclass(eq=False)
class Client:
    """Answers with what it was asked."""

    calls: list[Any] = field(default_factory=list[Any])

    def chat(
        self, prompt: str, *, model: str = "m", stream: bool = False, fail: bool = False, cut: bool = False
    ) -> Any:
        """Return an answer, or a stream of its words."""
        self.calls.append(prompt)
        if fail:
            raise ValueError("no: " + prompt)
        if stream:
            return FakeStream(prompt.split(), fail_after=0 if cut else None)
        return {"text": prompt, "tokens": len(prompt.split())}

    async def achat(self, prompt: str, *, model: str = "m", stream: bool = False) -> Any:
        """The same, awaited."""
        self.calls.append(prompt)
        return FakeAsyncStream(prompt.split()) if stream else {"text": prompt, "tokens": 1}

    def outer(self, prompt: str) -> Any:
        """Calls another observed method: one span."""
        return self.chat(prompt)


def read_request(arguments: Any, content: bool) -> Request:
    return Request(model=arguments.get("model"), stream=arguments.get("stream"))


def read_response(result: Any, content: bool) -> Response:
    return Response(model="m-1", output_tokens=result["tokens"])


def fold_chunk(response: Response, chunk: Any, content: bool) -> Response:
    return Response(model="m-1", output_tokens=(response.output_tokens or 0) + 1)


CHAT = Endpoint(
    operation=Operation.CHAT, read_request=read_request, read_response=read_response, fold_chunk=fold_chunk
)
STREAM = Stream(
    is_stream=lambda result: isinstance(result, FakeStream | FakeAsyncStream),
    get_iterator=lambda stream: stream._iterator,
    set_iterator=lambda stream, iterator: setattr(stream, "_iterator", iterator),
)


def snapshot(instance: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    kept: dict[str, Any] = {key: arguments[key] for key in ("model", "stream") if key in arguments}
    return Snapshot(CHAT, arguments.get("model", "m"), kept, Peer("fake", "localhost", 1))


def integration(module: str, **changes: Any) -> ClientIntegration:
    """The table for this module under the name by which a test imported it."""
    methods = tuple(
        WrappedMethod(target=f"{module}:Client.{name}", snapshot=snapshot, stream=STREAM, **changes)
        for name in ("chat", "achat", "outer")
    )
    return ClientIntegration(name="fake", requires="fake>=1", kind=Kind.LLM, methods=methods)
