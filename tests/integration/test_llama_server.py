"""llama.cpp's real server behind the openai and the anthropic SDK: our spans say what its answers say.

Its answers are read as they pass on the wire, beside the SDK.  Asserted are shapes and counts, never texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from client_cases import agent
from llama import MODEL, Llama, serving
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from wiretap import AsyncTap, Tap, Wire, told_by_openai

pytestmark = [pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(600)]

MESSAGES: Any = [{"role": "user", "content": "Name a colour."}]
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
OPENAI_TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
ANTHROPIC_TOOLS: Any = [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Generator[Llama]:
    """One server that generates."""
    with serving(tmp_path_factory.mktemp("llama")) as server:
        yield server


# --- how it is asked -----------------------------------------------------------------------------------
@contextmanager
def openai_client(server: Llama, wire: Wire, base: str = "") -> Generator[Any]:
    with httpx2.Client(transport=Tap(wire, server.port), timeout=300) as http:
        yield openai.OpenAI(base_url=base or f"{server.url}/v1", api_key="x", max_retries=0, http_client=http)


@contextmanager
def anthropic_client(server: Llama, wire: Wire) -> Generator[Any]:
    with httpx2.Client(transport=Tap(wire, server.port), timeout=300) as http:
        yield anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, http_client=http)


# --- what a span must say --------------------------------------------------------------------------------
def told_by_anthropic(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Facts of a message, whole or streamed; its input tokens leave cached ones out, ours have them in."""
    message: dict[str, Any] = {}
    usage: dict[str, int] = {}
    for document in documents:
        message.update(document.get("message") or document.get("delta") or document)
        usage.update(document.get("usage") or document.get("message", {}).get("usage") or {})
    return {
        names.RESPONSE_ID: message["id"],
        names.RESPONSE_MODEL: message["model"],
        names.INPUT_TOKENS: usage["input_tokens"] + usage["cache_read_input_tokens"],
        names.OUTPUT_TOKENS: usage["output_tokens"],
        names.CACHE_READ_TOKENS: usage["cache_read_input_tokens"],
        names.FINISH_REASONS: [message["stop_reason"]],
    }


def agrees(span: SpanRecord, wire: Wire, told: dict[str, Any], server: Llama, provider: str) -> None:
    """The span says what the server said, and the server was told of the span."""
    assert {key: span.attributes.get(key) for key in told} == told
    assert span.attributes[names.OUTPUT_TOKENS]
    assert span.attributes[names.PROVIDER_NAME] == provider
    assert span.attributes[names.REQUEST_MODEL] == MODEL
    assert (span.attributes[names.SERVER_ADDRESS], span.attributes[names.SERVER_PORT]) == (
        "127.0.0.1",
        server.port,
    )
    (request,) = wire.requests
    assert request.headers["traceparent"] == f"00-{span.trace_id:032x}-{span.span_id:016x}-01"
    if span.attributes.get(names.REQUEST_STREAM):
        assert span.attributes[names.STREAM_END] == "complete"
        assert 0 < float(str(span.attributes[names.TIME_TO_FIRST_CHUNK])) < span.duration_ms / 1000


Use = Callable[[Any], Any]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
ASKED: dict[str, Any] = {"model": MODEL, "input": "Name a colour.", "max_output_tokens": 12}


def helper(client: openai.OpenAI) -> None:
    """OpenAI's own helper for streams."""
    with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as events:
        assert list(events)


OPENAI: dict[str, Use] = {
    "chat": lambda c: c.chat.completions.create(**CHAT),
    "chat, two choices": lambda c: c.chat.completions.create(**{**CHAT, "temperature": 1}, n=2),
    "chat, stopped": lambda c: c.chat.completions.create(**{**CHAT, "max_tokens": 400}, stop=[" "]),
    "chat, raw": lambda c: c.chat.completions.with_raw_response.create(**CHAT).parse(),
    "chat, structured": lambda c: c.chat.completions.create(
        **{**CHAT, "max_tokens": 60}, response_format=FORMAT
    ),
    "chat, streamed": lambda c: list(c.chat.completions.create(**CHAT, **USAGE)),
    "chat, two choices streamed": lambda c: list(
        c.chat.completions.create(**{**CHAT, "temperature": 1}, **USAGE, n=2)
    ),
    "chat, helper": helper,
    "completions": lambda c: c.completions.create(model=MODEL, prompt="A colour:", max_tokens=12),
    "completions, streamed": lambda c: list(
        c.completions.create(model=MODEL, prompt="A colour:", max_tokens=12, **USAGE)
    ),
    "responses": lambda c: c.responses.create(**ASKED),
    "responses, streamed": lambda c: list(c.responses.create(**ASKED, stream=True)),
    # Not its helper: the server leaves `content_index` out of events, and the helper needs it.
}


@pytest.mark.parametrize("use", OPENAI.values(), ids=OPENAI)
def test_the_openai_sdk(llama: Llama, use: Use) -> None:
    """Each endpoint that the server has: tokens, reasons and ids as in its own answer."""
    wire = Wire()
    with agent("on", "openai") as exporter, openai_client(llama, wire) as client:
        use(client)
    (span,) = exporter.spans
    agrees(span, wire, told_by_openai(wire.documents()), llama, "openai")


def message_helper(client: anthropic.Anthropic) -> None:
    """Anthropic's own helper for streams."""
    with client.messages.stream(**MESSAGE) as stream:
        assert stream.get_final_message().usage.output_tokens


MESSAGE: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12}
ANTHROPIC: dict[str, Use] = {
    "create": lambda c: c.messages.create(**MESSAGE),
    "create, raw": lambda c: c.messages.with_raw_response.create(**MESSAGE).parse(),
    "create, streamed": lambda c: list(c.messages.create(**MESSAGE, stream=True)),
    "stopped": lambda c: c.messages.create(**{**MESSAGE, "max_tokens": 400}, stop_sequences=[" "]),
    "helper": message_helper,
    "tools": lambda c: c.messages.create(**MESSAGE, tools=ANTHROPIC_TOOLS),
}


@pytest.mark.parametrize("use", ANTHROPIC.values(), ids=ANTHROPIC)
def test_the_anthropic_sdk(llama: Llama, use: Use) -> None:
    """Messages, streams, their helper and tools."""
    wire = Wire()
    with agent("on", "anthropic") as exporter, anthropic_client(llama, wire) as client:
        use(client)
    (span,) = exporter.spans
    agrees(span, wire, told_by_anthropic(wire.documents()), llama, "anthropic")


async def openai_stream(server: Llama, wire: Wire) -> None:
    """A streamed answer of the asynchronous client."""
    async with httpx2.AsyncClient(transport=AsyncTap(wire), timeout=300) as http:
        client: Any = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", http_client=http)
        assert [chunk async for chunk in await client.chat.completions.create(**CHAT, **USAGE)]


async def anthropic_stream(server: Llama, wire: Wire) -> None:
    """The same of Anthropic's, by its helper."""
    async with httpx2.AsyncClient(transport=AsyncTap(wire), timeout=300) as http:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="x", http_client=http)
        async with client.messages.stream(**MESSAGE) as stream:
            assert [event async for event in stream]


@pytest.mark.parametrize(
    ("library", "use", "told"),
    [("openai", openai_stream, told_by_openai), ("anthropic", anthropic_stream, told_by_anthropic)],
)
def test_asynchronous_clients(
    llama: Llama,
    library: str,
    use: Callable[[Llama, Wire], Coroutine[Any, Any, None]],
    told: Callable[[list[dict[str, Any]]], dict[str, Any]],
) -> None:
    """The same facts."""
    wire = Wire()
    with agent("on", library) as exporter:
        asyncio.run(use(llama, wire))
    (span,) = exporter.spans
    agrees(span, wire, told(wire.documents()), llama, library)


def test_counting_tokens_is_no_call_of_a_model(llama: Llama) -> None:
    """It has no span; what it says is what a call is then billed."""
    wire = Wire()
    with agent("on", "anthropic") as exporter, anthropic_client(llama, wire) as client:
        counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
        client.messages.create(**MESSAGE)
    (span,) = exporter.spans
    assert span.attributes[names.INPUT_TOKENS] == counted.input_tokens


def test_tools_are_offered(llama: Llama) -> None:
    """SmolLM2's template knows no tools, so it calls none; what was offered is told."""
    wire = Wire()
    with agent("on", "openai") as exporter, openai_client(llama, wire) as client:
        client.chat.completions.create(**CHAT, tools=OPENAI_TOOLS)
    (span,) = exporter.spans
    agrees(span, wire, told_by_openai(wire.documents()), llama, "openai")
    assert span.attributes[names.TOOLS_OFFERED] == ["weather"]
    assert names.TOOLS_CALLED not in span.attributes


def test_the_servers_own_counters_agree(llama: Llama) -> None:
    """Of some calls together: tokens as its /metrics count them."""
    before = llama.counter("tokens_predicted_total")
    wire = Wire()
    with agent("on", "openai", "anthropic") as exporter:
        with openai_client(llama, wire) as client:
            OPENAI["chat"](client)
            OPENAI["chat, streamed"](client)
        with anthropic_client(llama, wire) as other:
            message_helper(other)
    tokens = sum(int(str(span.attributes[names.OUTPUT_TOKENS])) for span in exporter.spans)
    assert llama.counter("tokens_predicted_total") - before == tokens


def test_a_stream_that_is_left(llama: Llama) -> None:
    """The service goes after the first chunks: the span says so, and the server is free for the next call."""
    wire = Wire()
    with agent("on", "openai") as exporter, openai_client(llama, wire) as client:
        stream = client.chat.completions.create(**{**CHAT, "max_tokens": 2000}, **USAGE)
        for _ in range(3):
            next(stream)
        stream.close()
        OPENAI["chat"](client)
    left, after = exporter.spans
    assert left.attributes[names.STREAM_END] == "client_closed"
    assert names.OUTPUT_TOKENS not in left.attributes
    assert after.attributes[names.OUTPUT_TOKENS]


def test_a_prompt_that_is_too_long(llama: Llama) -> None:
    """The server's refusal: the SDK's error and the status, and no tokens."""
    wire = Wire()
    asked: Any = {**CHAT, "messages": [{"role": "user", "content": "word " * 20_000}]}
    with (
        agent("on", "openai") as exporter,
        openai_client(llama, wire) as client,
        pytest.raises(openai.BadRequestError),
    ):
        client.chat.completions.create(**asked)
    (span,) = exporter.spans
    assert span.attributes[names.ERROR_TYPE] == "openai.BadRequestError"
    assert span.attributes[names.HTTP_RESPONSE_STATUS_CODE] == 400
    assert names.INPUT_TOKENS not in span.attributes


def test_the_server_is_told_by_the_name_of_its_host(llama: Llama) -> None:
    """In a cluster it is reached by a name; that names the provider, and gets the trace."""
    wire = Wire()
    base = "http://llama-cpp-server:8080/v1"
    with agent("on", "openai") as exporter, openai_client(llama, wire, base) as client:
        OPENAI["chat"](client)
    (span,) = exporter.spans
    assert span.attributes[names.PROVIDER_NAME] == "llama_cpp"
    assert span.attributes[names.SERVER_ADDRESS] == "llama-cpp-server"
    assert f"{span.span_id:016x}" in wire.requests[0].headers["traceparent"]


def test_embeddings(tmp_path: Path) -> None:
    """A second server, which embeds: width, number of inputs and tokens."""
    wire = Wire()
    with (
        serving(tmp_path, "--embeddings", "--pooling", "mean") as server,
        agent("on", "openai") as exporter,
        openai_client(server, wire) as client,
    ):
        client.embeddings.create(model=MODEL, input=["red", "a longer text of colours"])
    (span,) = exporter.spans
    (answer,) = wire.documents()
    assert span.attributes[names.INPUT_TOKENS] == answer["usage"]["prompt_tokens"]
    assert span.attributes[names.INPUT_COUNT] == 2
    assert span.attributes[names.EMBEDDING_DIMENSIONS] == 576  # SmolLM2's width
    assert span.attributes[names.RESPONSE_MODEL] == answer["model"]
