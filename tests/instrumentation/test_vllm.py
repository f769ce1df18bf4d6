"""vLLM in process, over a module of its shape."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

import neuronscope as ns
import vllm_shaped
from client_cases import CANARY, Mode, agent, facts_like
from neuronscope import platform
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_instrumentation.vllm.outputs import read_outputs, summaries, times
from vllm_shaped import (
    LLM,
    REFUSED,
    AsyncLLM,
    CompletionOutput,
    PoolingOfflineMixin,
    RequestOutput,
    RequestOutputKind,
    RequestStateStats,
    SamplingParams,
)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of vLLM that the adapter looks for."""
    vllm_shaped.install(monkeypatch)
    yield
    platform.uninstrument()


ASKED = SamplingParams(temperature=0.5, top_p=0.9, top_k=-1, max_tokens=3, seed=7, stop=[CANARY])
COMPLETE = {
    names.PROVIDER_NAME: "vllm",
    names.REQUEST_MODEL: "smol",
    names.MODEL_NAME: "smol",
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_TOP_P: 0.9,
    names.REQUEST_TOP_K: None,
    names.REQUEST_MAX_TOKENS: 3,
    names.REQUEST_SEED: 7,
    names.INPUT_TOKENS: 4,
    names.CACHE_READ_TOKENS: 1,
    names.OUTPUT_TOKENS: 3,
    names.FINISH_REASONS: ["length"],
    names.MODEL_QUEUE: 0.5,
    names.MODEL_PREFILL: 0.5,
    names.MODEL_DECODE: 1.0,
    names.MODEL_DECODE_RATE: 2.0,
    names.ERROR_TYPE: None,
}


def test_generate_and_chat_are_one_span_each() -> None:
    """`chat` goes through `generate`; tokens, times and reasons; words only with content."""
    messages = [{"role": "user", "content": CANARY}]

    def run(mode: Mode) -> Any:
        with agent(mode, "vllm") as exporter:
            model = LLM()
            return model.generate(CANARY, ASKED), model.chat(messages, ASKED), exporter.spans

    (*expected, nothing), (*on, spans), (*content, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    assert nothing == []
    for found in (spans, recorded):
        assert [span.name for span in found] == ["text_completion smol", "chat smol"]
        assert {span.kind for span in found} == {SpanKind.INTERNAL}
        for span in found:
            assert facts_like(span.attributes, COMPLETE) == COMPLETE
        assert found[1].attributes[names.INPUT_MESSAGE_COUNT] == 1
    assert CANARY not in repr(spans)
    for span in recorded:
        (asked,) = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
        assert asked == {"role": "user", "parts": [{"type": "text", "content": CANARY}]}
        (said,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
        assert said["parts"] == [{"type": "text", "content": "one two three"}]
        assert said["finish_reason"] == "length"


def test_tools_a_schema_and_the_requests_id_are_told() -> None:
    """What a conversation offers, that its answer is to be JSON, and vLLM's own id of it."""
    tools: Any = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    asked = dataclasses.replace(ASKED, structured_outputs=SimpleNamespace(json={"type": "object"}))
    with agent("on", "vllm") as exporter:
        LLM().chat([{"role": "user", "content": CANARY}], asked, tools=tools)
        LLM().generate(["a", "b"], ASKED)
    chat, batch = exporter.spans
    assert chat.attributes[names.TOOLS_OFFERED] == ["look_up"]
    assert chat.attributes[names.OUTPUT_TYPE] == "json"
    assert chat.attributes[names.RESPONSE_ID] == "r"
    assert names.RESPONSE_ID not in batch.attributes  # it has several


def test_a_batch_is_one_span_of_all_its_requests() -> None:
    """Tokens add up; times are from the first request to the last."""
    with agent("on", "vllm") as exporter:
        LLM().generate(["a", "b", "c"], [ASKED] * 3)
    (span,) = exporter.spans
    assert span.attributes[names.MODEL_BATCH] == 3
    assert span.attributes[names.INPUT_TOKENS] == 12
    assert span.attributes[names.OUTPUT_TOKENS] == 9
    assert span.attributes[names.FINISH_REASONS] == ["length"] * 3
    assert span.attributes[names.MODEL_QUEUE] == 0.5
    assert span.attributes[names.MODEL_PREFILL] == pytest.approx(2.5)
    assert span.attributes[names.MODEL_DECODE] == pytest.approx(3.0)


def test_embeddings_are_counted_and_never_told() -> None:
    """Their length, the tokens of their texts."""
    with agent("content", "vllm") as exporter:
        PoolingOfflineMixin().embed([CANARY, "b"])
    (span,) = exporter.spans
    assert span.attributes[names.OPERATION_NAME] == "embeddings"
    assert span.attributes[names.INPUT_COUNT] == 2
    assert span.attributes[names.EMBEDDING_DIMENSIONS] == 6
    assert span.attributes[names.INPUT_TOKENS] == 6
    assert CANARY not in repr(span)


async def read(kind: RequestOutputKind) -> tuple[str, list[RequestOutput]]:
    params = dataclasses.replace(ASKED, output_kind=kind)
    stream = AsyncLLM().generate(CANARY, params, request_id="r1")
    return type(stream).__qualname__, [output async for output in stream]


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_the_asynchronous_engines_stream_is_folded(kind: RequestOutputKind) -> None:
    """All so far, what is new, or only the end: the same numbers; the service gets a generator, as before."""

    def run(mode: Mode) -> tuple[Any, list[SpanRecord]]:
        with agent(mode, "vllm") as exporter:
            return asyncio.run(read(kind)), exporter.spans

    (expected, _), (on, spans), (content, recorded) = run("off"), run("on"), run("content")
    assert on == content == expected
    streamed = {
        **COMPLETE,
        names.STREAM_END: "complete",
        names.STREAM_CHUNKS: 1 if kind is RequestOutputKind.FINAL_ONLY else 3,
    }
    for found in (spans, recorded):
        (span,) = found
        assert facts_like(span.attributes, streamed) == streamed
    assert CANARY not in repr(spans)
    (said,) = json.loads(str(recorded[0].attributes[names.OUTPUT_MESSAGES]))
    assert said["parts"] == [{"type": "text", "content": "one two three"}]


def test_the_engine_before_the_last_is_one_class_or_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.10 it has a `generate` of its own, and its model further inside; later it is the same class."""

    class AsyncLLMEngine:
        """As it was."""

        engine = SimpleNamespace(model_config=SimpleNamespace(model="old", served_model_name=None))
        generate = vars(AsyncLLM)["generate"]

    async def ask(engine: Any) -> None:
        async for _ in engine.generate(CANARY, ASKED, request_id="r1"):
            pass

    for kind, told in ((AsyncLLMEngine, "old"), (AsyncLLM, "smol")):
        module = ModuleType("vllm.engine.async_llm_engine")
        vars(module)["AsyncLLMEngine"] = kind
        monkeypatch.setitem(sys.modules, module.__name__, module)
        with agent("on", "vllm") as exporter:
            asyncio.run(ask(kind()))
        assert [span.attributes[names.REQUEST_MODEL] for span in exporter.spans] == [told]


def test_a_prompt_that_comes_in_pieces_is_left_to_the_engine() -> None:
    """A generator is not read."""

    async def pieces() -> AsyncIterator[str]:
        yield CANARY

    async def ask() -> Any:
        prompt: Any = pieces()
        async for _ in AsyncLLM().generate(prompt, ASKED, request_id="r1"):
            pass
        return await anext(prompt)

    with agent("content", "vllm") as exporter:
        assert asyncio.run(ask()) == CANARY
    (span,) = exporter.spans
    assert names.INPUT_MESSAGES not in span.attributes
    assert span.attributes[names.INPUT_TOKENS] == 4


def test_a_stream_that_is_left_aborts_its_request_and_ends_its_span() -> None:
    """Closed by the service, cancelled, never read."""
    engine = AsyncLLM()

    async def leave() -> None:
        stream: Any = engine.generate("a", ASKED, request_id="1")
        await anext(stream)
        await stream.aclose()
        unread = engine.generate("a", ASKED, request_id="2")
        del unread
        gc.collect()

    with agent("on", "vllm") as exporter:
        asyncio.run(leave())
    assert engine.aborted == 1
    assert [span.attributes[names.STREAM_END] for span in exporter.spans] == ["client_closed", "abandoned"]


def test_errors_are_told_by_type() -> None:
    """And go through."""
    with agent("on", "vllm") as exporter, pytest.raises(ValueError, match=REFUSED):
        LLM().generate("")
    (span,) = exporter.spans
    assert span.attributes[names.ERROR_TYPE] == "ValueError"
    assert REFUSED not in repr(span)


def test_uninstrument_restores_every_method() -> None:
    """The very functions; nothing that the installed version should have is missing."""
    methods = ((LLM, "generate"), (LLM, "chat"), (PoolingOfflineMixin, "embed"), (AsyncLLM, "generate"))
    originals = [vars(kind)[name] for kind, name in methods]
    ns.Platform()
    ns.instrument("vllm")
    assert platform.installation("vllm").missing == set()
    assert all(vars(kind)[name] is not own for (kind, name), own in zip(methods, originals, strict=True))
    ns.uninstrument("vllm")
    assert [vars(kind)[name] for kind, name in methods] == originals


def test_faults_of_the_adapter_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of outputs, made to raise."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("neuronscope_instrumentation.vllm.outputs.summary", broken)
    expected = LLM().generate("a", ASKED)
    GUARD.reraise = False
    with agent("on", "vllm"):
        assert LLM().generate("a", ASKED) == expected
        assert len(asyncio.run(read(RequestOutputKind.DELTA))[1]) == 3
    assert GUARD.faults


def test_times_are_told_only_where_vllm_keeps_them() -> None:
    """Two generations of statistics; none, and some of them."""
    assert times(None) is None
    assert times(RequestStateStats(queued_ts=1.0)) is None
    older = SimpleNamespace(
        arrival_time=1.0, first_scheduled_time=2.0, first_token_time=3.0, last_token_time=4.0
    )
    told = times(older)
    assert told is not None
    assert (told.queued, told.last) == (1.0, 4.0)
    unmeasured = RequestOutput("r", "a", None, [CompletionOutput(0, "x", [1])], True)
    response = read_outputs(summaries([unmeasured]), False)
    assert names.MODEL_PREFILL not in response.extra
    assert response.input_tokens is None
    assert summaries("odd") == []
