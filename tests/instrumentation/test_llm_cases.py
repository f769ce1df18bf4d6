"""Public fault reports of other agents, tried on ours: what no other test has, and where the others are.

`CASES` names tests for each report about model clients in our research, by its number in the list there; a
test of the table keeps it true.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import copy
import functools
import hashlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
import openai
import pytest
from opentelemetry import trace

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.instrumentation import ClientIntegration
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI, chat, chat_stream, error
from openai_cases import agent, sync_client

TESTS: Final = Path(__file__).resolve().parents[1]
CASES: Final[dict[int, tuple[str, ...]]] = {
    1: (  # raw responses crash the caller
        "contract/test_method_contract.py::test_a_call_is_one_span_and_no_difference",
        "instrumentation/test_openai_unchanged.py::test_the_service_sees_no_difference",
        "instrumentation/test_anthropic.py::test_every_way_to_call_is_one_span",
    ),
    2: (  # raw streams lose headers and parse
        "contract/test_method_contract.py::test_a_call_is_one_span_and_no_difference",
        "instrumentation/test_openai_streams.py::test_a_stream_ends_once_however_it_is_left",
    ),
    4: (  # methods that do not go through create
        "instrumentation/test_openai_responses.py::test_the_service_sees_no_difference",
        "instrumentation/test_openai_more.py::test_what_no_model_works_on_has_no_span",
        "instrumentation/test_sdk_surfaces.py::test_every_method_is_covered_or_said_not_to_be",
    ),
    6: ("instrumentation/test_llm_cases.py::test_closing_an_async_stream_closes_the_transport",),
    8: ("instrumentation/test_llm_cases.py::test_streams_are_what_frameworks_ask_for",),
    9: (  # streams left early
        "contract/test_client_contract.py::test_a_stream_ends_once_however_it_is_left",
        "instrumentation/test_openai_streams.py::test_a_forgotten_stream_is_told_as_abandoned",
    ),
    11: (  # tool calls in pieces
        "instrumentation/test_openai_facts.py::test_parallel_tool_calls_are_put_together",
        "instrumentation/test_openai_facts.py::test_a_legacy_function_call_is_put_together",
        "instrumentation/test_openai_more.py::test_what_a_chat_tells_without_its_content",
    ),
    13: (  # anthropic's stream manager
        "instrumentation/test_anthropic.py::test_streams_are_the_sdks_own",
        "instrumentation/test_anthropic.py::test_thinking_and_tools_are_put_together_apart_from_the_text",
    ),
    15: (  # gemini's inputs, and modules that moved
        "instrumentation/test_google_genai.py::test_every_way_to_call_is_one_span",
        "instrumentation/test_llm_cases.py::test_what_moved_costs_itself_only",
    ),
    16: (  # two layers, one call
        "agent/test_abuse_others.py::test_a_subclass_that_overrides_and_calls_super",
        "instrumentation/test_openai_others.py::test_one_span_a_call",
        "instrumentation/test_llm_cases.py::test_tokens_that_an_agent_adds_up_are_billed_once",
    ),
    18: ("instrumentation/test_llm_cases.py::test_huge_pictures_cost_their_hash",),
    36: (  # created in a different context
        "agent/test_context_current.py::test_a_stream_that_is_left_early",
        "agent/test_context_current.py::test_a_suspended_generator_is_no_parent",
        "contract/test_client_contract.py::test_an_async_stream_ends_once_and_logs_nothing",
    ),
    38: (  # cancellation is no Exception
        "contract/test_method_contract.py::test_a_cancelled_call",
        "contract/test_client_contract.py::test_an_async_stream_ends_once_and_logs_nothing",
    ),
    39: (  # forks
        "agent/test_lifecycle_fork.py::test_a_forked_child_exports_its_own_spans_once",
        "agent/test_lifecycle_fork.py::test_forks_while_threads_are_at_work",
    ),
    40: ("agent/test_lifecycle_exit.py::test_a_dead_collector_delays_the_exit_by_two_seconds_at_most",),
    42: (  # sizes
        "agent/test_abuse_sizes.py::test_core_facts_survive_a_huge_call",
        "agent/test_abuse_sizes.py::test_huge_calls_take_no_healthy_ones_with_them",
    ),
    44: (  # redaction
        "contract/test_client_contract.py::test_content_is_recorded_only_when_asked_for",
        "contract/test_method_contract.py::test_a_redactor_masks_every_call",
    ),
    45: (  # client and server traces
        "contract/test_client_contract.py::test_a_server_of_ones_own_gets_the_spans_id",
        "instrumentation/test_openai_unchanged.py::test_retries_are_one_span",
        "instrumentation/test_openai_agent.py::test_the_services_own_header_wins",
        "instrumentation/test_openai_agent.py::test_one_header_beside_an_http_instrumentor",
        "instrumentation/test_llm_cases.py::test_an_unsampled_trace_is_joined_unsampled",
    ),
}
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@functools.cache
def functions_of(file: str) -> set[str]:
    """Names of the functions that a test file defines."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_its_tests(case: int) -> None:
    """The tests that the table names are there."""
    assert CASES[case]
    for test in CASES[case]:
        file, _, name = test.partition("::")
        assert name in functions_of(file), test


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


# --- 15 --------------------------------------------------------------------------------------------
@pytest.mark.integration
def test_what_moved_costs_itself_only(server: FakeOpenAI) -> None:
    """A method, a class and a module that the installed release does not have: the others are observed."""
    table: ClientIntegration = ns.registry.client("openai")
    sync, _ = table.methods
    moved = [
        replace(sync, target=target)
        for target in (
            "openai._base_client:SyncAPIClient.request_it",
            "openai._base_client:GoneClient.request",
            "openai._gone:SyncAPIClient.request",
        )
    ]
    ns.registry.register_adapter(replace(table, methods=(*moved, sync)))
    try:
        with agent("on") as exporter, sync_client(server) as client:
            client.chat.completions.create(model="m", messages=MESSAGES)
            missing = platform.installations()["openai"].missing
    finally:
        ns.registry.unregister_adapter("openai")
    assert len(exporter.spans) == 1
    assert missing == {moved[0].target, moved[1].target}  # a module that is never imported is not missed


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
        assert agent_on.flush(5)
        tracemalloc.start()
        try:
            list(pool.map(call, range(50)))
            assert agent_on.flush(5)
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
