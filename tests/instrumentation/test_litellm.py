"""LiteLLM over fake providers: each call is billed once, by the client beneath or by LiteLLM itself."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

import neuronscope as ns
from client_cases import CANARY, Mode, agent, facts_like, until_asked
from collectors import until
from neuronscope import platform
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.testing import FakeAnthropic, FakeOpenAI, fake_anthropic, fake_openai
from neuronscope_instrumentation.litellm.requests import split
from neuronscope_instrumentation.litellm.streams import tokens

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # prices from the package, not the network
litellm: Any = import_module("litellm")
cleanup: Any = import_module("litellm.llms.custom_httpx.async_client_cleanup")
streaming: Any = import_module("litellm.litellm_core_utils.streaming_handler")
caching: Any = import_module("litellm.caching.caching")
bound_before_us: Any = litellm.completion

pytestmark = [
    pytest.mark.integration,
    # LiteLLM keeps its HTTP clients for the next call; their event loops and sockets end with the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # Its own success handlers, cut off by the end of a test's event loop.
    pytest.mark.filterwarnings("ignore:coroutine 'Logging:RuntimeWarning"),
    # What pydantic says of its own typed dictionaries.
    pytest.mark.filterwarnings("ignore:Item:UserWarning"),
    # It walks over all attributes of chunks, pydantic's own among them.
    pytest.mark.filterwarnings("ignore:Accessing the:DeprecationWarning"),
]
MESSAGES = [{"role": "user", "content": CANARY}]
ASKED: dict[str, Any] = {"messages": MESSAGES, "api_key": "k", "max_tokens": 64, "temperature": 0.5}
CLAUDE = "claude-3-haiku-20240307"
RUNNER = asyncio.Runner()
ALL = ("litellm", "openai", "anthropic")
COMPLETE = {
    names.OPERATION_NAME: "chat",
    names.PROVIDER_NAME: "anthropic",
    names.REQUEST_MODEL: CLAUDE,
    names.REQUEST_MAX_TOKENS: 64,
    names.REQUEST_TEMPERATURE: 0.5,
    names.INPUT_MESSAGE_COUNT: 1,
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.CACHE_WRITE_TOKENS: 2,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["stop"],
    names.OPENAI_API_TYPE: None,
    names.ERROR_TYPE: None,
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete"}


@pytest.fixture(scope="module")
def openai_server() -> Iterator[FakeOpenAI]:
    """LiteLLM reaches it through the openai SDK."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(scope="module")
def anthropic_server() -> Iterator[FakeAnthropic]:
    """LiteLLM speaks to it itself."""
    with FakeAnthropic() as fake:
        yield fake


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[None]:
    """One event loop for the module: LiteLLM keeps its clients, and the loop that they were made in."""
    yield
    RUNNER.run(cleanup.close_litellm_async_clients())
    RUNNER.close()
    litellm.in_memory_llm_clients_cache.flush_cache()
    gc.collect()  # what goes now may go without a word


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """No advertisement on the terminal, no cache; garbage is collected between calls only.

    LiteLLM leaves HTTP streams to the collector, and httpcore takes a lock when it closes one: should that
    happen while the same thread holds the lock, it hangs, agent or not.
    """
    litellm.suppress_debug_info = True
    gc.disable()
    yield
    litellm.cache = None
    gc.collect()
    gc.enable()


def gpt(server: FakeOpenAI) -> dict[str, Any]:
    return {**ASKED, "model": "openai/gpt-x", "api_base": server.base_url, "max_retries": 0}


def claude(server: FakeAnthropic) -> dict[str, Any]:
    return {**ASKED, "model": f"anthropic/{CLAUDE}", "api_base": server.base_url}


def text_of(answer: Any) -> Any:
    """What does not differ between two runs: LiteLLM makes ids and times of its own."""
    choice = answer.choices[0]
    said = getattr(choice, "message", None) or choice.delta
    return type(answer).__qualname__, said.content, choice.finish_reason, answer.model


async def drain(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


def every_way(asked: dict[str, Any]) -> Any:
    """Sync and async, plain and streamed."""

    async def later() -> Any:
        whole = await litellm.acompletion(**asked)
        stream: Any = await litellm.acompletion(**asked, stream=True)
        return text_of(whole), type(stream).__qualname__, [text_of(chunk) async for chunk in stream]

    stream: Any = litellm.completion(**asked, stream=True)
    told = type(stream).__qualname__, [text_of(chunk) for chunk in stream]
    return text_of(bound_before_us(**asked)), told, RUNNER.run(later())


def test_a_call_through_a_client_of_ours_is_that_clients(openai_server: FakeOpenAI) -> None:
    """Four ways to call, four spans, all of the openai adapter; the service sees no difference."""

    def run(mode: Mode) -> Any:
        openai_server.clear()
        with agent(mode, *ALL) as exporter:
            return every_way(gpt(openai_server)), exporter.spans

    (expected, nothing), (on, spans), (content, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == []
    for found in (spans, recorded):
        assert [span.library for span in found] == ["neuronscope.openai"] * 4
        assert sum(span.attributes.get(names.OUTPUT_TOKENS) == 5 for span in found) == 2  # streams tell none
    assert CANARY not in repr(spans)


def test_a_call_that_litellm_makes_itself_is_litellms(anthropic_server: FakeAnthropic) -> None:
    """With all adapters on; tokens are what the provider reported, in streams too."""

    def run(mode: Mode) -> Any:
        anthropic_server.clear()
        with agent(mode, *ALL) as exporter:
            return every_way(claude(anthropic_server)), exporter.spans

    (expected, nothing), (on, spans), (content, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == []
    for found in (spans, recorded):
        assert [span.library for span in found] == ["neuronscope.litellm"] * 4
        for span, facts in zip(found, (STREAMED, COMPLETE, COMPLETE, STREAMED), strict=True):
            assert facts_like(span.attributes, facts) == facts
            assert span.name == f"chat {CLAUDE}"
    assert CANARY not in repr(spans)
    for span in recorded:
        (asked,) = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
        assert asked["parts"] == [{"type": "text", "content": CANARY}]
        (said,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
        assert said["parts"] == [{"type": "text", "content": "Hello from the fake provider."}]


def test_limits_and_tools_are_told_of_whole_answers_and_streams(anthropic_server: FakeAnthropic) -> None:
    """LiteLLM keeps the headers beside the answer, under names of its own."""
    headers = {
        "anthropic-ratelimit-requests-limit": "9",
        "anthropic-ratelimit-requests-remaining": "7",
        "request-id": "req-1",
    }
    blocks: list[Any] = [
        {"type": "tool_use", "id": f"t{index}", "name": name, "input": {"a": 1}}
        for index, name in enumerate(("look_up", "add"))
    ]
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"a": 1}')]
    events = [
        event
        for index, block in enumerate(blocks)
        for event in fake_anthropic.block_events(index, {**block, "input": {}}, pieces)
    ]
    whole = replace(fake_anthropic.message(content=blocks, stop_reason="tool_use"), headers=headers)
    streamed = fake_anthropic.stream_of(events, stop_reason="tool_use", headers=headers)
    tools = [
        {"type": "function", "function": {"name": name, "description": "x", "parameters": {"type": "object"}}}
        for name in ("look_up", "add")
    ]
    anthropic_server.clear()
    anthropic_server.reply(streamed, whole, whole, streamed)
    with agent("on", *ALL) as exporter:
        every_way({**claude(anthropic_server), "tools": tools})
    assert len(exporter.spans) == 4
    for span in exporter.spans:
        assert span.attributes[names.TOOLS_OFFERED] == ["look_up", "add"]
        assert span.attributes[names.TOOLS_CALLED] == ["look_up", "add"]
        assert span.attributes[names.RATE_LIMIT_REQUESTS] == 9
        assert span.attributes[names.RATE_LIMIT_REQUESTS_LEFT] == 7
        assert span.attributes[names.REQUEST_ID] == "req-1"


def test_a_cancelled_call_is_cancelled_and_told(anthropic_server: FakeAnthropic) -> None:
    """Before its answer, and in the middle of its stream."""

    async def run() -> None:
        anthropic_server.clear()
        anthropic_server.reply(fake_anthropic.message_stream("one two three four", delay_s=0.2))
        stream: Any = await litellm.acompletion(**claude(anthropic_server), stream=True)
        await anext(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(drain(stream), 0.05)
        anthropic_server.clear()
        anthropic_server.reply(replace(fake_anthropic.message(), delay_s=2))
        task = asyncio.ensure_future(litellm.acompletion(**claude(anthropic_server)))
        await until_asked(anthropic_server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with agent("on", *ALL) as exporter:
        RUNNER.run(run())
    stream, call = exporter.spans
    assert stream.attributes[names.STREAM_END] == "cancelled"
    assert call.attributes[names.ERROR_TYPE] == "asyncio.exceptions.CancelledError"


def test_without_the_clients_adapter_litellms_span_stands(openai_server: FakeOpenAI) -> None:
    """It was nobody's call else."""
    with agent("on", "litellm") as exporter:
        litellm.completion(**gpt(openai_server))
        list(litellm.completion(**gpt(openai_server), stream=True))
        litellm.embedding(model="openai/e", input=["a", CANARY], api_base=openai_server.base_url, api_key="k")
    plain, streamed, embedded = exporter.spans
    assert {span.library for span in exporter.spans} == {"neuronscope.litellm"}
    assert {span.attributes[names.PROVIDER_NAME] for span in exporter.spans} == {"openai"}
    assert plain.attributes[names.INPUT_TOKENS] == 11
    assert streamed.attributes[names.STREAM_END] == "complete"
    # The provider sent no counts; LiteLLM estimates some, which are none.
    assert names.INPUT_TOKENS not in streamed.attributes
    assert embedded.name == "embeddings e"
    assert embedded.attributes[names.INPUT_COUNT] == 2
    assert embedded.attributes[names.EMBEDDING_DIMENSIONS] == 3


def test_counts_that_the_service_asked_for_are_the_providers(openai_server: FakeOpenAI) -> None:
    """`include_usage`: once, from the provider's own chunk."""
    asked: Any = {**gpt(openai_server), "stream": True, "stream_options": {"include_usage": True}}
    with agent("on", "litellm") as exporter:
        chunks = list(litellm.completion(**asked))
        assert chunks[-1].usage.prompt_tokens == 11
    assert exporter.spans[0].attributes[names.INPUT_TOKENS] == 11
    assert exporter.spans[0].attributes[names.OUTPUT_TOKENS] == 5


def test_embeddings_are_billed_once(openai_server: FakeOpenAI) -> None:
    """Sync and async, through the openai SDK."""
    asked: Any = {"model": "openai/e", "input": ["a"], "api_base": openai_server.base_url, "api_key": "k"}
    with agent("on", *ALL) as exporter:
        litellm.embedding(**asked)
        RUNNER.run(litellm.aembedding(**asked))
    assert [(span.library, span.name) for span in exporter.spans] == [
        ("neuronscope.openai", "embeddings e")
    ] * 2


def test_responses_are_litellms_own_calls(openai_server: FakeOpenAI, anthropic_server: FakeAnthropic) -> None:
    """Of OpenAI over HTTP; of others through a chat, which is then the one that is billed."""
    with agent("on", *ALL) as exporter:
        asked: Any = {"input": CANARY, "api_key": "k"}
        direct: Any = {**asked, "model": "openai/gpt-x", "api_base": openai_server.base_url}
        litellm.responses(**direct)
        list(litellm.responses(**direct, stream=True))
        litellm.responses(
            **asked, model=f"anthropic/{CLAUDE}", api_base=anthropic_server.base_url, max_output_tokens=64
        )
    assert [span.library for span in exporter.spans] == ["neuronscope.litellm"] * 3
    assert [span.attributes[names.OUTPUT_TOKENS] for span in exporter.spans] == [5, 5, 5]
    assert exporter.spans[1].attributes[names.STREAM_END] == "complete"
    assert exporter.spans[2].attributes[names.PROVIDER_NAME] == "anthropic"
    assert CANARY not in repr(exporter.spans)


def test_the_span_belongs_to_what_is_around_the_call(
    openai_server: FakeOpenAI, anthropic_server: FakeAnthropic
) -> None:
    """Whoever has it: the layer is nobody's parent, in threads and tasks."""
    with agent("on", *ALL) as exporter, ns.Scope("request"):
        litellm.completion(**gpt(openai_server))
        litellm.completion(**claude(anthropic_server))
        RUNNER.run(litellm.acompletion(**gpt(openai_server)), context=copy_context())
        RUNNER.run(litellm.acompletion(**claude(anthropic_server)), context=copy_context())
    *calls, scope = exporter.spans
    assert [span.parent_span_id for span in calls] == [scope.span_id] * 4
    assert {span.trace_id for span in calls} == {scope.trace_id}


def test_each_try_of_a_router_is_a_call(openai_server: FakeOpenAI, anthropic_server: FakeAnthropic) -> None:
    """The first provider refuses, the second answers: two spans, one of them an error."""
    openai_server.clear()
    openai_server.reply(fake_openai.error(500), fake_openai.error(500))
    router: Any = litellm.Router(
        model_list=[
            {
                "model_name": "first",
                "litellm_params": {k: v for k, v in gpt(openai_server).items() if k != "messages"},
            },
            {
                "model_name": "second",
                "litellm_params": {k: v for k, v in claude(anthropic_server).items() if k != "messages"},
            },
        ],
        fallbacks=[{"first": ["second"]}],
        num_retries=0,
    )
    with agent("on", *ALL) as exporter:
        assert text_of(router.completion(model="first", messages=MESSAGES))[3] == "fake-model-1"
    *failed, last = exporter.spans
    assert failed
    assert {(span.library, span.status.name) for span in failed} == {("neuronscope.openai", "ERROR")}
    assert (last.library, last.status.name) == ("neuronscope.litellm", "UNSET")
    openai_server.clear()


def test_an_answer_from_the_cache_is_no_call(
    anthropic_server: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a mocked one."""
    if find_spec("soundfile") is None:  # LiteLLM 1.110 imports it on this path, and does not declare it
        monkeypatch.setitem(sys.modules, "soundfile", ModuleType("soundfile"))
    litellm.cache = caching.Cache(type="local")
    with agent("on", *ALL) as exporter:
        first = litellm.completion(**claude(anthropic_server))
        assert text_of(litellm.completion(**claude(anthropic_server))) == text_of(first)
        litellm.completion(model="gpt-4o", messages=MESSAGES, mock_response="no call")
        assert len(exporter.spans) == 1


def test_errors_are_litellms_and_told_once(
    openai_server: FakeOpenAI, anthropic_server: FakeAnthropic
) -> None:
    """Refused by a provider, either way; and before any provider was asked."""
    with agent("on", *ALL) as exporter:
        openai_server.clear()
        openai_server.reply(fake_openai.error(401, CANARY))
        with pytest.raises(litellm.AuthenticationError):
            litellm.completion(**gpt(openai_server))
        anthropic_server.clear()
        anthropic_server.reply(fake_anthropic.error(401, message=CANARY))
        with pytest.raises(litellm.AuthenticationError):
            litellm.completion(**claude(anthropic_server))
        with pytest.raises(litellm.BadRequestError):
            litellm.completion(model="nobody-knows-me", messages=MESSAGES)
    told = [(span.library, span.attributes[names.ERROR_TYPE]) for span in exporter.spans]
    assert told == [
        ("neuronscope.openai", "openai.AuthenticationError"),
        ("neuronscope.litellm", "litellm.exceptions.AuthenticationError"),
        ("neuronscope.litellm", "litellm.exceptions.BadRequestError"),
    ]
    assert exporter.spans[1].attributes[names.HTTP_RESPONSE_STATUS_CODE] == 401
    assert CANARY not in repr(exporter.spans)


def test_a_stream_ends_once_however_it_is_left(anthropic_server: FakeAnthropic) -> None:
    """Dropped, closed, cancelled, cut off."""

    async def left() -> None:
        stream: Any = await litellm.acompletion(**claude(anthropic_server), stream=True)
        await anext(aiter(stream))
        await stream.aclose()
        await stream.aclose()

    with agent("on", *ALL) as exporter:
        stream: Any = litellm.completion(**claude(anthropic_server), stream=True)
        next(iter(stream))
        del stream
        RUNNER.run(left())  # until a next call LiteLLM itself keeps a stream
        # So does its logging thread, for as long as it takes.
        until(lambda: gc.collect() >= 0 and len(exporter.spans) == 2)
        anthropic_server.reply(fake_anthropic.message_stream(cut_after=4))
        with pytest.raises(Exception):  # noqa: B017, PT011 - LiteLLM's own, which differs by release
            list(litellm.completion(**claude(anthropic_server), stream=True))
        assert [span.attributes[names.STREAM_END] for span in exporter.spans] == [
            "client_closed",
            "client_closed",
            "error",
        ]


def test_uninstrument_restores_every_function() -> None:
    """The functions inside the decorators, and the steps of the streams; the decorated ones never change."""

    def inside(function: Any) -> Any:
        return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))[
            "original_function"
        ].cell_contents

    places = {
        "litellm.main": ("completion", "acompletion", "embedding", "aembedding"),
        "litellm.rerank_api.main": ("rerank", "arerank"),
        "litellm.responses.main": ("responses", "aresponses"),
    }
    functions: list[Any] = [
        getattr(import_module(module), name) for module, found in places.items() for name in found
    ]
    before = [inside(function) for function in functions]
    steps: dict[str, Any] = {
        name: vars(streaming.CustomStreamWrapper)[name] for name in ("__next__", "__anext__", "aclose")
    }
    ns.Platform()
    ns.instrument("litellm")
    assert platform.installations()["litellm"].missing == set()
    assert bound_before_us is litellm.completion
    for function, original in zip(functions, before, strict=True):
        assert inside(function) is not original
    ns.uninstrument("litellm")
    assert [inside(function) for function in functions] == before
    assert {name: vars(streaming.CustomStreamWrapper)[name] for name in steps} == steps
    assert not hasattr(streaming.CustomStreamWrapper, "__neuronscope_steps__")


def test_faults_of_the_adapter_change_nothing(
    anthropic_server: FakeAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that cannot be told anything."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    expected = every_way(claude(anthropic_server))
    monkeypatch.setattr("neuronscope.engine.streams.StreamState.take", broken)
    GUARD.reraise = False
    with agent("on", "litellm"):
        assert every_way(claude(anthropic_server)) == expected
    assert GUARD.faults


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": "anthropic/claude-x"}, ("anthropic", "claude-x")),
        ({"model": "gpt-4o"}, ("openai", "gpt-4o")),
        ({"model": "claude-x", "custom_llm_provider": "anthropic"}, ("anthropic", "claude-x")),
        ({"model": "anthropic/claude-x", "custom_llm_provider": "anthropic"}, ("anthropic", "claude-x")),
        ({"model": "org/name", "custom_llm_provider": "huggingface"}, ("huggingface", "org/name")),
        ({"model": "nobody/knows-me"}, ("litellm", "nobody/knows-me")),
        ({}, ("litellm", None)),
    ],
)
def test_provider_and_model_are_told_apart(arguments: dict[str, Any], expected: tuple[str, Any]) -> None:
    """As LiteLLM does, as far as the name goes."""
    assert split(arguments) == expected


def test_reports_of_a_stream_add_up_to_the_last_word() -> None:
    """A count of 0 is one that the provider did not tell."""
    first = {"prompt_tokens": 11, "completion_tokens": 0}
    last = {"prompt_tokens": 0, "completion_tokens": 5, "cache_creation_input_tokens": 2}
    assert tokens([first, last]) == {"input_tokens": 11, "output_tokens": 5, "cache_write_tokens": 2}
    assert tokens([None]) == {}
