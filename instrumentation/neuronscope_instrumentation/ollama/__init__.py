"""The Ollama client, 0.4 to the newest: chat, generate and embeddings, plain and streamed.

One choke point, `_request` of the sync and the async client, is looked up when a call is made: functions
that a service has bound before us (``from ollama import chat``) are seen as well.  The path decides what a
request is; pulling, listing and the like run untouched.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, Stream, WrappedMethod
from neuronscope_instrumentation.common.fields import mapping
from neuronscope_instrumentation.ollama.requests import snapshot


def _is_stream(result: object) -> bool:
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


def inject_headers(client: Any, arguments: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Add trace headers to the HTTP request, unless the service has set its own on the client."""
    given = mapping(arguments.get("headers")) or {}
    if any(name.lower() in headers for name in (*given, *client._client.headers)):
        return
    arguments["headers"] = {**given, **headers}


def _request(client: str) -> WrappedMethod:
    return WrappedMethod(
        target=f"ollama._client:{client}._request",
        snapshot=snapshot,
        stream=Stream(is_stream=_is_stream),
        inject_headers=inject_headers,
    )


OLLAMA: Final = ClientIntegration(
    name="ollama",
    requires="ollama>=0.4",
    kind=Kind.LLM,
    methods=(_request("Client"), _request("AsyncClient")),
    gaps=(Gap("ollama._client:Client.systemone", "scores questions; no text, and no tokens told"),),
)
