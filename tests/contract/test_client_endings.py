"""However a stream is left, it ends once, and says how: for every LLM client."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import clients
from client_cases import WORDS, ClientCase, agent, observe, observe_async, three_ways, until_asked
from neuronscope.signals import names
from neuronscope.testing.fake_provider import FakeProvider, Reply

pytestmark = pytest.mark.integration

each_client = pytest.mark.parametrize("case", clients.cases(), ids=lambda case: case.label)
# Those, and the clients that an SDK has for other platforms.
each_way_in = pytest.mark.parametrize(
    "case", [*clients.cases(), *clients.variants()], ids=lambda case: case.label
)


@pytest.fixture
def server(case: ClientCase) -> Iterator[FakeProvider]:
    """The case's provider."""
    with case.server() as fake:
        yield fake


def close(stream: Any) -> None:
    stream.close()


def break_and_drop(case: ClientCase, client: Any) -> Any:
    stream = case.stream(client)
    chunks: list[Any] = []
    for chunk in stream:
        chunks.append(chunk)
        break
    del stream
    gc.collect()
    return chunks


def close_twice(case: ClientCase, client: Any) -> Any:
    stream = case.stream(client)
    first = next(iter(stream))
    close(stream)
    close(stream)
    return first


def raise_in_the_loop(case: ClientCase, client: Any) -> Any:
    stream = case.stream(client)
    try:
        for _ in stream:
            raise LookupError("the service's own")
    except LookupError as error:
        close(stream)
        return str(error)


def read_in_another_thread(case: ClientCase, client: Any) -> Any:
    stream = case.stream(client)
    chunks: list[Any] = []
    thread = threading.Thread(target=lambda: chunks.extend(stream))
    thread.start()
    thread.join()
    return chunks


ENDINGS = (
    (break_and_drop, "client_closed"),
    (close_twice, "client_closed"),
    (raise_in_the_loop, "client_closed"),
    (read_in_another_thread, "complete"),
)


# urllib3 leaves the connection of a dropped stream to Python, agent or not.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@each_client
@pytest.mark.parametrize(("ending", "end"), ENDINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_stream_ends_once_however_it_is_left(
    case: ClientCase, server: FakeProvider, ending: Any, end: str
) -> None:
    """One span, not an error, with the state it ended in; the service sees no difference."""

    def scenario(client: Any, server: FakeProvider) -> Any:
        server.reply(case.stream_reply(WORDS))
        return ending(case, client)

    for outcome in three_ways(lambda mode: observe(case, mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.STREAM_END] == end
        assert names.ERROR_TYPE not in span.attributes


async def aclose(stream: Any) -> None:
    closing = stream.aclose() if hasattr(stream, "aclose") else stream.close()
    if closing is not None:
        await closing


async def cancel_mid_stream(case: ClientCase, client: Any) -> Any:
    stream = await case.astream(client)
    chunks: list[Any] = []

    async def read() -> None:
        async for chunk in stream:
            chunks.append(chunk)  # noqa: PERF401 - cancelled half-way

    task = asyncio.ensure_future(read())
    while not chunks and not task.done():  # noqa: ASYNC110 - the stream is the client's: nobody else tells of its chunks
        await asyncio.sleep(0.005)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled"
    return "not cancelled"


async def close_in_another_task(case: ClientCase, client: Any) -> Any:
    stream = await case.astream(client)

    async def first() -> Any:
        return await anext(aiter(stream))

    chunk = await asyncio.create_task(first())
    await asyncio.create_task(aclose(stream))
    return chunk


async def timeout_scope(case: ClientCase, client: Any) -> Any:
    stream = await case.astream(client)
    try:
        async with asyncio.timeout(0.1):
            async for _ in stream:
                pass
    except TimeoutError:
        return "timed out"
    return "done"


ASYNC_ENDINGS = (
    (cancel_mid_stream, "cancelled"),
    (close_in_another_task, "client_closed"),
    (timeout_scope, "cancelled"),
)


@each_client
@pytest.mark.parametrize(("ending", "end"), ASYNC_ENDINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_async_stream_ends_once_and_logs_nothing(
    case: ClientCase, server: FakeProvider, ending: Any, end: str
) -> None:
    """Cancelled, timed out, closed in another task: no lost span, no word about contexts."""

    async def scenario(client: Any, server: FakeProvider) -> Any:
        # So long that it is not over before it is left, however busy the machine is.
        server.reply(case.stream_reply(" ".join([WORDS] * 8), delay_s=0.06))
        return await ending(case, client)

    for outcome in three_ways(lambda mode: observe_async(case, mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.STREAM_END] == end


@each_way_in
def test_a_cancelled_call_is_cancelled_and_told(case: ClientCase, server: FakeProvider) -> None:
    """A `BaseException`: it goes through, and the span ends with it."""

    async def scenario(client: Any, server: FakeProvider) -> Any:
        server.reply(Reply(body={}, delay_s=3))
        task = asyncio.ensure_future(case.achat(client))
        await until_asked(server)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "not cancelled"

    for outcome in three_ways(lambda mode: observe_async(case, mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.ERROR_TYPE] == "asyncio.exceptions.CancelledError"


@each_way_in
def test_the_span_of_a_closed_stream_ends_at_once(case: ClientCase, server: FakeProvider) -> None:
    """Not when garbage is collected; and what is called meanwhile is its sibling, not its child."""
    with agent("on", case.name) as exporter, case.sync(server) as client:
        server.reply(case.stream_reply(WORDS), case.reply("meanwhile"))
        stream = case.stream(client)
        next(iter(stream))
        case.chat(client)
        assert len(exporter.spans) == 1
        close(stream)
        assert len(exporter.spans) == 2
        assert [span.parent_span_id for span in exporter.spans] == [None, None]
