"""Streams that are not read to their end, from one task or several, and what is left of them."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx2
import openai
import pytest

from client_cases import DROPPED_GENERATORS, until_asked
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI, chat_stream
from openai_cases import MODES, Mode, agent, captured_logs, observe, sync_client, three_ways

pytestmark = pytest.mark.integration

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


def open_stream(client: openai.OpenAI, server: FakeOpenAI, **reply: Any) -> Any:
    server.reply(chat_stream("one two three four five", **reply))
    return client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


# --- endings ---------------------------------------------------------------------------------------
def leave_by_break(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    chunks: list[Any] = []
    for chunk in stream:
        chunks.append(chunk)
        break
    del stream
    gc.collect()
    return chunks


def leave_with_block(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    with open_stream(client, server) as stream:
        first = next(stream)
    return first, stream.response.is_closed


def close(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    first = next(stream)
    stream.close()
    stream.close()
    return first, stream.response.is_closed


def close_the_response(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    next(stream)
    stream.response.close()
    return stream.response.is_closed


def leave_the_helper(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    with client.chat.completions.stream(model="m", messages=MESSAGES) as helper:
        return next(helper).type


def raise_in_the_loop(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    try:
        with open_stream(client, server) as stream:
            for _ in stream:
                raise LookupError("the service's own")
    except LookupError as error:
        return str(error)
    return None


def drop(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    first = next(stream)
    del stream
    gc.collect()
    return first


def never_iterate(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    status = stream.response.status_code
    stream.response.stream.close()  # the socket, so that nothing leaks; the stream object knows nothing of it
    del stream
    gc.collect()
    return status


def never_parse_a_raw_stream(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    response = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
    response.http_response.close()
    return response.http_response.is_closed


def leave_a_streaming_response(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five", delay_s=0.01))
    create = client.chat.completions.with_streaming_response.create
    with create(model="m", messages=MESSAGES, stream=True) as response:
        return next(response.iter_lines())


def read_in_another_thread(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    chunks: list[Any] = []
    thread = threading.Thread(target=lambda: chunks.extend(stream))
    thread.start()
    thread.join()
    return chunks


ENDINGS = [
    (leave_by_break, "client_closed"),
    (leave_with_block, "client_closed"),
    (close, "client_closed"),
    (close_the_response, "client_closed"),
    (leave_the_helper, "client_closed"),
    (raise_in_the_loop, "client_closed"),
    (drop, "client_closed"),
    (never_iterate, "client_closed"),
    (never_parse_a_raw_stream, "client_closed"),
    (leave_a_streaming_response, "client_closed"),
    (read_in_another_thread, "complete"),
]


@pytest.mark.parametrize(("scenario", "end"), ENDINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_stream_ends_once_however_it_is_left(server: FakeOpenAI, scenario: Any, end: str) -> None:
    """One span, not an error, with the state it ended in; the service sees no difference."""

    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.STREAM_END] == end
        assert names.ERROR_TYPE not in span.attributes


def test_a_forgotten_stream_is_told_as_abandoned(server: FakeOpenAI) -> None:
    """Neither read nor closed: garbage collection ends the span, and the HTTP library warns as ever."""
    with agent("on") as exporter, sync_client(server) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        stream = open_stream(client, server)
        del stream
        gc.collect()
        assert [span.attributes[names.STREAM_END] for span in exporter.spans] == ["abandoned"]


def test_the_span_of_a_closed_stream_ends_at_once(server: FakeOpenAI) -> None:
    """Not when garbage is collected."""
    with agent("on") as exporter, sync_client(server) as client:
        stream = open_stream(client, server)
        next(stream)
        assert not exporter.spans
        stream.close()
        assert len(exporter.spans) == 1


def test_time_to_first_chunk_waits_for_content(server: FakeOpenAI) -> None:
    """The chunk that only names the role does not stop the clock."""
    with agent("on") as exporter, sync_client(server) as client:
        list(open_stream(client, server, delay_s=0.05))
        attributes = exporter.spans[0].attributes
        assert float(str(attributes[names.TIME_TO_FIRST_CHUNK])) >= 0.1
        assert names.INPUT_TOKENS in attributes


def test_a_service_that_is_slow_to_read_is_told_apart(server: FakeOpenAI) -> None:
    """What it does between chunks is its own time, not the provider's."""
    with agent("on") as exporter, sync_client(server) as client:
        server.reply(chat_stream("word " * 64))
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        create: Any = client.chat.completions.create
        for _ in create(**asked):
            time.sleep(0.002)
    (span,) = exporter.spans
    # Timed at some chunks, told for all of them.
    assert float(str(span.attributes[names.STREAM_CONSUMER])) > 0.06


def test_a_stream_without_usage_has_no_token_counts(server: FakeOpenAI) -> None:
    """Never an estimate."""
    with agent("on") as exporter, sync_client(server) as client:
        list(open_stream(client, server, usage=False))
        attributes = exporter.spans[0].attributes
        assert names.INPUT_TOKENS not in attributes
        assert names.OUTPUT_TOKENS not in attributes
        assert attributes[names.STREAM_CHUNKS] == 7


# --- copies ----------------------------------------------------------------------------------------
def copies(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    stream = open_stream(client, server)
    first = next(stream)
    twin = copy.copy(stream)
    results: list[Any] = [type(twin) is type(stream), first]
    for function in (copy.deepcopy, pickle.dumps):
        for value in (stream, client.chat.completions.create, client):
            try:
                results.append(type(function(value)).__qualname__)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                results.append(type(error).__qualname__)
    response = pickle.loads(pickle.dumps(stream.response))
    results.append((response.status_code, response.is_closed, next(twin), len(list(stream))))
    return results


def test_copies_and_pickles_are_as_without_the_agent(server: FakeOpenAI) -> None:
    """What could be copied still can, what could not fails the same way."""
    for outcome in three_ways(lambda mode: observe(mode, copies, server)):
        assert [span.attributes[names.STREAM_END] for span in outcome.spans] == ["complete"]


# --- asyncio ---------------------------------------------------------------------------------------
async def open_async(client: openai.AsyncOpenAI, server: FakeOpenAI, **reply: Any) -> Any:
    # Where it is slow it is long as well: not over before it is left, however busy the machine is.
    server.reply(chat_stream("one two three four five" + " and more" * (50 if reply else 0), **reply))
    return await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


async def cancel_the_call(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream(delay_s=5))
    call: Any = client.chat.completions.create(model="m", messages=MESSAGES)
    server.clear()
    server.reply(*[chat_stream(delay_s=5)])
    task = asyncio.ensure_future(slow(call))
    await until_asked(server)
    return await cancelled(task)


async def slow(call: Any) -> Any:
    return await call


async def cancelled(task: asyncio.Future[Any]) -> str:
    await asyncio.sleep(0.05)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    return "not cancelled"


async def cancel_mid_stream(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    stream = await open_async(client, server, delay_s=0.04)
    chunks: list[Any] = []

    async def read() -> None:
        async for chunk in stream:
            chunks.append(chunk)  # noqa: PERF401 - cancelled half-way

    return await cancelled(asyncio.ensure_future(read())), stream.response.is_closed


async def close_in_another_task(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    stream = await open_async(client, server)
    first = await asyncio.create_task(anext(stream))
    await asyncio.create_task(stream.close())
    return first, stream.response.is_closed


async def wait_for_each_chunk(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    stream = await open_async(client, server, delay_s=0.03)
    count = 0
    try:
        while True:
            await asyncio.wait_for(anext(stream), 60.0 if count < 2 else 0.001)
            count += 1
    except TimeoutError:
        return count >= 2


async def leave_async_with(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    async with await open_async(client, server) as stream:
        first = await anext(stream)
    return first, stream.response.is_closed


async def break_and_close_generator(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    async def words() -> AsyncGenerator[Any]:
        async for chunk in await open_async(client, server):
            yield chunk

    generator = words()
    first = await anext(generator)
    await asyncio.create_task(generator.aclose())
    gc.collect()
    await asyncio.sleep(0.05)
    return first


async def timeout_scope(client: openai.AsyncOpenAI, server: FakeOpenAI) -> Any:
    stream = await open_async(client, server, delay_s=0.05)
    try:
        async with asyncio.timeout(0.08):
            async for _ in stream:
                pass
    except TimeoutError:
        return "timed out"
    return "done"


ASYNC_ENDINGS = [
    (cancel_mid_stream, "cancelled"),
    (close_in_another_task, "client_closed"),
    (wait_for_each_chunk, "cancelled"),
    (leave_async_with, "client_closed"),
    (break_and_close_generator, "client_closed"),
    (timeout_scope, "cancelled"),
]


def run_async(mode: Mode, scenario: Any, server: FakeOpenAI) -> tuple[Any, list[str], InMemoryExporter]:
    async def run() -> Any:
        async with httpx2.AsyncClient(verify=False) as http:
            client = openai.AsyncOpenAI(
                base_url=server.base_url, api_key="test", http_client=http, max_retries=0
            )
            return await scenario(client, server)

    server.clear()
    with captured_logs() as logs, agent(mode) as exporter:
        value = asyncio.run(run())
        gc.collect()
    return value, logs, exporter


@pytest.mark.parametrize(("scenario", "end"), ASYNC_ENDINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_async_stream_ends_once_and_logs_nothing(server: FakeOpenAI, scenario: Any, end: str) -> None:
    """Cancelled, timed out, closed elsewhere: no "different Context", no lost span, the same result."""
    runs = {mode: run_async(mode, scenario, server) for mode in MODES}
    for mode in ("on", "content"):
        value, logs, exporter = runs[mode]
        assert value == runs["off"][0]
        assert [log for log in logs if not log.startswith(DROPPED_GENERATORS)] == []
        assert [span.attributes[names.STREAM_END] for span in exporter.spans] == [end]


def test_a_cancelled_call_is_cancelled_and_told(server: FakeOpenAI) -> None:
    """A `BaseException`: it goes through, and the span ends with it."""
    runs = {mode: run_async(mode, cancel_the_call, server) for mode in MODES}
    assert [value for value, _, _ in runs.values()] == ["cancelled"] * 3
    (span,) = runs["on"][2].spans
    assert span.attributes[names.ERROR_TYPE] == "asyncio.exceptions.CancelledError"
    assert runs["on"][1] == []


def test_a_half_read_stream_leaves_no_span_current(server: FakeOpenAI) -> None:
    """Calls made while a stream is open are its siblings, not its children."""
    with agent("on") as exporter, sync_client(server) as client:
        stream = open_stream(client, server)
        next(stream)
        client.chat.completions.create(model="m", messages=MESSAGES)
        stream.close()
        assert [span.parent_span_id for span in exporter.spans] == [None, None]
