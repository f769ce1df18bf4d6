"""The route template of a request, read off the ASGI scope after the framework has routed it.

Starlette and FastAPI write into the server's scope which route matched.  A route's template is relative
to the application it belongs to; the templates of the mounts on the way are found again by matching,
because the scope holds only the text they matched (`root_path`), and that may contain values.

A template that is not known for certain is None: a wrong name is worse than a short one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

MAX_DEPTH: Final = 16
# What a mounted application makes of the rest of the path is its own affair (static files, say).
REST: Final = "/{path}"


class _Level(NamedTuple):
    """The application that routed last: the template of its mount, its routes, itself."""

    prefix: str
    routes: Iterable[Any]
    app: object = None


def route_template(scope: Mapping[str, Any]) -> str | None:
    """``/users/{user_id}/orders``, or None if no route matched or none can be told."""
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return None
    level = _Level("", getattr(scope.get("router"), "routes", None) or ())
    base = scope.get("app_root_path")  # only there once a mount has matched
    if base is not None:
        path, mounted = scope["path"].removeprefix(base), scope["root_path"].removeprefix(base)
        found = _descend(level, path, mounted, MAX_DEPTH)
        if found is None:
            return None
        level = found
    if endpoint is level.app:
        return level.prefix + REST
    route = _matched(scope, endpoint, level.routes)
    if route is None:
        return None
    own = getattr(route, "path", None) if hasattr(route, "endpoint") else REST
    return level.prefix + own if isinstance(own, str) else None


def _matched(scope: Mapping[str, Any], endpoint: object, routes: Iterable[Any]) -> Any:
    """The route that leads to the endpoint: the one named in the scope, or else looked for."""
    route = scope.get("route")
    if route is not None and _endpoint(route) is endpoint:
        # FastAPI's routers keep their routes as written; the path under the including router is here.
        effective = scope.get("fastapi", {}).get("effective_route_context")
        if effective is not None and getattr(effective, "original_route", None) is route:
            return getattr(effective, "starlette_route", None) or effective
        return route
    return next((candidate for candidate in _flat(routes) if _endpoint(candidate) is endpoint), None)


def _endpoint(route: Any) -> object:
    return getattr(route, "endpoint", None) or getattr(route, "app", None)


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    """The routes, those of included routers in place."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            for context in included():
                yield getattr(context, "starlette_route", None) or context


def _descend(level: _Level, path: str, mounted: str, depth: int) -> _Level | None:
    """Follow the mounts whose matched text adds up to `mounted`."""
    if not mounted:
        return level
    if depth == 0:
        return None
    for route in _flat(level.routes):
        inner: Iterable[Any] | None = getattr(route, "routes", None)
        if inner is None:
            continue
        prefix, rest = _step(route, path)
        if rest is None or not mounted.startswith(path[: len(path) - len(rest)]):
            continue
        below = _Level(level.prefix + prefix, inner, getattr(route, "app", None))
        found = _descend(below, rest, mounted[len(path) - len(rest) :], depth - 1)
        if found is not None:
            return found
    return None


def _step(route: Any, path: str) -> tuple[str, str | None]:
    """A mount's template, and what of the path is left behind it (None: it does not match)."""
    pattern, prefix = getattr(route, "path_regex", None), getattr(route, "path", None)
    if pattern is None or not isinstance(prefix, str):
        return "", path  # a `Host`: matches by name, takes nothing of the path
    match = pattern.match(path)
    if match is None or "path" not in pattern.groupindex:
        return "", None
    return prefix, "/" + match["path"]
