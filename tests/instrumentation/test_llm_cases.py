"""Public fault reports about agents for model clients, tried on ours, as far as no other test has them.

Numbers are those of the list of reports; `tests/agent/test_cases.py` says where each is tried.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import functools
import hashlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry import trace

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI, chat, chat_stream, error
from openai_cases import agent, sync_client

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    """A provider."""
    with FakeOpenAI() as fake:
        yield fake


# --- 6 ---------------------------------------------------------------------------------------------
class Body(httpx2.AsyncByteStream):
    """A body that knows whether it was closed."""

    closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in chat_stream("one two three").events or ():
            yield f"data: {json.dumps(event)}\n\n".encode()

    async def aclose(self) -> None:
        self.closed = True


def test_closing_an_async_stream_closes_the_transport() -> None:
    """`close` is awaited, and `async with` closes; attributes that we know nothing of are the stream's."""

    async def use(client: openai.AsyncOpenAI, bodies: list[Body]) -> None:
        create = client.chat.completions.create
        first: Any = await create(model="m", messages=MESSAGES, stream=True)
        await anext(first)
        assert first.response.headers["x-mine"] == "1"
        await first.close()
        assert bodies[-1].closed
        async with await create(model="m", messages=MESSAGES, stream=True) as second:
            await anext(second)
            second.mine = 1  # type: ignore[attr-defined] # as services do
            assert second.mine == 1  # type: ignore[attr-defined]
        assert bodies[-1].closed

    async def run() -> None:
        bodies: list[Body] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            bodies.append(Body())
            headers = {"content-type": "text/event-stream", "x-mine": "1"}
            return httpx2.Response(200, stream=bodies[-1], headers=headers)

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            await use(openai.AsyncOpenAI(api_key="x", http_client=http), bodies)

    with agent("on") as exporter:
        asyncio.run(run())
    assert [span.attributes[names.STREAM_END] for span in exporter.spans] == ["client_closed"] * 2


# --- 8 ---------------------------------------------------------------------------------------------
@pytest.mark.integration
def test_streams_are_what_frameworks_ask_for(server: FakeOpenAI) -> None:
    """Class, name, dispatch on it, and a shallow copy that reads like the original."""

    @functools.singledispatch
    def kind(value: object) -> str:
        return "something"

    @kind.register(openai.Stream)
    def _(value: object) -> str:
        return "a stream"

    with agent("on") as exporter, sync_client(server) as client:
        server.reply(chat_stream("one two"))
        stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        assert isinstance(stream, openai.Stream)
        assert type(stream) is openai.Stream
        assert kind(stream) == "a stream"
        twin = copy.copy(stream)
        assert type(twin) is openai.Stream
        assert len(list(twin)) == 5
        stream.close()
    assert len(exporter.spans) == 1


# --- 16 --------------------------------------------------------------------------------------------
@pytest.mark.integration
def test_tokens_that_an_agent_adds_up_are_billed_once(server: FakeOpenAI) -> None:
    """A span around two calls tells their sum; the metric has what was used."""
    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False), sync_client(server) as client:
        ns.instrument("openai")
        before = used()
        client.chat.completions.create(model="m", messages=MESSAGES)
        tracer = trace.get_tracer("agents")
        with tracer.start_as_current_span("invoke_agent a", kind=trace.SpanKind.CLIENT) as span:
            span.set_attributes(
                {
                    names.OPERATION_NAME: "invoke_agent",
                    names.PROVIDER_NAME: "openai",
                    names.INPUT_TOKENS: 22,
                    names.OUTPUT_TOKENS: 10,
                }
            )
            for _ in range(2):
                client.chat.completions.create(model="m", messages=MESSAGES)
        assert used() - before == 3 * (11 + 5)
    assert [span.name for span in exporter.spans] == ["chat m", "chat m", "chat m", "invoke_agent a"]


def used() -> float:
    """Tokens so far, of all kinds."""
    families = [each for each in ENGINE.metrics.collect().families if each.metric is names.TOKEN_USAGE]
    values: list[Any] = [point.value for family in families for point in family.points]
    return float(sum(value.sum for value in values))


# --- 18 --------------------------------------------------------------------------------------------
def test_huge_pictures_cost_their_hash() -> None:
    """20 MB on the way in, in a tool's result and on the way out: the text stays, size and digest are told.

    Fifty at a time with content off cost nothing that grows with them.
    """
    picture = bytes(range(256)) * 80_000
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    digest = hashlib.sha256(picture).hexdigest()
    messages: Any = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {"url": url}}]},
    ]
    body = json.dumps(chat("seen", audio={"id": "a", "data": url.partition(",")[2]}).body).encode()

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body, headers={"content-type": "application/json"})

    def call(client: openai.OpenAI) -> None:
        client.chat.completions.create(model="m", messages=messages)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = openai.OpenAI(api_key="x", http_client=http)
        with agent("content") as exporter:
            call(client)
        (span,) = exporter.spans
        asked = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
        blob = {
            "type": "blob",
            "modality": "image",
            "mime_type": "image/png",
            "size": len(picture),
            "sha256": digest,
        }
        assert asked[0]["parts"] == [{"type": "text", "content": "look"}, blob]
        assert asked[1]["parts"][0]["response"] == [blob]
        (told,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
        assert told["parts"][0] == {"type": "text", "content": "seen"}
        assert (told["parts"][1]["type"], told["parts"][1]["size"]) == ("blob", len(picture))
        assert len(str(span.attributes)) < 4096


def test_fifty_huge_calls_at_once_hold_nothing() -> None:
    """With content off nothing of a call is kept but its facts, however many there are."""
    url = "data:image/png;base64," + "A" * 1_000_000
    messages: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=chat("seen").body)

    exporter = InMemoryExporter()
    with (
        ns.Platform(exporters=[exporter]) as agent_on,
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        ns.instrument("openai")
        client = openai.OpenAI(api_key="x", http_client=http)

        def call(_: int) -> None:
            client.chat.completions.create(model="m", messages=messages)

        call(0)
        assert agent_on.flush(60)
        tracemalloc.start()
        try:
            list(pool.map(call, range(50)))
            assert agent_on.flush(60)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(exporter.spans) == 51
    assert held < 1_000_000  # one picture's worth, of fifty


# --- 45 --------------------------------------------------------------------------------------------
@pytest.mark.integration
def test_an_unsampled_trace_is_joined_unsampled(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header says so, on every attempt; and a server that decides for itself sees one trace."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with agent("on"), sync_client(server) as client:
        server.reply(error(429, retry_after_s=0.001))
        client.chat.completions.create(model="m", messages=MESSAGES)
    headers = [request.headers["traceparent"] for request in server.requests]
    assert len(headers) == 2
    assert headers[0] == headers[1]
    assert headers[0][0].endswith("-00")
