"""What servers of OpenAI's protocol do otherwise: where usage is, what it counts, how tools begin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import openai
import pytest

from client_cases import Mode, facts_like
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.testing.fake_openai import FakeOpenAI
from neuronscope.testing.fake_provider import Reply
from neuronscope_instrumentation.openai.responses import usage
from openai_cases import agent

pytestmark = pytest.mark.integration
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
COUNTED = {names.INPUT_TOKENS: 10, names.OUTPUT_TOKENS: 5}
UNKNOWN = dict.fromkeys((names.INPUT_TOKENS, names.OUTPUT_TOKENS))


def chunk(delta: Any = None, reason: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    choice: dict[str, Any] = {"index": index, "delta": delta or {}, "finish_reason": reason}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def tool(index: int | None, identifier: str, name: str | None, arguments: str) -> dict[str, Any]:
    """A piece of a tool call."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    call: dict[str, Any] = {"id": identifier, "type": "function", "function": function}
    return {"tool_calls": [call if index is None else {"index": index, **call}]}


def whole(usage: Any, **message: Any) -> Reply:
    """An answer in one piece."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "x", **message},
        "finish_reason": "stop",
    }
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return Reply(body={**body, "usage": usage})


def ending(usage: Any) -> Reply:
    """The same as a stream whose last chunk has the usage."""
    return Reply(events=[chunk({"content": "x"}), chunk({}, "stop", usage=usage)])


def ask(server: FakeOpenAI, reply: Reply, mode: Mode) -> SpanRecord:
    """The span of one call that is answered so."""
    server.reply(reply)
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with (
        agent(mode) as exporter,
        openai.OpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client,
    ):
        if reply.events is None:
            client.chat.completions.create(**asked)
        else:
            list(client.chat.completions.create(**asked, stream=True))
    (span,) = exporter.spans
    return span


def reasoned(sent: int, received: int, total: int, **details: int) -> dict[str, Any]:
    """Usage with details."""
    told = {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": total}
    cached = {"prompt_tokens_details": {"cached_tokens": details["cached"]}} if "cached" in details else {}
    reasoning = (
        {"completion_tokens_details": {"reasoning_tokens": details["reasoning"]}}
        if "reasoning" in details
        else {}
    )
    return {**told, **cached, **reasoning}


def generated(tokens: int, reasoning: int | None = None) -> dict[str, Any]:
    return {names.OUTPUT_TOKENS: tokens, names.REASONING_TOKENS: reasoning}


TOTALS: Sequence[tuple[str, Any, Mapping[str, Any]]] = (
    ("openai", reasoned(10, 25, 35, reasoning=20), generated(25, 20)),
    ("xai", reasoned(32, 9, 135, reasoning=94), generated(103, 94)),
    ("xai with a cache", reasoned(32, 9, 135, reasoning=94, cached=8), generated(103, 94)),
    ("gemini", reasoned(8, 1, 29), generated(21)),
    ("a surplus that is not the reasoning", reasoned(10, 25, 45, reasoning=20), generated(25, 20)),
    ("a surplus that may be a cache's", reasoned(10, 5, 25, cached=10), generated(5)),
    ("a total that is too small", reasoned(10, 5, 5), generated(5)),
    ("no total", {"prompt_tokens": 10, "completion_tokens": 5}, generated(5)),
)


@pytest.mark.parametrize("mode", ["on", "content"])
@pytest.mark.parametrize(("usage", "facts"), [row[1:] for row in TOTALS], ids=[row[0] for row in TOTALS])
def test_reasoning_is_output_wherever_it_is_counted(usage: Any, facts: Any, mode: Mode) -> None:
    """Some leave it out of `completion_tokens`; whole and streamed answers say the same."""
    with FakeOpenAI() as server:
        for reply in (whole(usage), ending(usage)):
            assert facts_like(ask(server, reply, mode).attributes, facts) == facts


def test_responses_count_reasoning_likewise() -> None:
    """A total that has more than input and output."""
    told = {"input_tokens": 10, "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 20}}
    assert usage({**told, "total_tokens": 35})["output_tokens"] == 25
    assert usage({**told, "total_tokens": 15})["output_tokens"] == 5
    assert usage(told)["output_tokens"] == 5


ELSEWHERE: Sequence[tuple[str, list[Any], Mapping[str, Any]]] = (
    (
        "groq",
        [
            chunk({"role": "assistant", "content": ""}, x_groq={"id": "req"}),
            chunk({"content": "a"}),
            chunk({}, "stop", x_groq={"id": "req", "usage": {"queue_time": 0.1, **USAGE}}),
        ],
        COUNTED,
    ),
    (
        "moonshot",
        [
            chunk({"content": "a"}),
            {
                **chunk(),
                "choices": [
                    {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {**USAGE, "cached_tokens": 4}}
                ],
            },
        ],
        {**COUNTED, names.CACHE_READ_TOKENS: 4},
    ),
    (
        "perplexity, so far in every chunk",
        [
            chunk({"content": "a"}, usage={**USAGE, "completion_tokens": 1, "total_tokens": 11}),
            chunk({"content": "b"}, "stop", usage=USAGE),
        ],
        COUNTED,
    ),
    (
        "openrouter, after the end",
        [chunk({"content": "a"}), chunk({}, "stop"), chunk({"content": ""}, usage={**USAGE, "cost": 0.1})],
        COUNTED,
    ),
    ("nobody", [chunk({"content": "a"}), chunk({}, "stop")], UNKNOWN),
)


@pytest.mark.parametrize(
    ("events", "facts"), [row[1:] for row in ELSEWHERE], ids=[row[0] for row in ELSEWHERE]
)
def test_a_streams_usage_is_found_where_it_is(events: list[Any], facts: Any) -> None:
    """Beside the choices, in one of them, in every chunk, after the last; and not made up."""
    with FakeOpenAI() as server:
        for mode in ("on", "content"):
            attributes = ask(server, Reply(events=events), mode).attributes
            assert facts_like(attributes, facts) == facts
            assert attributes[names.FINISH_REASONS] == ["stop"]


CALLS: Sequence[tuple[str, list[Any]]] = (
    ("openai", [tool(0, "a", "f", '{"x":'), tool(1, "b", "g", "{}"), tool(0, "a", None, " 1}")]),
    ("gemini, all at one index", [tool(0, "a", "f", '{"x": 1}'), tool(0, "b", "g", "{}")]),
    ("gemini, without one", [tool(None, "a", "f", '{"x": 1}'), tool(None, "b", "g", "{}")]),
    (
        "vllm, another id for each piece",
        [tool(0, "a", "f", '{"x":'), tool(0, "c", None, " 1}"), tool(1, "b", "g", "{}")],
    ),
    ("a name in each piece", [tool(0, "a", "f", '{"x":'), tool(0, "a", "f", " 1}"), tool(1, "b", "g", "{}")]),
)


@pytest.mark.parametrize("pieces", [row[1] for row in CALLS], ids=[row[0] for row in CALLS])
def test_tools_called_at_once_are_told_apart(pieces: list[Any]) -> None:
    """None is lost, and each has its own arguments."""
    events = [*map(chunk, pieces), chunk({}, "tool_calls", usage=USAGE)]
    with FakeOpenAI() as server:
        assert ask(server, Reply(events=events), "on").attributes[names.TOOLS_CALLED] == ["f", "g"]
        (said,) = json.loads(
            str(ask(server, Reply(events=events), "content").attributes[names.OUTPUT_MESSAGES])
        )
    assert said["parts"] == [
        {"type": "tool_call", "id": "a", "name": "f", "arguments": {"x": 1}},
        {"type": "tool_call", "id": "b", "name": "g", "arguments": {}},
    ]


THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]


def test_mistrals_models_think_in_parts_of_the_content() -> None:
    """A list of them, whole and in a stream, where the answer's text follows as a text."""
    whole_answer = whole(USAGE, content=[*THOUGHT, {"type": "text", "text": "ab"}])
    events = [
        chunk({"content": THOUGHT}),
        chunk({"content": [{"type": "text", "text": "a"}]}),
        chunk({"content": "b"}),
        chunk({}, "stop", usage=USAGE),
    ]
    with FakeOpenAI() as server:
        for reply in (whole_answer, Reply(events=events)):
            span = ask(server, reply, "content")
            (said,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
            assert said["parts"] == [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "ab"},
            ]
