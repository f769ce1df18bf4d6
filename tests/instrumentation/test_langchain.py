"""LangChain observed through its own callbacks: parents around the leaf spans, tokens at the leaf only."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableParallel
from opentelemetry import context as otel_context

import neuronscope as ns
from client_cases import CANARY, Mode, agent, captured_logs
from frameworks import tree
from langchain_case import ASKED, CHAIN, PROMPT, add, fails, fake, gpt, run_later, use
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue
from neuronscope.testing import FakeOpenAI

pytestmark = [
    pytest.mark.integration,
    # langchain-openai says so of a stream whose provider tells no usage.
    pytest.mark.filterwarnings("ignore:Unexpected type for token usage:UserWarning"),
    # Connections of streams that were left.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake
        run_later(gpt(fake).root_async_client.close())
        list(map(gc.collect, (0, 1, 2)))


def test_a_chain_is_around_the_clients_call(server: FakeOpenAI) -> None:
    """Plain, streamed, in a batch; sync and async; the service sees no difference, the log no word."""

    def run(mode: Mode) -> Any:
        with captured_logs() as logs, agent(mode, "langchain", "openai") as exporter:
            answers = use(PROMPT | gpt(server) | StrOutputParser())
        return answers, logs, exporter.spans

    (expected, nothing, _), (on, log, spans), (content, _, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == log == []
    for found in (spans, recorded):
        assert tree(found) == sorted([CHAIN, f"{CHAIN} > openai:chat gpt-x"] * 8)
        tokens = [span.attributes.get(names.OUTPUT_TOKENS) for span in found]
        assert tokens.count(5) + tokens.count(None) == 16  # streams may tell none, chains never do
        assert tokens.count(5) >= 6
    assert CANARY not in repr(spans)


def test_a_model_without_a_client_of_ours_has_a_span_of_its_own() -> None:
    """Tokens as LangChain tells them: none here."""

    def run(mode: Mode) -> Any:
        with captured_logs() as logs, agent(mode, "langchain", "openai") as exporter:
            answers = use(PROMPT | fake(f"{CANARY} b") | StrOutputParser())
        return answers, logs, exporter.spans

    (expected, nothing, _), (on, log, spans), (content, _, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == log == []
    assert tree(spans) == tree(recorded) == sorted([CHAIN, f"{CHAIN} > langchain:chat"] * 8)
    assert CANARY not in repr(spans)
    models = [span for span in recorded if span.name == "chat"]
    assert {span.attributes[names.PROVIDER_NAME] for span in models} == {"fakelistchatmodel"}
    streamed = [span for span in models if names.STREAM_END in span.attributes]
    assert {span.attributes[names.STREAM_END] for span in streamed} == {"complete"}
    assert len(streamed) == 2
    for span in models:
        (asked,) = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
        assert asked == {"role": "user", "parts": [{"type": "text", "content": CANARY}]}
        (said,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
        assert said["parts"] == [{"type": "text", "content": f"{CANARY} b"}]


def test_tokens_of_a_model_that_nobody_else_bills() -> None:
    """As the provider's package has told them: cached and reasoning ones are parts of the totals."""
    usage: Any = {
        "input_tokens": 20,
        "output_tokens": 9,
        "total_tokens": 29,
        "input_token_details": {"cache_read": 4, "cache_creation": 2},
        "output_token_details": {"reasoning": 3},
    }
    answer = AIMessage(
        CANARY,
        usage_metadata=usage,
        response_metadata={"model_name": "m-2", "finish_reason": "stop"},
        tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c1"}],
    )
    with agent("content", "langchain") as exporter:
        GenericFakeChatModel(messages=iter([answer])).invoke(CANARY)
    (span,) = exporter.spans
    assert span.attributes[names.INPUT_TOKENS] == 20
    assert span.attributes[names.CACHE_READ_TOKENS] == 4
    assert span.attributes[names.CACHE_WRITE_TOKENS] == 2
    assert span.attributes[names.OUTPUT_TOKENS] == 9
    assert span.attributes[names.REASONING_TOKENS] == 3
    assert span.attributes[names.RESPONSE_MODEL] == "m-2"
    assert span.attributes[names.FINISH_REASONS] == ["stop"]
    assert span.attributes[names.TOOLS_CALLED] == ["add"]
    (said,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
    assert said["parts"][1] == {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}


def test_tools_that_a_model_is_given_are_told_by_name(server: FakeOpenAI) -> None:
    """Where no client of ours sees the call."""
    with agent("on", "langchain") as exporter:
        gpt(server, reasoning_effort="low").bind_tools([add, fails]).invoke(CANARY)
    (span,) = exporter.spans
    assert span.library == "neuronscope.langchain"
    assert span.attributes[names.TOOLS_OFFERED] == ["add", "fails"]
    assert span.attributes[names.REASONING_LEVEL] == "low"
    assert span.attributes[names.OUTPUT_TOKENS] == 5
    assert CANARY not in repr(span)


def billed() -> dict[str, float]:
    """Tokens in the metric, by instrumented provider."""
    found: dict[str, float] = {}
    for family in ENGINE.metrics.collect().families:
        for point in family.points if family.metric is names.TOKEN_USAGE else ():
            assert isinstance(point.value, HistogramValue)
            kind = dict(point.labels)[names.TOKEN_TYPE]
            found[kind] = found.get(kind, 0) + point.value.sum
    return found


def test_the_metric_counts_the_tokens_of_each_call_once(server: FakeOpenAI) -> None:
    """Of chains in threads of LangChain's and of the service's; with the client's adapter and without."""
    chain: Any = RunnableParallel(a=PROMPT | gpt(server), b=PROMPT | gpt(server) | StrOutputParser())
    for adapters in (("langchain", "openai"), ("langchain",), ("openai",)):
        with agent("on", *adapters), ThreadPoolExecutor(4) as pool:
            chain.batch([ASKED] * 3)
            list(pool.map(chain.invoke, [ASKED] * 3))
            assert billed() == {"input": 12 * 11, "output": 12 * 5}


def test_each_thread_has_a_tree_of_its_own(server: FakeOpenAI) -> None:
    """Of chains that run at once in a service's pool, none is another's parent."""
    chain = PROMPT | gpt(server) | StrOutputParser()
    with agent("on", "langchain", "openai") as exporter, ThreadPoolExecutor(8) as pool:
        list(pool.map(chain.invoke, [ASKED] * 24))
    spans = exporter.spans
    assert tree(spans) == sorted([CHAIN, f"{CHAIN} > openai:chat gpt-x"] * 24)
    assert len({span.trace_id for span in spans}) == 24


def test_a_batch_of_one_model_is_billed_call_by_call(server: FakeOpenAI) -> None:
    """`generate` starts all runs before the first call, and ends all after the last."""
    prompts: Any = [PROMPT.invoke(ASKED).to_messages()] * 3
    with agent("on", "langchain", "openai") as exporter:
        gpt(server).generate(prompts)
        assert not otel_context.get_current(), "they end in the order in which they began"
        run_later(gpt(server).agenerate(prompts))
        fake("a", "b").generate(prompts)
        assert not otel_context.get_current()
    assert [span.library for span in exporter.spans] == ["neuronscope.openai"] * 6 + [
        "neuronscope.langchain"
    ] * 3


def test_an_answer_from_the_cache_is_no_call() -> None:
    """LangChain's own cache."""
    usage: Any = {"input_tokens": 2, "output_tokens": 3, "total_tokens": 5}
    model = GenericFakeChatModel(messages=iter([AIMessage("a", usage_metadata=usage)]), cache=InMemoryCache())
    with agent("on", "langchain") as exporter:
        assert model.invoke("q").content == model.invoke("q").content
    assert [span.attributes[names.OUTPUT_TOKENS] for span in exporter.spans] == [3]


def test_suppressed_runs_are_not_observed(server: FakeOpenAI) -> None:
    """OpenTelemetry's key."""
    with agent("on", "langchain", "openai") as exporter:
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        try:
            (PROMPT | gpt(server)).invoke(ASKED)
            add.invoke({"a": 1, "b": 2})
        finally:
            otel_context.detach(token)
        assert exporter.spans == []


def test_uninstrument_leaves_langchain_as_it_was() -> None:
    """The hook is gone, and so is the wrapper; a run that is under way goes on."""
    hooks: Any = import_module("langchain_core.tracers.context")._configure_hooks
    config: Any = import_module("langchain_core.runnables.config")
    before, function = list(hooks), config._set_config_context
    ns.Platform()
    ns.instrument("langchain")
    assert len(hooks) == len(before) + 1
    stream = (PROMPT | fake("abc")).stream(ASKED)
    next(stream)
    ns.uninstrument("langchain")
    assert hooks == before
    assert config._set_config_context is function
    assert len(list(stream)) == 2
    assert "langchain" not in platform.installations()


def test_nothing_is_kept_of_runs_that_are_over(server: FakeOpenAI) -> None:
    """However they ended."""
    runs: list[Any] = []

    def keep(engine: Any) -> Any:
        from neuronscope_instrumentation.langchain.runs import Runs

        runs.append(Runs(engine))
        return runs[-1]

    adapter: Any = import_module("neuronscope_instrumentation.langchain")
    original = adapter.Runs
    adapter.Runs = keep
    try:
        with agent("on", "langchain", "openai"):
            use(PROMPT | gpt(server) | StrOutputParser())
            stream: Any = (PROMPT | fake("abc")).stream(ASKED)
            next(stream)
            stream.close()
            with pytest.raises(LookupError):
                fails.invoke({"a": "b"})
    finally:
        adapter.Runs = original
    assert runs[0]._runs == {}


def test_faults_of_the_adapter_change_nothing(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every callback made to raise."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    expected = use(PROMPT | fake("abc"))
    GUARD.reraise = False
    monkeypatch.setattr("neuronscope_instrumentation.langchain.runs.Runs._place", broken)
    with captured_logs() as logs, agent("on", "langchain"):
        answers = use(PROMPT | fake("abc"))
    assert [type(each) for each in answers] == [type(each) for each in expected]
    assert answers[0].content == expected[0].content
    assert [line for line in logs if not line.startswith("neuronscope")] == []
    assert GUARD.faults
