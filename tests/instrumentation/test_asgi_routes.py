"""Route templates, read off real frameworks' scopes; never a path or a part of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route

from neuronscope_instrumentation.asgi.routes import route_template
from neuronscope_instrumentation.asgi.server import trace_headers


async def answer(request: Request) -> Response:
    return PlainTextResponse("ok")


async def other(request: Request) -> Response:
    return PlainTextResponse("other")


async def raw(scope: Any, receive: Any, send: Any) -> None:
    """An application without routes."""
    await PlainTextResponse("raw")(scope, receive, send)


def starlette() -> Starlette:
    shared = [Route("/{item:int}", answer), Route("/", other)]
    return Starlette(
        routes=[
            Route("/", answer),
            Route("/users/{user}", answer, methods=["GET"]),
            Mount("/static", app=raw),
            Mount("/a/{x}", routes=shared),
            Mount("/b", routes=[Mount("/{y}", routes=shared)]),
            Mount("/fastapi", app=fastapi()),
            Host("{tenant}.example.org", app=Starlette(routes=[Route("/home/{z}", answer)])),
            Mount("", routes=[Route("/last/{w}", answer)]),
        ]
    )


def fastapi() -> FastAPI:
    app = FastAPI()
    inner = APIRouter(prefix="/inner")
    outer = APIRouter()

    @app.get("/items/{item}")
    def item(item: str) -> str:
        return item

    @inner.get("/{leaf}")
    def leaf(leaf: str) -> str:
        return leaf

    @inner.api_route("/any/{leaf}", methods=["POST"])
    def posted(leaf: str) -> str:
        return leaf

    outer.include_router(inner, prefix="/outer/{o}")
    app.include_router(outer, prefix="/api")
    app.include_router(outer, prefix="/v2")
    app.mount("/files", raw)
    app.mount("/sub", Starlette(routes=[Route("/{s}/deep", answer)]))
    app.add_route("/plain/{p}", answer)
    return app


def scope_after(
    app: Any, path: str, method: str = "GET", host: str = "localhost", **more: Any
) -> dict[str, Any]:
    """Run one request in process, and return what the framework made of the scope."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"q=1",
        "headers": [(b"host", host.encode())],
        "root_path": "",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        **more,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    asyncio.run(app(scope, receive, send))
    return scope


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("/users/ada", "/users/{user}"),
        ("/users/ada/", "/{path}"),  # the mount at the end takes what no route matches
        ("/static/css/site.css", "/static/{path}"),
        ("/a/blue/7", "/a/{x}/{item:int}"),
        ("/a/blue/", "/a/{x}/"),
        ("/a/blue/none/at/all", "/a/{x}/{path}"),
        ("/b/green/7", "/b/{y}/{item:int}"),
        ("/b/a/7", "/b/{y}/{item:int}"),
        ("/fastapi/items/1", "/fastapi/items/{item}"),
        ("/fastapi/api/outer/1/inner/2", "/fastapi/api/outer/{o}/inner/{leaf}"),
        ("/fastapi/docs", "/fastapi/docs"),
        ("/last/1", "/last/{w}"),
    ],
)
def test_starlette(path: str, expected: str | None) -> None:
    """Plain routes, mounts in mounts, one list of routes mounted twice, FastAPI inside Starlette."""
    assert route_template(scope_after(starlette(), path)) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/items/1", "/items/{item}"),
        ("/api/outer/1/inner/2", "/api/outer/{o}/inner/{leaf}"),
        ("/v2/outer/1/inner/2", "/v2/outer/{o}/inner/{leaf}"),
        ("/api/outer/1/inner/any/2", "/api/outer/{o}/inner/any/{leaf}"),  # 405: the route is known
        ("/files/a/b.txt", "/files/{path}"),
        ("/sub/1/deep", "/sub/{s}/deep"),
        ("/plain/1", "/plain/{p}"),
        ("/openapi.json", "/openapi.json"),
        ("/items/1/", None),  # a redirect to the path without the slash: no route has run
        ("/nowhere", None),
    ],
)
def test_fastapi(path: str, expected: str | None) -> None:
    """Included routers under two prefixes, mounts, Starlette routes, the pages FastAPI adds."""
    assert route_template(scope_after(fastapi(), path)) == expected


def test_host_is_no_part_of_the_template() -> None:
    """A host's pattern holds a tenant's name; the route does not."""
    scope = scope_after(starlette(), "/home/1", host="blue.example.org")
    assert route_template(scope) == "/home/{z}"


def test_application_behind_a_prefix_keeps_its_templates() -> None:
    """`--root-path` is where a proxy publishes the service; routes are the service's own."""
    scope = scope_after(starlette(), "/proxy/a/blue/7", root_path="/proxy")
    assert route_template(scope) == "/a/{x}/{item:int}"


def test_framework_without_routes_in_the_scope_has_none() -> None:
    """A raw application, and a scope that nobody wrote into."""
    assert route_template(scope_after(raw, "/x/1")) is None
    assert route_template({"type": "http", "path": "/x/1", "endpoint": answer}) is None


def test_mounts_that_lead_back_to_themselves_end() -> None:
    """A cycle of applications is walked to a bounded depth."""
    app = Starlette(routes=[])
    app.router.routes.append(Mount("/loop", app=app))
    scope = scope_after(app, "/loop/loop/x")
    assert route_template(scope) == "/loop/loop/{path}"
    scope["root_path"] = "/elsewhere"
    assert route_template(scope) is None


def test_only_trace_headers_are_read() -> None:
    """Cookies and tokens are not even decoded; repeated headers are joined."""
    headers = [
        (b"cookie", b"\xff secret"),
        (b"traceparent", b"00-1"),
        (b"tracestate", b"a=1"),
        (b"tracestate", b"b=2"),
        (b"baggage", b"k=v"),
    ]
    assert trace_headers({"headers": headers}) == {
        "traceparent": "00-1",
        "tracestate": "a=1,b=2",
        "baggage": "k=v",
    }
