"""The OpenAI SDK, 1.40 to the newest: chat completions and embeddings.

One choke point, `request` of the sync and the async base client, sees every variant of a call: `create`,
`parse`, the `stream` helper, raw and streaming responses, Azure, and clients of compatible servers.  The
path of the request's URL decides what it is; paths that call no model run untouched.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import ClientIntegration, Kind, Stream, WrappedMethod
from neuronscope_instrumentation.openai.requests import inject_headers, snapshot

_CLIENTS: Final = (
    "openai._client:OpenAI",
    "openai._client:AsyncOpenAI",
    "openai.lib.azure:AzureOpenAI",
    "openai.lib.azure:AsyncAzureOpenAI",
)


@lru_cache(maxsize=256)
def _is_stream_class(kind: type) -> bool:
    return hasattr(kind, "__stream__")  # openai.Stream and AsyncStream; asking the class costs no import


@lru_cache(maxsize=256)
def _raw_response_field(kind: type) -> str | None:
    """Where a raw result keeps its HTTP response: an attribute, or ``""`` if it is one itself."""
    if hasattr(kind, "http_request") and hasattr(kind, "parse"):
        return "http_response"
    return "" if hasattr(kind, "iter_raw") else None


def is_stream(result: object) -> bool:
    """Is the result one of the SDK's stream objects?"""
    return _is_stream_class(type(result))  # type: ignore[arg-type] # mypy does not see that classes hash


def body(result: object) -> Any:
    """The HTTP response inside a raw result, None for a parsed one."""
    where = _raw_response_field(type(result))  # type: ignore[arg-type] # as above
    return result if where == "" else where and getattr(result, where)


def _get_iterator(stream: Any) -> Any:
    return stream._iterator


def _set_iterator(stream: Any, iterator: Any) -> None:
    stream._iterator = iterator


_STREAM: Final = Stream(
    is_stream=is_stream,
    get_iterator=_get_iterator,
    set_iterator=_set_iterator,
    body=lambda stream: stream.response,
)


def _request(target: str) -> WrappedMethod:
    return WrappedMethod(
        target=target, snapshot=snapshot, stream=_STREAM, body=body, inject_headers=inject_headers
    )


OPENAI: Final = ClientIntegration(
    name="openai",
    requires="openai>=1.40",
    kind=Kind.LLM,
    methods=(
        _request("openai._base_client:SyncAPIClient.request"),
        _request("openai._base_client:AsyncAPIClient.request"),
    ),
    copies=tuple(f"{client}.{method}" for client in _CLIENTS for method in ("copy", "with_options")),
)
