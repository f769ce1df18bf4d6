"""What only the Anthropic adapter has: helpers, raw responses, streams of its own.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from client_anthropic import ASKED, CASE, COMPLETE, MESSAGES, STREAMED, async_client, sync_client
from client_cases import CANARY, agent, facts_like, observe, observe_async, plain, three_ways
from neuronscope.signals import names
from neuronscope.testing.fake_anthropic import (
    FakeAnthropic,
    Reply,
    error,
    message_stream,
    stream_of,
)
from neuronscope.testing.fake_provider import FakeProvider

integration = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAnthropic]:
    """One provider for the module."""
    with FakeAnthropic() as fake:
        yield fake


@pytest.fixture(autouse=True)
def forget_requests(server: FakeAnthropic) -> None:
    """Each test sees its own requests."""
    server.clear()


# --- every way to call ------------------------------------------------------------------------------
def stream_helper(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        kinds = [event.type for event in helper]
    return type(helper).__qualname__, kinds, helper.get_final_message(), helper.request_id


def stream_helper_text(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        return list(helper.text_stream), helper.get_final_text()


def stream_helper_final(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        return helper.get_final_message()


def beta_create(client: Any, server: FakeProvider) -> Any:
    return client.beta.messages.create(**ASKED, betas=["some-beta"])


def beta_stream(client: Any, server: FakeProvider) -> Any:
    with client.beta.messages.stream(**ASKED) as helper:
        return [event.type for event in helper], helper.get_final_message()


def raw(client: Any, server: FakeProvider) -> Any:
    response = client.messages.with_raw_response.create(**ASKED)
    assert not hasattr(response, "content_blocks")
    parsed = response.parse()
    return type(response).__qualname__, response.headers["x-request-id"], parsed, response.parse() is parsed


def raw_never_parsed(client: Any, server: FakeProvider) -> Any:
    return client.messages.with_raw_response.create(**ASKED).status_code


def raw_stream(client: Any, server: FakeProvider) -> Any:
    response = client.messages.with_raw_response.create(**ASKED, stream=True)
    return response.headers["x-request-id"], list(response.parse())


def raw_stream_bytes(client: Any, server: FakeProvider) -> Any:
    response = client.messages.with_raw_response.create(**ASKED, stream=True)
    return b"".join(response.http_response.iter_bytes())


def streaming_parse(client: Any, server: FakeProvider) -> Any:
    with client.messages.with_streaming_response.create(**ASKED) as response:
        return type(response).__qualname__, response.headers["x-request-id"], response.parse()


def streaming_bytes(client: Any, server: FakeProvider) -> Any:
    with client.messages.with_streaming_response.create(**ASKED) as response:
        return b"".join(response.iter_bytes())


def streaming_lines(client: Any, server: FakeProvider) -> Any:
    with client.messages.with_streaming_response.create(**ASKED, stream=True) as response:
        return list(response.iter_lines())


def messages_from_a_generator(client: Any, server: FakeProvider) -> Any:
    messages: Any = (message for message in MESSAGES)
    return client.messages.create(**{**ASKED, "messages": messages})


def retried(client: Any, server: FakeProvider) -> Any:
    server.reply(error(429, retry_after_s=0.01), error(529, retry_after_s=0.01))
    return client.with_options(max_retries=2).messages.create(**ASKED)


def no_model_call(client: Any, server: FakeProvider) -> Any:
    counted = client.messages.count_tokens(model="m", messages=MESSAGES)
    return counted, list(client.models.list())


def helper_left_early(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        return next(iter(helper)).type


def error_event(client: Any, server: FakeProvider) -> Any:
    events = [*(message_stream("one").events or ())[:4]]
    failure = {"type": "error", "error": {"type": "overloaded_error", "message": CANARY}}
    server.reply(Reply(events=[*events, failure]))
    chunks: list[Any] = []
    try:
        for event in client.messages.create(**ASKED, stream=True):
            chunks.append(event)  # noqa: PERF402 - what came before the error counts
    except anthropic.APIStatusError as caught:
        return chunks, plain(caught)
    return chunks


def cut_before_its_end(client: Any, server: FakeProvider) -> Any:
    server.reply(stream_of((message_stream("one two").events or ())[2:-2], stop_reason=None))
    return list(client.messages.create(**ASKED, stream=True))


PLAIN_GENERATOR = {**COMPLETE, names.INPUT_MESSAGE_COUNT: None}
PARTIAL = {
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: None,
    names.STREAM_END: "error",
}
WAYS: list[tuple[Any, list[dict[str, Any]]]] = [
    (stream_helper, [STREAMED]),
    (stream_helper_text, [STREAMED]),
    (stream_helper_final, [STREAMED]),
    (beta_create, [COMPLETE]),
    (beta_stream, [STREAMED]),
    (raw, [COMPLETE]),
    (raw_never_parsed, [COMPLETE]),
    (raw_stream, [{**STREAMED, names.STREAM_CHUNKS: 11}]),  # bytes: the ping counts
    (raw_stream_bytes, [{**STREAMED, names.STREAM_CHUNKS: 11}]),
    (streaming_parse, [COMPLETE]),
    (streaming_bytes, [COMPLETE]),
    (streaming_lines, [{**STREAMED, names.STREAM_CHUNKS: 11}]),
    (messages_from_a_generator, [PLAIN_GENERATOR]),
    (retried, [COMPLETE]),
    (no_model_call, []),
    (
        helper_left_early,
        [{names.STREAM_END: "client_closed", names.ERROR_TYPE: None, names.INPUT_TOKENS: 11}],
    ),
    (error_event, [PARTIAL]),
    (cut_before_its_end, [{**PARTIAL, names.ERROR_TYPE: "stream_cut_off"}]),
]


@integration
@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_call_is_one_span(server: FakeAnthropic, way: Any, expected: list[Any]) -> None:
    """Helpers, beta paths, raw and streaming responses; the service sees no difference."""
    for outcome in three_ways(lambda mode: observe(CASE, mode, way, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


async def astream_helper(client: Any, server: FakeProvider) -> Any:
    async with client.messages.stream(**ASKED) as helper:
        kinds = [event.type async for event in helper]
    return type(helper).__qualname__, kinds, await helper.get_final_message()


async def astream_helper_text(client: Any, server: FakeProvider) -> Any:
    async with client.messages.stream(**ASKED) as helper:
        return [text async for text in helper.text_stream]


async def abeta(client: Any, server: FakeProvider) -> Any:
    return await client.beta.messages.create(**ASKED)


async def araw(client: Any, server: FakeProvider) -> Any:
    response: Any = await client.messages.with_raw_response.create(**ASKED)
    parsed = response.parse()
    return response.headers["x-request-id"], await parsed if asyncio.iscoroutine(parsed) else parsed


async def astreaming(client: Any, server: FakeProvider) -> Any:
    async with client.messages.with_streaming_response.create(**ASKED) as response:
        return await response.parse()


@integration
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (astream_helper, STREAMED),
        (astream_helper_text, STREAMED),
        (abeta, COMPLETE),
        (araw, COMPLETE),
        (astreaming, COMPLETE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_asynchronous_way_too(server: FakeAnthropic, way: Any, expected: dict[str, Any]) -> None:
    """The stream manager is not awaited, its helpers are the SDK's."""
    for outcome in three_ways(lambda mode: observe_async(CASE, mode, way, server)):
        (span,) = outcome.spans
        assert facts_like(span.attributes, expected) == expected


@integration
def test_streams_are_the_sdks_own(server: FakeAnthropic) -> None:
    """`isinstance` holds, and the response below is at hand."""
    with agent("on", "anthropic"), sync_client(server) as client:
        with client.messages.create(**ASKED, stream=True) as stream:
            assert issubclass(type(stream), anthropic.Stream)
            assert stream.response.status_code == 200
            next(stream)
        assert stream.response.is_closed

    async def run() -> None:
        async with async_client(server) as client:
            stream: Any = await client.messages.create(**ASKED, stream=True)
            assert issubclass(type(stream), anthropic.AsyncStream)
            await stream.close()
            assert stream.response.is_closed

    with agent("on", "anthropic"):
        asyncio.run(run())
