"""Who else makes the SERVER span of a request?  Then we make none.

Two others are known: OpenTelemetry's ASGI middleware, wherever it stands in the chain of applications,
and FastAPI's own telemetry, which is on as soon as any tracer provider is configured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from neuronscope.engine.guard import GUARD

MAX_LAYERS: Final = 32
_OTEL_MIDDLEWARE: Final = "OpenTelemetryMiddleware"


class Others:
    """Knows who else traces one application.  Looks again when a middleware stack has been (re)built.

    Args:
        app: the application as the server calls it.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._stacks: list[tuple[Any, object]] | None = None
        self._otel = False
        self._fastapi: list[dict[str, Any]] = []

    def trace(self, owns_pipeline: Callable[[], bool]) -> bool:
        """Will something inside the application make a SERVER span for this request?

        Args:
            owns_pipeline: whether spans go to our provider now.
        """
        stacks = self._stacks
        if stacks is None or any(layer.middleware_stack is not stack for layer, stack in stacks):
            self._look()
        return self._otel or any(_fastapi_traces(config, owns_pipeline) for config in self._fastapi)

    def _look(self) -> None:
        layers = list(_layers(self._app))
        self._otel = any(_otel_traces(layer) for layer in layers)
        configs = [getattr(getattr(layer, "_native_telemetry", None), "config", None) for layer in layers]
        self._fastapi = [cast("dict[str, Any]", config) for config in configs if isinstance(config, dict)]
        self._stacks = [
            (layer, vars(layer)["middleware_stack"])
            for layer in layers
            if "middleware_stack" in getattr(layer, "__dict__", ())
        ]


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


def _fastapi_traces(config: dict[str, Any], owns_pipeline: Callable[[], bool]) -> bool:
    """Does FastAPI's own telemetry trace into a pipeline of the service's?

    Where the only provider is ours, FastAPI is on just because we are here, and `quiet_fastapi` applies.
    """
    return bool(config.get("tracing")) and (config.get("tracer_provider") is not None or not owns_pipeline())


def quiet_fastapi(native: Any, is_ours: Callable[[], bool]) -> Callable[[], None]:
    """Keep FastAPI's telemetry from tracing a request that we trace into our own pipeline.

    Else there were two SERVER spans, one of them with the path and the query string.  FastAPI's metrics
    and logs go on as the service has them, and so do its spans where the pipeline is the service's.

    Args:
        native: FastAPI's class ``NativeTelemetry``.
        is_ours: whether the current request is traced by us into our own pipeline.

    Returns:
        The undo.
    """
    members = cast("dict[str, Callable[..., Any]]", vars(native))
    originals = {name: members[name] for name in ("enabled", "__call__")}
    without: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def quiet(telemetry: Any) -> Any:
        if not is_ours() or not telemetry.config["tracing"]:
            return telemetry
        twin = without.get(telemetry)
        if twin is None:
            twin = without[telemetry] = native({**telemetry.config, "tracing": False})
        return twin

    def through(original: Callable[..., Any]) -> Callable[..., Any]:
        # Not a coroutine function, even around one: no frame of ours stands in the service's tracebacks.
        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            return original(GUARD.call("asgi.fastapi", quiet, self, default=self), *args, **kwargs)

        return wrapper

    wrappers = {name: through(original) for name, original in originals.items()}
    for name, wrapper in wrappers.items():
        setattr(native, name, wrapper)

    def undo() -> None:
        for name, wrapper in wrappers.items():
            if vars(native).get(name) is wrapper:
                setattr(native, name, originals[name])

    return undo
