"""The Responses API: what services do with it, what its spans say, and how its events fold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, Reply
from neuronscope.testing.fake_responses import (
    custom_call,
    function_call,
    message,
    reasoning,
    refusal,
    response,
    response_events,
    response_stream,
)
from openai_cases import CANARY, observe, observe_async, three_ways

integration = pytest.mark.integration
STREAMED = {names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.INPUT_TOKENS: 11}


class Answer(pydantic.BaseModel):
    """A structured output."""

    city: str


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


# --- what services do ------------------------------------------------------------------------------
def parse(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response('{"city": "Paris"}'))
    answer = client.responses.parse(model="m", input=CANARY, text_format=Answer)
    return answer, answer.output_parsed


def parse_cut_off(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    """The SDK cannot parse half a JSON text: it raises, though the answer is billed."""
    server.reply(response('{"ci', status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    try:
        client.responses.parse(model="m", input=CANARY, text_format=Answer)
    except pydantic.ValidationError as error:
        return type(error).__qualname__, error.error_count()
    return "parsed"


def stream_helper(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response_stream(f"{CANARY} is not ours at"))
    with client.responses.stream(model="m", input=CANARY) as stream:
        kinds = [event.type for event in stream]
        return type(stream).__qualname__, kinds, stream.get_final_response()


def stream_helper_left_early(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response_stream(f"{CANARY} is not ours at"))
    with client.responses.stream(model="m", input=CANARY) as stream:
        return next(iter(stream)).type


def background(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    begun = client.responses.create(model="m", input=CANARY, background=True)
    server.reply(response(status="in_progress", output=[], usage=None), response(CANARY))
    still = client.responses.retrieve(begun.id)
    return begun, still, client.responses.retrieve(begun.id)


def resumed(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response_stream(CANARY))
    return list(client.responses.retrieve("resp-fake", stream=True, starting_after=3))


def bookkeeping(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return (
        client.responses.cancel("resp-fake"),
        client.responses.input_tokens.count(model="m", input=CANARY),
        list(client.responses.input_items.list("resp-fake")),
    )


def tools(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    calls = [
        reasoning(CANARY),
        function_call("find", '{"q": "cats"}', "a"),
        function_call("add", '{"x": 1}', "b"),
        custom_call("shell", "ls -l", "c"),
        {
            "type": "web_search_call",
            "id": "ws",
            "status": "completed",
            "action": {"type": "search", "query": CANARY},
        },
    ]
    server.reply(response(output=calls))
    asked: Any = [
        {"type": "function", "name": "find", "parameters": {}, "strict": True},
        {"type": "custom", "name": "shell"},
        {"type": "web_search"},
    ]
    return client.responses.create(model="m", input=CANARY, tools=asked, reasoning={"effort": "low"})


def refused(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response(output=[refusal(CANARY)]))
    return client.responses.create(model="m", input=CANARY)


def incomplete(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response("one", status="incomplete", incomplete_details={"reason": "content_filter"}))
    return client.responses.create(model="m", input=CANARY, max_output_tokens=16)


def failed(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    told = {"code": "server_error", "message": CANARY}
    server.reply(response(output=[], status="failed", error=told, usage=None))
    return client.responses.create(model="m", input=CANARY)


def failed_stream(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    told = {"code": "rate_limit_exceeded", "message": CANARY}
    server.reply(response_events([message("one two")], status="failed", error=told, usage=None))
    return list(client.responses.create(model="m", input=CANARY, stream=True))


def error_event(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    events = list(response_stream("one two").events or ())[:5]
    told = {"type": "error", "code": "server_error", "message": CANARY, "param": None, "sequence_number": 9}
    server.reply(Reply(events=[*events, told]))
    return list(client.responses.create(model="m", input=CANARY, stream=True))


def cut_off(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    """The connection ends in order, but the answer does not."""
    events = list(response_stream("one two").events or ())[:-1]
    server.reply(Reply(events=events, done=False))
    return list(client.responses.create(model="m", input=CANARY, stream=True))


def continued(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(response(conversation={"id": "conv-1"}))
    return client.responses.create(
        model="m",
        input=[{"role": "user", "content": CANARY}, {"role": "assistant", "content": "b"}],
        conversation={"id": "conv-1"},
        prompt={"id": "pmpt-1", "version": "2", "variables": {"name": CANARY}},
        text={"format": {"type": "json_object"}},
        service_tier="flex",
        top_p=0.5,
    )


CHAT = {names.OPERATION_NAME: "chat", names.OPENAI_API_TYPE: "responses", names.REQUEST_MODEL: "m"}
FETCH = {names.OPERATION_NAME: "fetch_response", names.RESPONSE_ID: "resp-fake", names.INPUT_TOKENS: None}
CASES: list[tuple[Any, list[dict[str, Any]]]] = [
    (parse, [{**CHAT, names.OUTPUT_TYPE: "json", names.FINISH_REASONS: ["stop"], names.ERROR_TYPE: None}]),
    (
        parse_cut_off,
        [
            {
                **CHAT,
                names.ERROR_TYPE: "pydantic_core._pydantic_core.ValidationError",
                names.FINISH_REASONS: ["length"],
                names.OUTPUT_TOKENS: 5,
            }
        ],
    ),
    (stream_helper, [{**CHAT, **STREAMED, names.FINISH_REASONS: ["stop"]}]),
    (stream_helper_left_early, [{**CHAT, names.STREAM_END: "client_closed", names.ERROR_TYPE: None}]),
    (
        background,
        [
            {**CHAT, names.BACKGROUND: True, names.RESPONSE_ID: "resp-fake", names.INPUT_TOKENS: None},
            {**FETCH, names.RESPONSE_STATUS: "in_progress", names.FINISH_REASONS: None},
            {**FETCH, names.RESPONSE_STATUS: "completed", names.FETCHED_OUTPUT_TOKENS: 5},
        ],
    ),
    (
        resumed,
        [
            {
                **FETCH,
                names.STREAM_CURSOR: "3",
                names.STREAM_END: "complete",
                names.RESPONSE_STATUS: "completed",
            }
        ],
    ),
    (bookkeeping, []),
    (
        tools,
        [
            {
                **CHAT,
                names.FINISH_REASONS: ["tool_calls"],
                names.TOOLS_OFFERED: ["find", "shell", "web_search"],
                names.TOOLS_CALLED: ["find", "add", "shell", "web_search"],
                names.REASONING_LEVEL: "low",
            }
        ],
    ),
    (refused, [{**CHAT, names.REFUSED: True}]),
    (
        incomplete,
        [
            {
                **CHAT,
                names.FINISH_REASONS: ["content_filter"],
                names.REQUEST_MAX_TOKENS: 16,
                names.ERROR_TYPE: None,
            }
        ],
    ),
    (failed, [{**CHAT, names.FINISH_REASONS: ["error"], names.ERROR_TYPE: "server_error"}]),
    (failed_stream, [{**CHAT, names.STREAM_END: "complete", names.ERROR_TYPE: "rate_limit_exceeded"}]),
    (error_event, [{**CHAT, names.ERROR_TYPE: "server_error", names.RESPONSE_ID: "resp-fake"}]),
    (cut_off, [{**CHAT, names.STREAM_END: "error", names.ERROR_TYPE: "stream_cut_off"}]),
    (
        continued,
        [
            {
                **CHAT,
                names.CONVERSATION_ID: "conv-1",
                names.PROMPT_NAME: "pmpt-1",
                names.PROMPT_VERSION: "2",
                names.OUTPUT_TYPE: "json",
                names.OPENAI_REQUEST_SERVICE_TIER: "flex",
                names.OPENAI_RESPONSE_SERVICE_TIER: "default",
                names.REQUEST_TOP_P: 0.5,
                names.INPUT_MESSAGE_COUNT: 2,
            }
        ],
    ),
]


@integration
@pytest.mark.parametrize(("scenario", "expected"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_service_sees_no_difference(server: FakeOpenAI, scenario: Any, expected: list[Any]) -> None:
    """Values, types, exceptions, log lines and request bodies; and the spans have the facts."""
    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        assert [
            {key: span.attributes.get(key) for key in facts}
            for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


@integration
def test_the_asynchronous_helper(server: FakeOpenAI) -> None:
    """`async with`, and the final response."""

    async def scenario(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
        server.reply(response_stream(f"{CANARY} is not ours at"))
        async with client.responses.stream(model="m", input=CANARY, text_format=Answer) as stream:
            kinds: list[str] = []
            async for event in stream:
                kinds.append(event.type)  # noqa: PERF401 - parsing fails half-way
        return kinds

    def run(mode: Any) -> Any:
        async def guarded(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
            try:
                return await scenario(client, server)
            except pydantic.ValidationError as error:
                return error.error_count()

        return observe_async(mode, guarded, server)

    for outcome in three_ways(run):
        (span,) = outcome.spans
        assert span.attributes[names.OUTPUT_TYPE] == "json"


@integration
def test_content_is_where_it_belongs(server: FakeOpenAI) -> None:
    """Instructions, input, reasoning, tool calls and answer, whole and streamed."""
    output = [reasoning("hm"), function_call("find", '{"q": 1}', "a"), message(CANARY)]

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(response(output=output), response_events(output))
        for stream in (False, True):
            answer: Any = client.responses.create(
                model="m", input=CANARY, instructions="brief", stream=stream
            )
            list(answer)

    spans = observe("content", scenario, server).spans
    assert len(spans) == 2
    for span in spans:
        assert json.loads(str(span.attributes[names.SYSTEM_INSTRUCTIONS])) == [
            {"type": "text", "content": "brief"}
        ]
        (told,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
        assert told == {
            "role": "assistant",
            "finish_reason": "tool_call",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "a", "name": "find", "arguments": {"q": 1}},
                {"type": "text", "content": CANARY},
            ],
        }
