"""The Cohere SDK, 5.11 to the newest: chat of both API versions, generate, embeddings and reranking.

Two choke points, `request` and `stream` of the HTTP client, are looked up when a call is made: they see
clients of both versions, raw responses, and methods that a client has bound when it was made.  The path
decides what a request is; the others run untouched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, WrappedMethod
from neuronscope_instrumentation.cohere.requests import inject_headers, snapshot


def _response(result: Any) -> Any:
    return result  # an HTTP response already


def _http(client: str, function: str) -> WrappedMethod:
    return WrappedMethod(
        target=f"cohere.core.http_client:{client}.{function}",
        snapshot=snapshot,
        body=_response,
        inject_headers=inject_headers,
        manager=function == "stream",
    )


def _http_client(client: Any) -> Iterable[Any]:
    """What a client, its raw twins and its parts send requests with."""
    wrapper = getattr(client, "_client_wrapper", None)
    return () if wrapper is None else (wrapper.httpx_client,)


COHERE: Final = ClientIntegration(
    name="cohere",
    requires="cohere>=5.11",
    kind=Kind.LLM,
    methods=tuple(
        _http(client, function)
        for client in ("HttpClient", "AsyncHttpClient")
        for function in ("request", "stream")
    ),
    members=_http_client,
    gaps=(
        Gap("cohere.base_client:BaseCohere.classify", "gone from version 2 of the API"),
        Gap("cohere.base_client:BaseCohere.summarize", "gone from version 2 of the API"),
        Gap("cohere.v2.client:V2Client.parse", "documents of pictures"),
        Gap("cohere.audio.transcriptions.client:TranscriptionsClient.create", "sound"),
    ),
)
