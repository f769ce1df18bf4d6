"""The service answers byte for byte alike: without us, with us, and with every part of ours failing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.asgi import UVICORN, others, server
from served import Kept, Server, served, wait_until

pytestmark = pytest.mark.integration

RAISED: list[ValueError] = []


def error() -> ValueError:
    RAISED.append(ValueError("the service's own"))
    return RAISED[-1]


async def echo(request: Request) -> Response:
    body = await request.body()
    return Response(body, headers={"x-scope": ",".join(sorted(map(str, request.scope)))})


async def boom(request: Request) -> Response:
    raise error()


async def stream(request: Request) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"chunk %d" % number
        if "cut" in request.query_params:
            raise error()

    return StreamingResponse(chunks(), media_type="text/event-stream")


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An application that breaks the protocol in the way its path says."""
    path = scope["path"].rpartition("/")[2]
    if path == "raise":
        raise error()
    if path == "silent":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]})
    if path == "unfinished":
        return
    if path == "twice":
        await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"ok"})
    if path == "late":
        await send({"type": "http.response.body", "body": b"more"})


APP = Starlette(
    routes=[
        Route("/echo/{x}", echo, methods=["GET", "POST"]),
        Route("/boom", boom),
        Route("/stream", stream),
        Mount("/bare", bare),
    ]
)

REQUESTS = [
    b"GET /echo/1 HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"HEAD /echo/1 HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"POST /echo/1?a=b HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc",
    b"POST /echo/1 HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0\r\n\r\n",
    b"GET /stream HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /stream?cut HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /boom HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"PUT /echo/1 HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /echo/1 HTTP/1.0\r\ntraceparent: nonsense\r\nbaggage: \xff\xfe\r\n\r\n",
    b"GET /bare/fine HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /bare/raise HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /bare/silent HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /bare/unfinished HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /bare/twice HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
    b"GET /bare/late HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n",
]
Heard = list[tuple[int, str, str]]


def conversation(caplog: pytest.LogCaptureFixture) -> tuple[list[bytes], Heard]:
    """All answers, and what uvicorn logged: level, message, exception."""
    caplog.clear()
    with caplog.at_level(logging.INFO), served(APP) as running:
        answers = [running.exchange(request) for request in REQUESTS]
    heard = [
        (record.levelno, record.getMessage().partition("- ")[2] or record.getMessage(), repr(record.exc_info))
        for record in caplog.records
        if record.name in ("uvicorn.error", "uvicorn.access") and "process" not in record.getMessage()
    ]
    return answers, [(level, text, what.partition(", <traceback")[0]) for level, text, what in heard]


@contextmanager
def failing(where: Callable[[], tuple[object, str]], monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Make one of our functions raise, with the guard as in production."""

    def fault(*args: object, **kwargs: object) -> Any:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(GUARD, "reraise", False)
        patch.setattr(*where(), fault)
        yield
        # A site with a hundred faults would be switched off, and stop being tested.
        assert sum(GUARD.faults.values()) > 0, "the fault was never reached"
        GUARD.reset()


FAULTS: dict[str, Callable[[], tuple[object, str]]] = {
    "wrap": lambda: (server.Seam, "wrap"),
    "open": lambda: (server.Seam, "open"),
    "others": lambda: (others.Others, "trace"),
    "open_span": lambda: (ENGINE, "open_span"),
    "headers": lambda: (server, "trace_headers"),
    "enter": lambda: (server.Request, "enter"),
    "note": lambda: (server.Request, "_note"),
    "route": lambda: (server, "route_template"),
    "rename": lambda: (server.Request, "_rename"),
    "outcome": lambda: (server.Request, "_outcome"),
    "finish": lambda: (ENGINE, "finish"),
}


@pytest.fixture(scope="module")
def plain() -> dict[str, tuple[list[bytes], Heard]]:
    return {}


def undisturbed(
    plain: dict[str, tuple[list[bytes], Heard]], caplog: pytest.LogCaptureFixture
) -> tuple[list[bytes], Heard]:
    """The conversation without us, held once."""
    if "it" not in plain:
        assert not ENGINE.active
        plain["it"] = conversation(caplog)
    return plain["it"]


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_answers_and_logs_are_the_same(
    fault: str | None,
    plain: dict[str, tuple[list[bytes], Heard]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every answer byte, uvicorn's log lines and the exceptions in them."""
    expected = undisturbed(plain, caplog)
    assert len(expected[0]) == len(REQUESTS)
    kept = Kept()
    ns.Platform(exporters=[kept])
    ns.instrument("uvicorn")
    if fault is None:
        observed = conversation(caplog)
        wait_until(lambda: ns.flush() and len(kept.servers) == len(REQUESTS))
    else:
        with failing(FAULTS[fault], monkeypatch):
            observed = conversation(caplog)
    assert observed == expected


def test_exception_reaches_the_server_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """The same object, without a cause or context of ours."""
    ns.Platform()
    ns.instrument("uvicorn")
    with served(bare, lifespan="off") as running:
        running.get("/raise")
        wait_until(lambda: any(record.exc_info for record in caplog.records))
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[1] is RAISED[-1]
    assert RAISED[-1].__context__ is None
    assert RAISED[-1].__cause__ is None


def test_attributes_of_the_application_stay_reachable() -> None:
    """Whoever reads the loaded application finds the application's own attributes."""
    ns.Platform()
    ns.instrument("uvicorn")
    with served(APP, proxy_headers=False) as running:
        assert isinstance(running.app, server.TracedApp)
        assert running.app.routes == APP.routes
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = running.app.no_such_thing


def test_uninstrument_restores_uvicorn_and_silences_running_servers() -> None:
    """`Config.load` is the original again; an application already wrapped just passes on."""
    from uvicorn.config import Config

    original = Config.load
    kept = Kept()
    ns.Platform(exporters=[kept])
    ns.instrument("uvicorn")
    assert Config.load is not original
    with served(APP) as running:
        running.get("/echo/1")
        wait_until(lambda: ns.flush() and len(kept.servers) == 1)
        ns.uninstrument("uvicorn")
        assert Config.load is original
        assert running.get("/echo/1").startswith(b"HTTP/1.1 200")
        ns.flush()
    assert len(kept.servers) == 1


def test_application_is_wrapped_once() -> None:
    """Two installations, and an application that is ours already: one wrapper."""
    from types import SimpleNamespace

    seam = server.Seam(ENGINE)
    config = SimpleNamespace(loaded_app=bare)
    seam.wrap(config)
    first = config.loaded_app
    seam.wrap(config)
    assert config.loaded_app is first
    assert "uvicorn.config" in UVICORN.modules


def test_inactive_engine_costs_nothing_but_a_look() -> None:
    """Before `ns.Platform`, and after its shutdown, requests pass."""
    platform = ns.Platform()
    ns.instrument("uvicorn")
    with served(APP) as running:
        ENGINE.stop(0.1)
        assert _status(running) == b"200"
        platform.shutdown()
        assert _status(running) == b"200"


def _status(running: Server) -> bytes:
    return running.get("/echo/1").split(b" ")[1]
