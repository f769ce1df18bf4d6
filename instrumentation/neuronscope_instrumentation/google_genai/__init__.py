"""The Google Gen AI SDK, 1.9 to the newest: generate, streams, chats and embeddings, on Gemini and Vertex.

Four choke points of the API client see every call in the words of the wire: chats, automatic function
calling, sync and async.  The path decides what a request is; the others run untouched.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, Stream, WrappedMethod
from neuronscope_instrumentation.common.fields import field, mapping
from neuronscope_instrumentation.google_genai.requests import snapshot


def _is_stream(result: object) -> bool:
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


def inject_headers(client: Any, arguments: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Add trace headers to a copy of the request's options, unless the service has set its own."""
    options = arguments.get("http_options")
    given = mapping(field(options, "headers")) or {}
    defaults = mapping(field(client._http_options, "headers")) or {}
    if any(name.lower() in headers for name in (*given, *defaults)):
        return
    merged = {"headers": {**given, **headers}}
    known = mapping(options)
    if options is None or known is not None:
        arguments["http_options"] = {**(known or {}), **merged}
    else:
        arguments["http_options"] = options.model_copy(update=merged)


def _api(function: str) -> WrappedMethod:
    return WrappedMethod(
        target=f"google.genai._api_client:BaseApiClient.{function}",
        snapshot=snapshot,
        stream=Stream(is_stream=_is_stream),
        inject_headers=inject_headers,
    )


def _api_client(client: Any) -> Iterable[Any]:
    """What a client and its asynchronous side send requests with."""
    found = getattr(client, "_api_client", None)
    return () if found is None else (found,)


GOOGLE_GENAI: Final = ClientIntegration(
    name="google_genai",
    requires="google-genai>=1.9",
    kind=Kind.LLM,
    methods=tuple(
        _api(function)
        for function in ("request", "async_request", "request_streamed", "async_request_streamed")
    ),
    members=_api_client,
    gaps=(
        Gap("google.genai.live:AsyncLive.connect", "a websocket: calls are messages on it, not requests"),
        Gap("google.genai.batches:Batches.create", "answers come as a file, hours later"),
        Gap("google.genai.batches:Batches.create_embeddings", "answers come as a file, hours later"),
        *(
            Gap(f"google.genai.models:Models.{method}", "pictures and videos")
            for method in (
                "edit_image",
                "generate_images",
                "generate_videos",
                "recontext_image",
                "segment_image",
                "upscale_image",
            )
        ),
    ),
)
