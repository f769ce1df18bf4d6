"""A client library whose methods do what a test tells them to, and its integration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fakelib import STREAM
from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)


class Client:
    """Does the work it is given."""

    def call(self, work: Callable[[Any], Any], argument: Any = None, *, option: Any = None) -> Any:
        """Observed."""
        return work(argument)

    async def acall(
        self, work: Callable[[Any], Awaitable[Any]], argument: Any = None, *, option: Any = None
    ) -> Any:
        """Observed."""
        return await work(argument)


def function(argument: Any) -> Any:
    """Observed, and no method."""
    return argument


def _read_request(arguments: Any, content: bool) -> Request:
    return Request(model="m", extra={"victim.argument": str(arguments.get("argument"))} if content else {})


def _read_response(result: Any, content: bool) -> Response:
    return Response(model="m", output_tokens=1)


def _fold(so_far: Response, chunk: Any, content: bool) -> Response:
    return Response(model="m", output_tokens=(so_far.output_tokens or 0) + 1)


def _is_content(chunk: Any) -> bool:
    return True


ENDPOINT = Endpoint(
    operation=Operation.CHAT,
    read_request=_read_request,
    read_response=_read_response,
    fold_chunk=_fold,
    is_content=_is_content,
)


def snapshot(instance: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    return Snapshot(ENDPOINT, "m", dict(arguments) if content else {}, Peer("victim", "localhost", 1))


def integration() -> ClientIntegration:
    """The table."""
    return ClientIntegration(
        name="victim",
        requires="victim",
        kind=Kind.LLM,
        methods=tuple(
            WrappedMethod(target=f"victimlib:{target}", snapshot=snapshot, stream=STREAM)
            for target in ("Client.call", "Client.acall", "function")
        ),
    )
