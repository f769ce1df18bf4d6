"""Whatever the service does with the SDK, it and the provider see the same with and without the agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import NOT_GIVEN, omit

from neuronscope.signals import names
from neuronscope.testing.fake_openai import (
    FakeOpenAI,
    Reply,
    chat,
    chat_events,
    chat_stream,
    completion,
    delta,
    embeddings,
    error,
)
from openai_cases import (
    CANARY,
    COMPLETE,
    MESSAGES,
    STREAMED,
    TOOLS,
    USAGE,
    Answer,
    Scenario,
    facts_like,
    observe,
    three_ways,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


# --- what services do ------------------------------------------------------------------------------
def create(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat(CANARY))
    return client.chat.completions.create(model="m", messages=MESSAGES, temperature=0.0, stop=[CANARY])


def create_from_a_generator(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    messages: Any = (message for message in MESSAGES)
    return client.chat.completions.create(model="m", messages=messages)


def create_with_values_not_given(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    not_given: Any = NOT_GIVEN  # what older versions of the SDK use instead of `omit`
    return client.chat.completions.create(
        model="m", messages=MESSAGES, temperature=not_given, tools=omit, stop=None, top_p=omit
    )


def create_from_an_earlier_answer(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    first = client.chat.completions.create(model="m", messages=MESSAGES)
    history: Any = [*MESSAGES, first.choices[0].message]
    return client.chat.completions.create(model="m", messages=history, tools=TOOLS)


def create_with_extras(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return client.chat.completions.create(
        model="m",
        messages=MESSAGES,
        extra_body={"top_k": 5},
        extra_headers={"x-mine": "1"},
        extra_query={"q": "1"},
    )


def parse(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat('{"city": "Paris"}'))
    answer = client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Answer)
    return answer, answer.choices[0].message.parsed


def parse_cut_off(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": '{"ci'}}
    server.reply(completion([choice]))
    return client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Answer)


def stream(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream(f"{CANARY} is not ours at"))
    result = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, stream_options=USAGE)
    assert isinstance(result, openai.Stream)
    return type(result).__qualname__, sorted(vars(result)), result.response.status_code, list(result)


def stream_in_with(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    with client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as result:
        chunks = [next(result), *result]
    return chunks, result.response.is_closed


def stream_helper(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    with client.chat.completions.stream(model="m", messages=MESSAGES, stream_options=USAGE) as helper:
        events = list(helper)
    return type(helper).__qualname__, [event.type for event in events], helper.get_final_completion()


def stream_of_tool_calls(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    first = {
        "index": 0,
        "id": "call-1",
        "type": "function",
        "function": {"name": "look_up", "arguments": None},
    }
    rest = {"index": 0, "function": {"arguments": f'{{"q": "{CANARY}"}}'}}
    deltas = [
        delta({"tool_calls": [first]}),
        delta({"tool_calls": [rest]}),
        delta({}, finish_reason="tool_calls"),
    ]
    server.reply(chat_events(deltas))
    return list(client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, stream=True))


def raw(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat(CANARY))
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    assert not hasattr(response, "choices")
    parsed = response.parse()
    return (
        type(response).__qualname__,
        sorted(vars(response)),
        response.headers["x-request-id"],
        response.retries_taken,
        response.text,
        parsed,
        response.parse() is parsed,
    )


def raw_never_parsed(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES).status_code


def raw_parsed_to_another_type(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    return response.parse(to=dict), response.parse()


def raw_stream_parsed(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream(f"{CANARY} is not ours at"))
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
    chunks = response.parse()
    assert isinstance(chunks, openai.Stream)
    return response.headers["x-request-id"], sorted(vars(response)), list(chunks)


def raw_stream_bytes(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream(f"{CANARY} is not ours at"))
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
    return b"".join(response.http_response.iter_bytes())


def raw_stream_lines(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
    return list(response.http_response.iter_lines())


def raw_stream_never_read(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
    status = response.status_code
    response.http_response.close()
    return status


def streaming_parse(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return type(response).__qualname__, response.headers["x-request-id"], response.parse()


def streaming_bytes(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return b"".join(response.iter_bytes())


def streaming_lines(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return list(response.iter_lines())


def streaming_json(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return response.json(), response.text()


def streaming_never_read(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
        return response.status_code, response.is_closed


def streaming_stream_parsed(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    create_stream = client.chat.completions.with_streaming_response.create
    with create_stream(model="m", messages=MESSAGES, stream=True) as response:
        return list(response.parse())


def streaming_stream_lines(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    create_stream = client.chat.completions.with_streaming_response.create
    with create_stream(model="m", messages=MESSAGES, stream=True) as response:
        return list(response.iter_lines())


def cast_to_http_response(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    body: Any = {"model": "m", "messages": MESSAGES}
    response = client.post("/chat/completions", body=body, cast_to=httpx2.Response)
    return response.json(), sorted(vars(response))


def embed(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return client.embeddings.create(model="e", input=[CANARY, "b"])


def embed_floats(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return client.embeddings.create(model="e", input="a", encoding_format="float", dimensions=3)


def embed_tokens(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return client.embeddings.create(model="e", input=[1, 2, 3])


def embed_base64(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(embeddings([[0.5, 1.0, 2.0]], base64_encoded=True))
    return client.embeddings.create(model="e", input=["a"], encoding_format="base64")


def embed_raw(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    response = client.embeddings.with_raw_response.create(model="e", input=["a", "b"])
    return response.headers["x-request-id"], response.parse()


def no_model_call(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return list(client.models.list())


def with_options(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    return client.with_options(timeout=7, max_retries=1).chat.completions.create(model="m", messages=MESSAGES)


def unauthorised(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(error(401, CANARY))
    return client.chat.completions.create(model="m", messages=MESSAGES)


def overloaded_then_fine(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(error(429, retry_after_s=0.01), error(500, retry_after_s=0.01))
    return client.chat.completions.create(model="m", messages=MESSAGES)


def overloaded(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(*[error(429, CANARY, retry_after_s=0.01)] * 3)
    return client.chat.completions.create(model="m", messages=MESSAGES)


def no_answer(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(Reply(body={}, cut_after=0))
    return client.with_options(max_retries=0).chat.completions.create(model="m", messages=MESSAGES)


def too_slow(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(Reply(body={}, delay_s=5))
    patience = httpx2.Timeout(60, read=0.3)  # a busy machine may be slower to connect
    return client.with_options(max_retries=0, timeout=patience).chat.completions.create(
        model="m", messages=MESSAGES
    )


def stream_cut_off(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five", cut_after=3))
    chunks: list[Any] = []
    try:
        for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
            chunks.append(chunk)  # noqa: PERF402 - what came before the cut counts
    except openai.OpenAIError as cut:
        return chunks, type(cut).__qualname__
    return chunks


def stream_that_reports_an_error(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(Reply(events=[{"error": {"message": CANARY, "type": "server_error"}}]))
    return list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def azure_first_chunk(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    filtered: Any = {
        "id": "",
        "model": "",
        "created": 0,
        "object": "",
        "choices": [],
        "prompt_filter_results": [],
    }
    rest = chat_stream("one two three four five").events or ()
    server.reply(Reply(events=[filtered, *rest]))
    return list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def not_json(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(Reply(body=b"<html>busy</html>", headers={"content-type": "text/html"}))
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    return response.text


CASES: list[tuple[Scenario, list[dict[str, Any]]]] = [
    (create, [COMPLETE]),
    (create_from_a_generator, [COMPLETE]),
    (create_with_values_not_given, [COMPLETE]),
    (create_from_an_earlier_answer, [COMPLETE, COMPLETE]),
    (create_with_extras, [COMPLETE]),
    (parse, [{**COMPLETE, names.OUTPUT_TYPE: "json"}]),
    (
        parse_cut_off,
        [
            {
                names.INPUT_TOKENS: 11,
                names.OUTPUT_TOKENS: 5,
                names.FINISH_REASONS: ["length"],
                names.ERROR_TYPE: "openai.LengthFinishReasonError",
            }
        ],
    ),
    (stream, [STREAMED]),
    (stream_in_with, [STREAMED]),
    (stream_helper, [STREAMED]),
    (stream_of_tool_calls, [{names.FINISH_REASONS: ["tool_calls"], names.STREAM_END: "complete"}]),
    (raw, [COMPLETE]),
    (raw_never_parsed, [COMPLETE]),
    (raw_parsed_to_another_type, [COMPLETE]),
    (raw_stream_parsed, [STREAMED]),
    (raw_stream_bytes, [STREAMED]),
    (raw_stream_lines, [STREAMED]),
    (raw_stream_never_read, [{names.STREAM_END: "client_closed", names.STREAM_CHUNKS: 0}]),
    (streaming_parse, [COMPLETE]),
    (streaming_bytes, [COMPLETE]),
    (streaming_lines, [COMPLETE]),
    (streaming_json, [COMPLETE]),
    (streaming_never_read, [{names.REQUEST_MODEL: "m"}]),
    (streaming_stream_parsed, [STREAMED]),
    (streaming_stream_lines, [STREAMED]),
    (cast_to_http_response, [COMPLETE]),
    (embed, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 3}]),
    (
        embed_floats,
        [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 1, names.REQUEST_ENCODING_FORMATS: ["float"]}],
    ),
    (embed_tokens, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 1}]),
    (embed_base64, [{names.EMBEDDING_DIMENSIONS: 3, names.REQUEST_ENCODING_FORMATS: ["base64"]}]),
    (embed_raw, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_TOKENS: 3}]),
    (no_model_call, []),
    (with_options, [COMPLETE]),
    (unauthorised, [{names.ERROR_TYPE: "openai.AuthenticationError", names.HTTP_RESPONSE_STATUS_CODE: 401}]),
    (overloaded_then_fine, [COMPLETE]),
    (overloaded, [{names.ERROR_TYPE: "openai.RateLimitError", names.HTTP_RESPONSE_STATUS_CODE: 429}]),
    (no_answer, [{names.ERROR_TYPE: "openai.APIConnectionError"}]),
    (too_slow, [{names.ERROR_TYPE: "openai.APITimeoutError"}]),
    (
        stream_cut_off,
        [{names.ERROR_TYPE: "openai.APIConnectionError", names.STREAM_END: "error", names.STREAM_CHUNKS: 3}],
    ),
    (stream_that_reports_an_error, [{names.ERROR_TYPE: "openai.APIError", names.STREAM_END: "error"}]),
    (azure_first_chunk, [{**COMPLETE, names.RESPONSE_ID: "chatcmpl-fake", names.STREAM_CHUNKS: 9}]),
    (not_json, [{names.REQUEST_MODEL: "m"}]),
]


@pytest.mark.parametrize(("scenario", "expected"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_service_sees_no_difference(server: FakeOpenAI, scenario: Any, expected: list[Any]) -> None:
    """Values, types, exceptions, log lines and request bodies; and the spans have the facts."""
    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == (expected)


def test_retries_are_one_span(server: FakeOpenAI) -> None:
    """Three requests on the wire with one trace header, one span."""
    outcome = observe("on", overloaded_then_fine, server)
    assert len(outcome.requests) == 3
    assert len(outcome.spans) == 1
    assert len({request.headers["traceparent"][0] for request in server.requests}) == 1
