"""When the chunks of a stream come: the metrics of their times, in all variants, with a clock that tests set.

`gen_ai.client.operation.time_to_first_chunk` ends with the first chunk that has content;
`gen_ai.client.operation.time_per_output_chunk` has one value for each chunk after the first, from when the
service got one until it got the next.  What the service took meanwhile is in there, as the conventions have
it, and also apart, on the span.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import clients
import neuronscope as ns
from client_cases import ClientCase, agent
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.signals.names import Metric
from neuronscope.signals.records import HistogramValue
from neuronscope.testing import FixedClock, InMemoryExporter
from neuronscope.testing.fake_anthropic import message_stream
from neuronscope.testing.fake_openai import chat_stream
from neuronscope.testing.fake_provider import NAMED_EVENTS, SERVER_SENT_DONE, Framing, Reply
from neuronscope.testing.fake_responses import response_stream

WORDS = "one two three four five"
SENT_S, HELD_S = 0.25, 0.0625  # binary fractions, so that their sums are exact
MESSAGES: Any = [{"role": "user", "content": "hi"}]
CLAUDE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": MESSAGES}


class TimedBody(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Events that come at their time by the clock, each in a piece of its own; once, like a socket's."""

    def __init__(self, clock: FixedClock, reply: Reply, framing: Framing) -> None:
        self._clock = clock
        self._pieces = deque(framing.encode(event) for event in reply.events or ())
        self._end = framing.end.encode()

    def __iter__(self) -> Iterator[bytes]:
        while self._pieces:
            self._clock.advance(SENT_S)
            yield self._pieces.popleft()
        end, self._end = self._end, b""
        yield end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            await asyncio.sleep(0)
            yield piece


@dataclass(frozen=True)
class Variant:
    """One way to stream.

    Attributes:
        library: the adapter's name.
        reply: what the provider sends.
        framing: how.
        read: ``(http client, hold)``: streams, and holds each chunk.
        aread: its asynchronous twin.
        first: which event is the first with content.
    """

    library: str
    reply: Callable[[str], Reply]
    framing: Framing
    read: Callable[[Any, Callable[[], None]], None]
    aread: Callable[[Any, Callable[[], None]], Any]
    first: int


def gpt(http: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key="x", http_client=http)


def agpt(http: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="x", http_client=http)


def claude(http: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="x", http_client=http)


def aclaude(http: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key="x", http_client=http)


def opened(make: Callable[[Any], Any], open_stream: Callable[[Any], Any]) -> Callable[..., None]:
    """Reads what a method returns."""

    def read(http: Any, hold: Callable[[], None]) -> None:
        for _ in open_stream(make(http)):
            hold()

    return read


def aopened(make: Callable[[Any], Any], open_stream: Callable[[Any], Any]) -> Callable[..., Any]:
    """Its asynchronous twin."""

    async def read(http: Any, hold: Callable[[], None]) -> None:
        async for _ in await open_stream(make(http)):
            hold()

    return read


def entered(
    make: Callable[[Any], Any], open_stream: Callable[[Any], Any], chunk: str | None = None
) -> Callable[..., None]:
    """Reads what a helper yields; events that it derives from a chunk come with it, and are no chunks."""

    def read(http: Any, hold: Callable[[], None]) -> None:
        with open_stream(make(http)) as stream:
            for event in stream:
                if chunk is None or event.type == chunk:
                    hold()

    return read


def aentered(
    make: Callable[[Any], Any], open_stream: Callable[[Any], Any], chunk: str | None = None
) -> Callable[..., Any]:
    """Its asynchronous twin."""

    async def read(http: Any, hold: Callable[[], None]) -> None:
        async with open_stream(make(http)) as stream:
            async for event in stream:
                if chunk is None or event.type == chunk:
                    hold()

    return read


def create(client: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


def helper(client: Any) -> Any:
    return client.chat.completions.stream(model="m", messages=MESSAGES)


def respond(client: Any) -> Any:
    return client.responses.create(model="m", input="hi", stream=True)


def say(client: Any) -> Any:
    return client.messages.create(**CLAUDE, stream=True)


def say_with_helper(client: Any) -> Any:
    return client.messages.stream(**CLAUDE)


def steady(text: str) -> Reply:
    """Without the ping, which the SDK keeps to itself."""
    reply = message_stream(text)
    return replace(reply, events=[event for event in reply.events or () if event["type"] != "ping"])


VARIANTS = {
    "openai create": Variant(
        "openai", chat_stream, SERVER_SENT_DONE, opened(gpt, create), aopened(agpt, create), 2
    ),
    "openai helper": Variant(
        "openai",
        chat_stream,
        SERVER_SENT_DONE,
        entered(gpt, helper, "chunk"),
        aentered(agpt, helper, "chunk"),
        2,
    ),
    "openai responses": Variant(
        "openai", response_stream, NAMED_EVENTS, opened(gpt, respond), aopened(agpt, respond), 5
    ),
    "anthropic create": Variant(
        "anthropic", steady, NAMED_EVENTS, opened(claude, say), aopened(aclaude, say), 3
    ),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())


def histogram(metric: Metric) -> HistogramValue:
    """The one series of a metric."""
    (value,) = (
        point.value
        for family in ENGINE.metrics.collect().families
        if family.metric is metric
        for point in family.points
    )
    assert isinstance(value, HistogramValue)
    return value


def run(variant: Variant, held_s: float, *, aio: bool) -> tuple[Any, InMemoryExporter]:
    """Stream once by a clock that only the provider and the service move."""
    exporter = InMemoryExporter()
    reply = variant.reply(WORDS)
    with ns.testing.fixed(tick_s=0) as clock, ns.Platform(exporters=[exporter], deferred=False):
        ns.instrument(variant.library)

        def answer(_: httpx2.Request) -> httpx2.Response:
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(200, stream=TimedBody(clock, reply, variant.framing), headers=headers)

        def hold() -> None:
            clock.advance(held_s)

        async def use() -> None:
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
                await variant.aread(http, hold)

        if aio:
            asyncio.run(use())
        else:
            with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
                variant.read(http, hold)
        return (histogram(names.PER_CHUNK), histogram(names.FIRST_CHUNK)), exporter


def in_bucket(metric: Metric, value: float, count: int) -> list[int]:
    """The counts of a histogram that has `count` times this value."""
    counts = [0] * (len(metric.buckets) + 1)
    counts[next(i for i, bound in enumerate(metric.buckets) if value <= bound)] = count
    return counts


@pytest.mark.parametrize("aio", [False, True], ids=["sync", "async"])
@each_variant
def test_each_gap_is_one_value_of_the_time_per_chunk(variant: Variant, aio: bool) -> None:
    """A provider that sends an event each quarter of a second, and a service that does not hold them."""
    (gaps, first), exporter = run(variant, 0.0, aio=aio)
    (span,) = exporter.spans
    chunks = int(str(span.attributes[names.STREAM_CHUNKS]))
    assert chunks == len(variant.reply(WORDS).events or ())
    assert (gaps.count, gaps.sum) == (chunks - 1, SENT_S * (chunks - 1))
    assert list(gaps.counts) == in_bucket(names.PER_CHUNK, SENT_S, chunks - 1)
    assert (first.count, first.sum) == (1, variant.first * SENT_S)
    assert span.attributes[names.TIME_TO_FIRST_CHUNK] == variant.first * SENT_S
    assert span.attributes[names.STREAM_CONSUMER] == 0


@pytest.mark.parametrize("aio", [False, True], ids=["sync", "async"])
@each_variant
def test_what_the_service_holds_up_is_told_apart(variant: Variant, aio: bool) -> None:
    """It is within the gaps, the span says how much of them it is, and the first chunk is none the later."""
    (gaps, first), exporter = run(variant, HELD_S, aio=aio)
    (span,) = exporter.spans
    chunks = gaps.count + 1
    stalled = float(str(span.attributes[names.STREAM_CONSUMER]))
    assert stalled == HELD_S * chunks
    assert gaps.sum == (SENT_S + HELD_S) * (chunks - 1)
    before = variant.first - 1  # chunks without content, which the service has held as well
    assert first.sum == variant.first * SENT_S + before * HELD_S
    assert span.duration_ms == (SENT_S + HELD_S) * chunks * 1000


@pytest.mark.parametrize("aio", [False, True], ids=["sync", "async"])
def test_a_helper_that_derives_events_counts_chunks(aio: bool) -> None:
    """Anthropic's `messages.stream` makes events of its own from some of the provider's."""
    variant = Variant(
        "anthropic",
        steady,
        NAMED_EVENTS,
        entered(claude, say_with_helper),
        aentered(aclaude, say_with_helper),
        3,
    )
    (gaps, first), exporter = run(variant, 0.0, aio=aio)
    (span,) = exporter.spans
    chunks = int(str(span.attributes[names.STREAM_CHUNKS]))
    assert (gaps.count, gaps.sum) == (chunks - 1, SENT_S * (chunks - 1))
    assert first.sum == variant.first * SENT_S
    (stalled, _), exporter = run(variant, HELD_S, aio=aio)
    assert float(str(exporter.spans[0].attributes[names.STREAM_CONSUMER])) >= HELD_S * chunks
    assert stalled.sum > gaps.sum


DELAY_S = 0.02


@pytest.mark.integration
@pytest.mark.parametrize("case", clients.cases(), ids=lambda case: case.name)
def test_the_real_clock_agrees_with_the_providers_pace(case: ClientCase) -> None:
    """Over a socket, as services run: no chunk is told to have come before the provider had sent it."""
    with case.server() as server, case.sync(server) as client, agent("on", case.name) as exporter:
        server.reply(case.stream_reply(WORDS, delay_s=DELAY_S))
        for _ in case.stream(client):
            pass
        gaps, first = histogram(names.PER_CHUNK), histogram(names.FIRST_CHUNK)
    (span,) = exporter.spans
    chunks = int(str(span.attributes[names.STREAM_CHUNKS]))
    assert gaps.count == chunks - 1
    assert first.sum >= DELAY_S
    assert first.sum + gaps.sum >= DELAY_S * chunks
    assert gaps.sum + DELAY_S <= span.duration_ms / 1000
