"""LangChain's runs: parents across threads, tasks, streams, agents and graphs; errors; content."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableParallel
from opentelemetry import trace

from client_cases import CANARY, Mode, agent, captured_logs
from frameworks import tree
from langchain_case import (
    ASKED,
    CHAIN,
    PROMPT,
    Shelf,
    add,
    constantly,
    drain,
    fails,
    fake,
    gpt,
    run_later,
    same,
    step,
)
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.testing import FakeOpenAI, fake_openai

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
    """A `BaseException` in the middle of a stream; one that LangChain was not reading ends when collected."""

    async def cancelled() -> None:
        server.clear()
        # So long that it is not over before it is left, however busy the machine is.
        server.reply(fake_openai.chat_stream(" ".join(["word"] * 200), delay_s=0.1))
        chunks = (PROMPT | gpt(server)).astream(ASKED)
        await anext(chunks)
        async with asyncio.timeout(0.15):
            await drain(chunks)

    with captured_logs() as logs, agent("on", "langchain", "openai") as exporter:
        with pytest.raises(TimeoutError):
            run_later(cancelled())
        gc.collect()
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
