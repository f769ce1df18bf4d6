"""A tiny client library whose results are told by their types: what tests of `engine.entry` instrument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    ResponseSeam,
    Snapshot,
    WrappedMethod,
)


@dataclass
class Http:
    """A response of an HTTP library."""

    headers: Any


class Faulty:
    """A response whose headers cannot be read."""

    @property
    def headers(self) -> Any:
        raise RuntimeError("no headers")


class Client:
    """A library with a typed choke point, and a search."""

    def request(self, text: str, *, inner: Callable[[], Any] | None = None, http: Any = None) -> Any:
        """Do what `inner` does, and answer."""
        if http is not None:
            self.process(response=http, retries_taken=2)
        return text.upper() if inner is None else inner()

    def process(self, *, response: Any, retries_taken: int) -> None:
        """Look at the HTTP response."""

    async def arequest(self, text: str) -> str:
        """The same, awaited."""
        return text.upper()

    def search(self, text: str) -> dict[str, Any]:
        """Its hits come in an envelope."""
        return {"hits": text}


def read_request(arguments: Any, _content: bool) -> Request:
    return Request(model=arguments.get("text"))


def read_response(result: Any, _content: bool) -> Response:
    return Response(id=str(result))


ENDPOINT = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_response,
    read_headers=lambda headers: {"http.response.status_code": headers["status"]},
)


def snapshot(_instance: Any, arguments: dict[str, Any], _content: bool) -> Snapshot | None:
    text = arguments.get("text")
    if text == "nothing":
        return None
    if text == "fault":
        raise RuntimeError("a bug of ours")
    return Snapshot(ENDPOINT, text, {"text": text}, Peer("openai", "api.example.com", 443))


def unwrap(result: Any) -> Any:
    return result["hits"]


def no_body(_result: Any) -> None:
    """A result has no HTTP body in it."""


METHOD: dict[str, Any] = {"snapshot": snapshot, "typed": True, "body": no_body}
ADAPTER = ClientIntegration(
    name="typed",
    requires="typed",
    kind=Kind.LLM,
    methods=(
        WrappedMethod(target=f"{__name__}:Client.request", **METHOD),
        WrappedMethod(target=f"{__name__}:Client.arequest", **METHOD),
        WrappedMethod(target=f"{__name__}:Client.search", snapshot=snapshot, unwrap=unwrap),
    ),
    responses=(ResponseSeam(f"{__name__}:Client.process"),),
)
