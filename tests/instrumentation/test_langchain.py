"""LangChain observed through its own callbacks: parents around the leaf spans, tokens at the leaf only."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from importlib import import_module
from typing import Any

import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from opentelemetry import context as otel_context
from opentelemetry import trace
from pydantic import SecretStr

import neuronscope as ns
from client_cases import CANARY, Mode, agent, captured_logs
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue, SpanRecord
from neuronscope.testing import FakeOpenAI, fake_openai

pytestmark = [
    pytest.mark.integration,
    # langchain-openai says so of a stream whose provider tells no usage.
    pytest.mark.filterwarnings("ignore:Unexpected type for token usage:UserWarning"),
    # Connections of streams that were left.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PROMPT = ChatPromptTemplate.from_messages([("user", "{q}")])
ASKED = {"q": CANARY}
RUNNER = asyncio.Runner()
step: Any = RunnableLambda  # untyped functions are fine here


class Shelf(BaseRetriever):
    """Two documents, found by an embedding of OpenAI's."""

    look_up: Callable[[str], Any]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.look_up(query)
        return [Document(page_content=CANARY, id="d1"), Document(page_content="b", id="d2")]


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def fails(a: str) -> str:
    """Fails."""
    raise LookupError(a)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake
        run_later(gpt(fake).root_async_client.close())
        list(map(gc.collect, (0, 1, 2)))


def run_later(coroutine: Any) -> Any:
    """Run it in the module's event loop: langchain-openai keeps its HTTP clients, and they their loop."""
    return RUNNER.run(coroutine, context=copy_context())


def gpt(server: FakeOpenAI, **more: Any) -> ChatOpenAI:
    """A model whose calls the openai adapter observes."""
    return ChatOpenAI(
        model="gpt-x",
        base_url=server.base_url,
        api_key=SecretStr("k"),
        max_retries=0,
        temperature=0.5,
        **more,
    )


def fake(*answers: str) -> FakeListChatModel:
    """A model whose calls nobody observes."""
    return FakeListChatModel(responses=list(answers))


def tree(spans: list[SpanRecord]) -> list[str]:
    """Each span with all that is around it, sorted."""
    known = {span.span_id: span for span in spans}

    def path(span: SpanRecord) -> str:
        around = known.get(span.parent_span_id or 0)
        own = f"{span.library.removeprefix('neuronscope.')}:{span.name}"
        return own if around is None else f"{path(around)} > {own}"

    return sorted(map(path, spans))


def same(value: Any) -> Any:
    return value


def constantly(value: Any) -> Callable[[Any], Any]:
    """A function that returns `value`, whatever it is given."""

    def constant(_: Any) -> Any:
        return value

    return constant


async def drain(stream: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in stream]


def use(chain: Any) -> Any:
    """Every way to run a chain, in one event loop: LangChain keeps its HTTP clients."""

    async def later() -> Any:
        return (
            await chain.ainvoke(ASKED),
            await drain(chain.astream(ASKED)),
            await chain.abatch([ASKED, ASKED]),
        )

    return chain.invoke(ASKED), list(chain.stream(ASKED)), chain.batch([ASKED, ASKED]), run_later(later())


CHAIN = "langchain:invoke_workflow RunnableSequence"


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
        run_later(gpt(server).agenerate(prompts))
        fake("a", "b").generate(prompts)
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


def test_parents_are_right_across_threads_and_tasks(server: FakeOpenAI) -> None:
    """Parallel branches, a retriever with a call of its own in it, a tool, a span of the service's."""
    tracer = trace.get_tracer("the service")
    model = gpt(server)

    def by_hand(question: Any) -> Any:
        with tracer.start_as_current_span("by hand"):
            return model.invoke(question)

    shelf = Shelf(look_up=model.invoke)
    searched: Any = step(constantly(CANARY)) | shelf
    used: Any = step(constantly({"a": 1, "b": 2})) | add
    chain: Any = RunnableParallel(
        a=PROMPT | model,
        b=PROMPT | fake("x") | StrOutputParser(),
        c=searched,
        d=used,
        e=PROMPT | step(by_hand),
    )
    root = "langchain:invoke_workflow RunnableParallel<a,b,c,d,e>"
    expected = sorted(
        [
            root,
            f"{root} > openai:chat gpt-x",
            f"{root} > langchain:chat",
            f"{root} > langchain:retrieval Shelf",
            f"{root} > langchain:retrieval Shelf > openai:chat gpt-x",
            f"{root} > langchain:execute_tool add",
            f"{root} > the service:by hand",
            f"{root} > the service:by hand > openai:chat gpt-x",
        ]
    )

    async def later() -> None:
        await chain.ainvoke(ASKED)
        await drain(chain.astream(ASKED))

    with captured_logs() as logs, agent("on", "langchain", "openai") as exporter:
        tracer = trace.get_tracer("the service")
        for run in (lambda: chain.invoke(ASKED), lambda: list(chain.stream(ASKED))):
            run()
            assert tree(exporter.spans) == expected
            exporter.clear()
        run_later(later())
        assert tree(exporter.spans) == sorted(expected * 2)
    assert logs == []


def test_a_stream_leaves_nothing_current_with_the_service(server: FakeOpenAI) -> None:
    """Between two chunks the service's own spans are its own; so they are after it was left."""
    tracer = trace.get_tracer("the service")
    for model in (gpt(server), fake("abc")):
        with captured_logs() as logs, agent("on", "langchain", "openai") as exporter:
            tracer = trace.get_tracer("the service")
            streams: list[Any] = [(PROMPT | model).stream(ASKED), model.stream(CANARY)]
            for stream in streams:
                next(stream)
                assert trace.get_current_span() is trace.INVALID_SPAN
                with tracer.start_as_current_span("meanwhile"):
                    next(stream)
                stream.close()
                assert trace.get_current_span() is trace.INVALID_SPAN
            meanwhile = [span for span in exporter.spans if span.name == "meanwhile"]
            assert [span.parent_span_id for span in meanwhile] == [None, None]
            left = [span for span in exporter.spans if span.name.startswith("chat")]
            assert {span.attributes[names.STREAM_END] for span in left} == {"client_closed"}
            assert not [span for span in exporter.spans if names.ERROR_TYPE in span.attributes]
        assert logs == []


def test_a_cancelled_chain_ends_all_its_spans(server: FakeOpenAI) -> None:
    """A `BaseException` in the middle of a stream."""

    async def cancelled() -> None:
        server.clear()
        server.reply(fake_openai.chat_stream("one two three", delay_s=0.1))
        async with asyncio.timeout(0.15):
            await drain((PROMPT | gpt(server)).astream(ASKED))

    with captured_logs() as logs, agent("on", "langchain", "openai") as exporter:
        with pytest.raises(TimeoutError):
            run_later(cancelled())
        assert tree(exporter.spans) == [CHAIN, f"{CHAIN} > openai:chat gpt-x"]
    assert logs == []


def test_errors_are_told_by_type_at_every_level(server: FakeOpenAI) -> None:
    """The client's call, the chain around it; a tool; a model without a client."""

    def failing_tool(_: Any) -> Any:
        return fails.invoke({"a": CANARY})

    broken: Any = step(failing_tool)

    def raising(_: Any) -> Any:
        raise ZeroDivisionError(CANARY)

    class Broken(FakeListChatModel):
        def _call(self, *args: Any, **kwargs: Any) -> str:
            raise ZeroDivisionError(CANARY)

    with agent("on", "langchain", "openai") as exporter:
        server.clear()
        server.reply(fake_openai.error(500, CANARY))
        failing: list[tuple[Any, str]] = [
            (PROMPT | gpt(server), "APIError"),
            (PROMPT | broken, "LookupError"),
            (PROMPT | step(raising), "ZeroDivisionError"),
            (Broken(responses=["x"]), "ZeroDivisionError"),
        ]
        for chain, error in failing:
            with pytest.raises((openai.APIError, LookupError, ZeroDivisionError)):
                chain.invoke(CANARY if isinstance(chain, Broken) else ASKED)
            assert exporter.spans
            told = {str(span.attributes[names.ERROR_TYPE]) for span in exporter.spans}
            # The client's own, and what langchain-openai makes of it.
            assert told == {error} or {"openai.InternalServerError"} < told
            assert {span.status.name for span in exporter.spans} == {"ERROR"}
            assert CANARY not in repr(exporter.spans)
            exporter.clear()


def test_tools_and_retrievers_tell_their_content_only_when_asked() -> None:
    """Arguments, result, query and documents; counts and ids always."""
    shelf = Shelf(look_up=lambda _: None)

    def run(mode: Mode) -> list[SpanRecord]:
        with agent(mode, "langchain") as exporter:
            add.invoke({"type": "tool_call", "name": "add", "args": {"a": 1, "b": 2}, "id": "c1"})
            shelf.invoke(CANARY)
        return exporter.spans

    for mode in ("on", "content"):
        used, found = run(mode)
        assert used.name == "execute_tool add"
        assert used.kind.name == "INTERNAL"
        assert used.attributes[names.TOOL_NAME] == "add"
        assert used.attributes[names.TOOL_CALL_ID] == "c1"
        assert found.name == "retrieval Shelf"
        assert found.attributes[names.OPERATION_NAME] == "retrieval"
        assert found.attributes[names.DOCUMENTS_RETURNED] == 2
        assert found.attributes[names.RETRIEVAL_IDS] == ["d1", "d2"]
        contents = {names.TOOL_ARGUMENTS, names.TOOL_RESULT}
        assert (contents <= set(used.attributes)) == (mode == "content")
        assert (CANARY in repr(found)) == (mode == "content")
    assert json.loads(str(used.attributes[names.TOOL_ARGUMENTS])) == {"a": 1, "b": 2}
    assert used.attributes[names.TOOL_RESULT] == "3"
    assert found.attributes[names.RETRIEVAL_QUERY_TEXT] == CANARY
    assert json.loads(str(found.attributes[names.RETRIEVAL_DOCUMENTS]))[0] == {"id": "d1", "content": CANARY}


def test_agents_and_conversations_are_named() -> None:
    """By the metadata that LangChain's agents give their runs; once, not for each of their parts."""
    inner: Any = step(same) | step(same)
    helper: Any = step(inner.invoke).with_config(metadata={"lc_agent_name": "helper"})
    outer: Any = step(same) | helper
    with agent("on", "langchain") as exporter:
        outer.invoke("x", config={"metadata": {"thread_id": "t-1"}})
    assert tree(exporter.spans) == [CHAIN, f"{CHAIN} > langchain:invoke_agent helper"]
    by_name = {span.attributes[names.OPERATION_NAME]: span for span in exporter.spans}
    assert by_name["invoke_agent"].attributes[names.CONVERSATION_ID] == "t-1"
    assert by_name["invoke_agent"].attributes[names.AGENT_NAME] == "helper"


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


def node(name: str, does: Any) -> Any:
    """A node as LangGraph runs it: a chain with its own metadata and tag, around what the service wrote."""
    told = {"langgraph_node": name, "langgraph_step": 1}
    chain = step(does) | StrOutputParser()
    return chain.with_config(run_name=name, metadata=told, tags=["graph:step:1"])


def test_nodes_of_a_graph_are_parents(server: FakeOpenAI) -> None:
    """Each a span within the graph's, what it calls beneath it; chains inside a node have none."""
    model = gpt(server)

    def look_up(_: Any) -> str:
        return CANARY

    def answer(found: str) -> Any:
        return model.invoke(found)

    graph = (node("look_up", look_up) | node("answer", answer)).with_config(run_name="rag")
    with agent("on", "langchain", "openai") as exporter:
        graph.invoke(ASKED)
    found = {span.name: span for span in exporter.spans}
    assert sorted(found) == ["chat gpt-x", "invoke_workflow rag", "step answer", "step look_up"]
    around = {name: span.parent_span_id for name, span in found.items()}
    assert around["chat gpt-x"] == found["step answer"].span_id
    assert around["step answer"] == around["step look_up"] == found["invoke_workflow rag"].span_id
    assert found["step answer"].attributes[names.WORKFLOW_STEP] == "answer"
    assert CANARY not in repr(exporter.spans)
