"""The asynchronous client: it and the provider see the same with and without the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, chat, chat_stream, error
from openai_cases import (
    CANARY,
    COMPLETE,
    MESSAGES,
    STREAMED,
    AsyncScenario,
    facts_like,
    observe_async,
    three_ways,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


async def acreate(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat(CANARY))
    return await client.chat.completions.create(model="m", messages=MESSAGES)


async def acreate_from_a_generator(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    messages: Any = (message for message in MESSAGES)
    return await client.chat.completions.create(model="m", messages=messages)


async def astream(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream(f"{CANARY} is not ours at"))
    result = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert isinstance(result, openai.AsyncStream)
    return type(result).__qualname__, sorted(vars(result)), [chunk async for chunk in result]


async def astream_in_with(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    async with await client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as result:
        chunks = [await anext(result)] + [chunk async for chunk in result]
    return chunks, result.response.is_closed


async def astream_helper(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    async with client.chat.completions.stream(model="m", messages=MESSAGES) as helper:
        events = [event.type async for event in helper]
    return events, await helper.get_final_completion()


async def araw(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    response = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    return type(response).__qualname__, response.headers["x-request-id"], response.parse()


async def araw_stream(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    response = await client.chat.completions.with_raw_response.create(
        model="m", messages=MESSAGES, stream=True
    )
    chunks: AsyncIterator[ChatCompletionChunk] = response.parse()
    return response.headers["x-request-id"], [chunk async for chunk in chunks]


async def araw_stream_bytes(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    response = await client.chat.completions.with_raw_response.create(
        model="m", messages=MESSAGES, stream=True
    )
    return b"".join([data async for data in response.http_response.aiter_bytes()])


async def astreaming_parse(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(
        model="m", messages=MESSAGES
    ) as response:
        completion: ChatCompletion = await response.parse()
        return type(response).__qualname__, response.headers["x-request-id"], completion


async def astreaming_lines(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(
        model="m", messages=MESSAGES
    ) as response:
        return [line async for line in response.iter_lines()]


async def astreaming_never_read(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    async with client.chat.completions.with_streaming_response.create(
        model="m", messages=MESSAGES
    ) as response:
        return response.status_code


async def aembed(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    return await client.embeddings.create(model="e", input=[CANARY, "b"])


async def aoverloaded(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(error(429, retry_after_s=0.01), error(401, CANARY))
    return await client.chat.completions.create(model="m", messages=MESSAGES)


async def astream_cut_off(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five", cut_after=3))
    return [
        chunk
        async for chunk in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    ]


ASYNC_CASES: list[tuple[AsyncScenario, list[dict[str, Any]]]] = [
    (acreate, [COMPLETE]),
    (acreate_from_a_generator, [COMPLETE]),
    (astream, [STREAMED]),
    (astream_in_with, [STREAMED]),
    (astream_helper, [STREAMED]),
    (araw, [COMPLETE]),
    (araw_stream, [STREAMED]),
    (araw_stream_bytes, [STREAMED]),
    (astreaming_parse, [COMPLETE]),
    (astreaming_lines, [COMPLETE]),
    (astreaming_never_read, [{names.REQUEST_MODEL: "m"}]),
    (aembed, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2}]),
    (aoverloaded, [{names.ERROR_TYPE: "openai.AuthenticationError", names.HTTP_RESPONSE_STATUS_CODE: 401}]),
    (astream_cut_off, [{names.ERROR_TYPE: "openai.APIConnectionError", names.STREAM_END: "error"}]),
]


@pytest.mark.parametrize(
    ("scenario", "expected"), ASYNC_CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_asynchronous_service_sees_no_difference(
    server: FakeOpenAI, scenario: Any, expected: list[Any]
) -> None:
    """The same for the asynchronous client."""
    for outcome in three_ways(lambda mode: observe_async(mode, scenario, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == (expected)
