"""SDKs that Stainless generates (openai, anthropic, …): one base client, one `request`, one stream class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import ResponseSeam, Snapshot, Stream, WrappedMethod
from neuronscope_instrumentation.common.fields import mapping


@lru_cache(maxsize=256)
def _is_stream_class(kind: type) -> bool:
    return hasattr(kind, "__stream__")  # Stream and AsyncStream; asking the class costs no import


@lru_cache(maxsize=256)
def _raw_response_field(kind: type) -> str | None:
    """Where a raw result keeps its HTTP response: an attribute, or ``""`` if it is one itself."""
    if hasattr(kind, "http_request") and hasattr(kind, "parse"):
        return "http_response"
    if hasattr(kind, "write_to_file"):  # sound and files: read before they are handed out
        return None
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


def request_method(
    target: str, snapshot: Callable[[Any, dict[str, Any], bool], Snapshot | None]
) -> WrappedMethod:
    """The choke point of such an SDK: `request` of a base client."""
    return WrappedMethod(
        target=target,
        snapshot=snapshot,
        stream=_STREAM,
        body=body,
        inject_headers=inject_headers,
        typed=True,
    )


def response_seams(base: str) -> tuple[ResponseSeam, ...]:
    """Where such an SDK has the HTTP response of a call in its hands; `base` is the module of its clients."""
    return tuple(ResponseSeam(f"{base}:{kind}APIClient._process_response") for kind in ("Sync", "Async"))


def inject_headers(client: Any, arguments: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Give a copy of the request's options our trace headers, unless the service has set its own."""
    options = arguments["options"]
    given = mapping(options.headers) or {}
    if options.headers and not given:
        return  # none that the SDK takes: it will say so
    defaults = mapping(getattr(client, "_custom_headers", None)) or {}
    if any(name.lower() in headers for name in (*given, *defaults)):
        return
    options = copy.copy(options)
    options.headers = {**given, **headers}
    arguments["options"] = options
