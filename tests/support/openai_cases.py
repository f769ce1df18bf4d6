"""One service call seen three ways: without the agent, with it, and with content capture."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httpx2
import openai
import pydantic

import neuronscope as ns
from neuronscope.signals.records import SpanRecord
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI

Mode = Literal["off", "on", "content"]
MODES: tuple[Mode, ...] = ("off", "on", "content")
Scenario = Callable[[openai.OpenAI, FakeOpenAI], Any]
AsyncScenario = Callable[[openai.AsyncOpenAI, FakeOpenAI], Coroutine[Any, Any, Any]]
# Ours; and what differs between two runs anyway.
IGNORED_HEADERS = frozenset({"traceparent", "idempotency-key"})
CANARY = "zebra-canary-7731"


@dataclass(frozen=True)
class Outcome:
    """What the service and the provider saw of one run, and what we recorded."""

    value: Any
    requests: list[Any]
    logs: list[str]
    spans: list[SpanRecord] = field(compare=False)


@contextmanager
def agent(mode: Mode) -> Generator[InMemoryExporter]:
    """The agent in one of the three modes, finishing spans in the caller's thread."""
    exporter = InMemoryExporter()
    if mode == "off":
        yield exporter
        return
    capture = "span_only" if mode == "content" else "no_content"
    with ns.Platform(exporters=[exporter], deferred=False, capture_content=capture):
        ns.instrument("openai")
        yield exporter


@contextmanager
def sync_client(server: FakeOpenAI, **options: Any) -> Generator[openai.OpenAI]:
    """A client of the fake server; without TLS set-up it costs nothing to make."""
    with httpx2.Client(verify=False) as http:
        yield openai.OpenAI(base_url=server.base_url, api_key="test", http_client=http, **options)


@contextmanager
def captured_logs() -> Generator[list[str]]:
    """Log records of every library at WARNING and above."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(f"{record.name}: {record.getMessage()}")

    handler = Keep(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger().removeHandler(handler)


def observe(mode: Mode, scenario: Scenario, server: FakeOpenAI, **options: Any) -> Outcome:
    """Run a scenario once."""
    server.clear()
    with captured_logs() as logs, agent(mode) as exporter, sync_client(server, **options) as client:
        value = attempt(lambda: scenario(client, server))
    return Outcome(value, wire(server), logs, exporter.spans)


def observe_async(mode: Mode, scenario: AsyncScenario, server: FakeOpenAI, **options: Any) -> Outcome:
    """Run an asynchronous scenario once, in an event loop of its own."""

    async def run() -> Any:
        async with httpx2.AsyncClient(verify=False) as http:
            client = openai.AsyncOpenAI(base_url=server.base_url, api_key="test", http_client=http, **options)
            try:
                return plain(await scenario(client, server))
            except openai.OpenAIError as error:
                return plain(error)

    server.clear()
    with captured_logs() as logs, agent(mode) as exporter:
        value = asyncio.run(run())
    return Outcome(value, wire(server), logs, exporter.spans)


def three_ways(run: Callable[[Mode], Outcome]) -> tuple[Outcome, Outcome]:
    """Run in all modes, require that the service and the provider saw the same; returns on and content."""
    off, on, content = (run(mode) for mode in MODES)
    assert on == off
    assert content == off
    assert not off.spans
    assert CANARY not in repr(on.spans)
    return on, content


def attempt(function: Callable[[], Any]) -> Any:
    """The result in comparable form, or the exception the service saw."""
    try:
        return plain(function())
    except (openai.OpenAIError, httpx2.HTTPError) as error:
        return plain(error)


def plain(value: Any) -> Any:
    """A value together with its types, comparable between runs."""
    if isinstance(value, pydantic.BaseModel):
        return type(value).__qualname__, value.model_dump(warnings=False), sorted(vars(value))
    if isinstance(value, BaseException):
        return (
            type(value).__qualname__,
            str(value),
            getattr(value, "status_code", None),
            plain(value.__cause__),
        )
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if issubclass(type(value), dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value).__qualname__, value


def wire(server: FakeOpenAI) -> list[Any]:
    """What the provider received, without what may differ."""
    return [
        (
            request.method,
            request.path,
            request.body,
            {name: value for name, value in request.headers.items() if name not in IGNORED_HEADERS},
        )
        for request in server.requests
    ]
