"""Who else makes the SERVER span of a request?  Then we make none.

Two others are known: OpenTelemetry's ASGI middleware, wherever it stands in the chain of applications,
and FastAPI's own telemetry, which is on as soon as any tracer provider is configured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final, cast

MAX_LAYERS: Final = 32
_OTEL_MIDDLEWARE: Final = "OpenTelemetryMiddleware"
_FASTAPI_KEY: Final = "fastapi.telemetry"


def already_traced(app: object, owns_pipeline: Callable[[], bool]) -> bool:
    """Will something inside `app` make a SERVER span for this request?

    Args:
        app: the application as the server calls it.
        owns_pipeline: whether spans go to our provider now.
    """
    return any(_otel_traces(layer) or _fastapi_traces(layer, owns_pipeline) for layer in _layers(app))


def _layers(app: object) -> Iterator[object]:
    """The application and what it wraps, outermost first, as far as the usual attributes tell."""
    for _ in range(MAX_LAYERS):
        if app is None:
            return
        yield app
        app = getattr(app, "middleware_stack", None) or getattr(app, "app", None)


def _otel_traces(layer: object) -> bool:
    if _is_otel_middleware(type(layer)):
        return True
    if getattr(layer, "middleware_stack", layer) is not None:
        return False  # its middleware, if it has any, is built: the next layers
    if getattr(layer, "_is_instrumented_by_opentelemetry", False) is True:
        return True
    planned: Any = getattr(layer, "user_middleware", ())
    return any(_is_otel_middleware(getattr(item, "cls", None)) for item in planned)


def _is_otel_middleware(kind: object) -> bool:
    return isinstance(kind, type) and any(base.__name__ == _OTEL_MIDDLEWARE for base in kind.__mro__)


def _fastapi_traces(layer: object, owns_pipeline: Callable[[], bool]) -> bool:
    """Is FastAPI's own telemetry the service's choice here?

    Where the only provider is ours, FastAPI is on just because we are here: then we trace, without the
    path and the query string, and `hush_fastapi` keeps it from doing so too.  Unless the service also
    has FastAPI's metrics or logs on, which one switch turns off together: those stay.
    """
    native: Any = getattr(layer, "_native_telemetry", None)
    config: object = getattr(native, "config", None)
    if not isinstance(config, dict):
        return False
    settings = cast("dict[str, Any]", config)
    if not settings.get("tracing"):
        return False
    if settings.get("tracer_provider") is not None or not owns_pipeline():
        return True
    return bool(type(native)({**settings, "tracing": False}).enabled())


def hush_fastapi(scope: MutableMapping[str, Any]) -> None:
    """Mark the request as traced, the way FastAPI itself does for the applications below it."""
    if _FASTAPI_KEY in sys.modules:
        scope.setdefault(_FASTAPI_KEY, None)


def unhush_fastapi(scope: MutableMapping[str, Any]) -> None:
    """Take the mark of `hush_fastapi` away."""
    if scope.get(_FASTAPI_KEY, scope) is None:
        del scope[_FASTAPI_KEY]
