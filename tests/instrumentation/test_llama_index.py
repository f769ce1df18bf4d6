"""LlamaIndex observed through its dispatcher: parents around the leaf spans, tokens at the leaf only."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import openai
import pytest
from opentelemetry import trace

import neuronscope as ns
from client_cases import CANARY, Mode, agent, captured_logs
from frameworks import tree
from llama_index_case import core, gpt, index, instrumentation, llms, tools
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.layering import WAITING
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue, SpanRecord
from neuronscope.testing import FakeOpenAI, fake_openai
from neuronscope_instrumentation.llama_index.models import CHAT, provider_of

pytestmark = [
    pytest.mark.integration,
    # LlamaIndex's chat memory leaves its in-memory database to the collector, and streams their connections.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


def message() -> list[Any]:
    return [llms.ChatMessage(content=CANARY)]


def use(model: Any) -> Any:
    """Every way to call a model."""

    async def later() -> Any:
        return (
            str(await model.acomplete(CANARY)),
            str(await model.achat(message())),
            [chunk.delta async for chunk in await model.astream_complete(CANARY)],
        )

    return (
        str(model.complete(CANARY)),
        str(model.chat(message())),
        [chunk.delta for chunk in model.stream_complete(CANARY)],
        [chunk.delta for chunk in model.stream_chat(message())],
        asyncio.run(later()),
    )


def test_a_models_call_through_a_client_of_ours_is_that_clients(server: FakeOpenAI) -> None:
    """Also where the client is called when the stream is first read; the service sees no difference."""

    def run(mode: Mode) -> Any:
        model = gpt(server)
        with captured_logs() as logs, agent(mode, "llama_index", "openai") as exporter:
            return use(model), logs, exporter.spans

    (expected, nothing, _), (on, log, spans), (content, _, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == log == []
    for found in (spans, recorded):
        assert tree(found) == ["openai:chat gpt-x"] * 7
    assert CANARY not in repr(spans)
    assert not WAITING


def test_a_model_without_a_client_of_ours_has_a_span_of_its_own() -> None:
    """One a call, however many of LlamaIndex's methods it goes through."""

    def run(mode: Mode) -> Any:
        with captured_logs() as logs, agent(mode, "llama_index", "openai") as exporter:
            return use(core.llms.MockLLM(max_tokens=3)), logs, exporter.spans

    (expected, nothing, _), (on, log, spans), (content, _, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == log == []
    assert len(spans) == len(recorded) == 7
    assert {span.library for span in spans} == {"neuronscope.llama_index"}
    streamed = [span.attributes[names.STREAM_END] for span in spans if names.STREAM_END in span.attributes]
    assert set(streamed) == {"complete"}
    assert CANARY not in repr(spans)
    for span in recorded:
        asked = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
        assert CANARY in str(asked[-1]["parts"])
        assert json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))[0]["parts"]


def test_a_query_is_around_retrieval_and_the_models_call(server: FakeOpenAI) -> None:
    """Sync and async; the retriever is around its embedding."""
    shelf, root = index(), "llama_index:invoke_workflow RetrieverQueryEngine"
    retrieval = f"{root} > llama_index:retrieval VectorIndexRetriever"
    expected = [
        root,
        retrieval,
        f"{retrieval} > llama_index:embeddings unknown",
        f"{root} > openai:chat gpt-x",
    ]

    def run(mode: Mode) -> Any:
        engine = shelf.as_query_engine(llm=gpt(server))
        with captured_logs() as logs, agent(mode, "llama_index", "openai") as exporter:
            answers = str(engine.query(CANARY)), str(asyncio.run(engine.aquery(CANARY)))
            shelf.as_chat_engine(llm=gpt(server), chat_mode="context").chat(CANARY)
            return answers, logs, exporter.spans

    (answers, nothing, _), (on, log, spans), (content, _, recorded) = run("off"), run("on"), run("content")
    assert on == content == answers
    assert nothing == log == []
    chat = [path.replace("RetrieverQueryEngine", "ContextChatEngine") for path in expected]
    assert tree(spans) == tree(recorded) == sorted([*expected * 2, *chat])
    assert CANARY not in repr(spans)
    found = next(span for span in recorded if span.name.startswith("retrieval"))
    assert found.attributes[names.DOCUMENTS_RETURNED] == 2
    assert len(list(found.attributes[names.RETRIEVAL_IDS])) == 2
    assert len(list(found.attributes[names.RETRIEVAL_SCORES])) == 2
    assert found.attributes[names.RETRIEVAL_QUERY_TEXT] == CANARY
    assert CANARY in str(found.attributes[names.RETRIEVAL_DOCUMENTS])


def test_queries_in_threads_are_trees_of_their_own_and_billed_once(server: FakeOpenAI) -> None:
    """At once in a service's pool, and again below a span of the service's that goes with the context."""
    shelf, root = index(), "llama_index:invoke_workflow RetrieverQueryEngine"
    retrieval = f"{root} > llama_index:retrieval VectorIndexRetriever"
    expected = [
        root,
        retrieval,
        f"{retrieval} > llama_index:embeddings unknown",
        f"{root} > openai:chat gpt-x",
    ]
    engine = shelf.as_query_engine(llm=gpt(server))
    with agent("on", "llama_index", "openai") as exporter, ThreadPoolExecutor(6) as pool:
        list(pool.map(engine.query, [CANARY] * 12))
        spans = exporter.spans
        assert tree(spans) == sorted(expected * 12)
        assert len({span.trace_id for span in spans}) == 12
        exporter.clear()
        with trace.get_tracer("the service").start_as_current_span("ask") as around:
            pool.submit(copy_context().run, engine.query, CANARY).result()
        assert {span.trace_id for span in exporter.spans} == {around.get_span_context().trace_id}
        tokens = {
            dict(point.labels)[names.TOKEN_TYPE]: point.value.sum
            for family in ENGINE.metrics.collect().families
            if family.metric is names.TOKEN_USAGE
            for point in family.points
            if isinstance(point.value, HistogramValue)
        }
        assert tokens == {"input": 13 * 11, "output": 13 * 5}


def test_embeddings_are_one_span_and_never_told() -> None:
    """One, several; their length and count."""
    embedder = core.MockEmbedding(embed_dim=4)
    with agent("content", "llama_index") as exporter:
        embedder.get_query_embedding(CANARY)
        embedder.get_text_embedding_batch([CANARY, "b", "c"])
        asyncio.run(embedder.aget_text_embedding("b"))
    assert [span.attributes[names.INPUT_COUNT] for span in exporter.spans] == [1, 3, 1]
    assert [span.attributes[names.EMBEDDING_DIMENSIONS] for span in exporter.spans] == [4, 4, 4]
    assert CANARY not in repr(exporter.spans)


def test_tools_are_executed_with_their_names() -> None:
    """Sync and async; arguments and result only with content."""

    def look_up(a: str) -> str:
        return a * 2

    async def later(tool: Any) -> None:
        await tool.acall(a=CANARY)

    def run(mode: Mode) -> list[SpanRecord]:
        tool = tools.FunctionTool.from_defaults(look_up)
        with agent(mode, "llama_index") as exporter:
            tool.call(a=CANARY)
            asyncio.run(later(tool))
        return exporter.spans

    on, content = run("on"), run("content")
    for spans in (on, content):
        assert [span.name for span in spans] == ["execute_tool look_up"] * 2
        assert {span.attributes[names.TOOL_NAME] for span in spans} == {"look_up"}
    assert CANARY not in repr(on)
    for span in content:
        assert CANARY in str(span.attributes[names.TOOL_ARGUMENTS])
        assert CANARY in str(span.attributes[names.TOOL_RESULT])


def test_errors_are_told_by_type_at_every_level(server: FakeOpenAI) -> None:
    """The client's call and all around it; a model and a tool without a client."""
    engine = index().as_query_engine(llm=gpt(server))

    def fails(a: str) -> str:
        raise LookupError(a)

    with agent("on", "llama_index", "openai") as exporter:
        server.clear()
        server.reply(fake_openai.error(500, CANARY))
        with pytest.raises(openai.InternalServerError):
            engine.query(CANARY)
        failed = [span for span in exporter.spans if names.ERROR_TYPE in span.attributes]
        assert tree(failed) == [
            "llama_index:invoke_workflow RetrieverQueryEngine",
            "llama_index:invoke_workflow RetrieverQueryEngine > openai:chat gpt-x",
        ]
        assert {span.attributes[names.ERROR_TYPE] for span in failed} == {"openai.InternalServerError"}
        exporter.clear()
        with pytest.raises(LookupError):
            tools.FunctionTool.from_defaults(fails).call(a=CANARY)
        assert exporter.spans[0].attributes[names.ERROR_TYPE] == "LookupError"
        assert CANARY not in repr(exporter.spans)


def left(stream: Any) -> None:
    next(stream)
    stream.close()


def dropped(stream: Any) -> None:
    next(stream)
    del stream


def unread(stream: Any) -> None:
    del stream


@pytest.mark.parametrize(
    ("leave", "end"), [(left, "client_closed"), (dropped, "client_closed"), (unread, "abandoned")]
)
def test_a_stream_ends_once_however_it_is_left(leave: Callable[[Any], None], end: str) -> None:
    """Nothing stays current with the service, nothing is kept."""
    with captured_logs() as logs, agent("on", "llama_index") as exporter:
        leave(core.llms.MockLLM(max_tokens=3).stream_complete(CANARY))
        gc.collect()
        assert trace.get_current_span() is trace.INVALID_SPAN
        (span,) = exporter.spans
        assert span.attributes[names.STREAM_END] == end
        assert names.ERROR_TYPE not in span.attributes
    assert logs == []
    assert not WAITING


def test_a_stream_leaves_nothing_current_between_chunks(server: FakeOpenAI) -> None:
    """What the service opens meanwhile is its own."""
    with agent("on", "llama_index", "openai") as exporter:
        stream = core.llms.MockLLM(max_tokens=3).stream_complete("a b c")
        next(stream)
        with trace.get_tracer("the service").start_as_current_span("meanwhile"):
            next(stream)
        list(stream)
        assert {span.parent_span_id for span in exporter.spans} == {None}


def test_uninstrument_takes_the_handlers_away() -> None:
    """The very lists, as they were."""
    root = instrumentation.root_dispatcher
    before = list(root.span_handlers), list(root.event_handlers)
    ns.Platform()
    ns.instrument("llama_index")
    assert len(root.span_handlers) == len(before[0]) + 1
    ns.uninstrument("llama_index")
    assert (root.span_handlers, root.event_handlers) == before


def test_faults_of_the_adapter_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """LlamaIndex would swallow them; the guard counts them first."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    expected = use(core.llms.MockLLM(max_tokens=3))
    monkeypatch.setattr("neuronscope_instrumentation.llama_index.models.snapshot", broken)
    GUARD.reraise = False
    with agent("on", "llama_index") as exporter:
        assert use(core.llms.MockLLM(max_tokens=3)) == expected
        assert exporter.spans == []
    assert GUARD.faults


def test_tokens_are_read_in_the_words_of_the_providers() -> None:
    """From what the model's package has added, or from the provider's own answer."""
    assert CHAT.read_response is not None
    for told in (
        {"additional_kwargs": {"prompt_tokens": 11, "completion_tokens": 5}},
        {"raw": {"usage": {"prompt_tokens": 11, "completion_tokens": 5}}},
        {"raw": {"usage": {"input_tokens": 11, "output_tokens": 5}}},
    ):
        assert CHAT.read_response(told, False) == Response(input_tokens=11, output_tokens=5)
    assert CHAT.read_response(None, True) == Response()
    whole = [
        {
            "id": "r",
            "model": "m",
            "choices": [{"finish_reason": "stop", "message": {"content": CANARY}}],
            "usage": {
                "prompt_tokens": 11,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        },
        {
            "type": "message",
            "id": "r",
            "model": "m",
            "stop_reason": "stop",
            "usage": {"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 4},
        },
    ]
    for raw in whole:
        response = CHAT.read_response({"raw": raw, "additional_kwargs": {"prompt_tokens": 7}}, False)
        assert response == Response(
            id="r",
            model="m",
            finish_reasons=["stop"],
            input_tokens=11,
            output_tokens=5,
            cache_read_tokens=4,
        )


def test_the_provider_is_told_by_the_models_package() -> None:
    """Those of the service's own are LlamaIndex's."""
    assert provider_of("llama_index.llms.bedrock_converse.base") == "aws.bedrock"
    assert provider_of("llama_index.llms.openai.base") == "openai"
    assert provider_of("llama_index.embeddings.cohere.base") == "cohere"
    assert provider_of("the.service") == "llama_index"
