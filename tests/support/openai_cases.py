"""One service call of the OpenAI SDK seen three ways: without the agent, with it, with content capture."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx2
import openai
import pydantic

import client_cases
from client_cases import CANARY, MODES, Mode, Outcome, captured_logs, facts_like, plain, three_ways, wire
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI

__all__ = [
    "CANARY",
    "COMPLETE",
    "MESSAGES",
    "MODES",
    "STREAMED",
    "TOOLS",
    "USAGE",
    "Answer",
    "AsyncScenario",
    "Mode",
    "Outcome",
    "Scenario",
    "agent",
    "attempt",
    "captured_logs",
    "facts_like",
    "observe",
    "observe_async",
    "plain",
    "sync_client",
    "three_ways",
    "wire",
]

Scenario = Callable[[openai.OpenAI, FakeOpenAI], Any]
AsyncScenario = Callable[[openai.AsyncOpenAI, FakeOpenAI], Coroutine[Any, Any, Any]]
MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": CANARY}]
USAGE: Any = {"include_usage": True}
TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
COMPLETE = {names.INPUT_TOKENS: 11, names.OUTPUT_TOKENS: 5, names.FINISH_REASONS: ["stop"]}
STREAMED = {**COMPLETE, names.STREAM_END: "complete", names.STREAM_CHUNKS: 8}


class Answer(pydantic.BaseModel):
    """A structured output."""

    city: str


def agent(mode: Mode) -> AbstractContextManager[InMemoryExporter]:
    """The agent in one of the three modes, observing the SDK."""
    return client_cases.agent(mode, "openai")


@contextmanager
def sync_client(server: FakeOpenAI, **options: Any) -> Generator[openai.OpenAI]:
    """A client of the fake server; without TLS set-up it costs nothing to make."""
    with httpx2.Client(verify=False) as http:
        yield openai.OpenAI(base_url=server.base_url, api_key="test", http_client=http, **options)


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


def attempt(function: Callable[[], Any]) -> Any:
    """The result in comparable form, or the exception the service saw."""
    try:
        return plain(function())
    except (openai.OpenAIError, httpx2.HTTPError) as error:
        return plain(error)
