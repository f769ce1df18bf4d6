"""What OpenAI's headers tell: limits, ids, tries; and answers that the SDK does not like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, Reply, chat, chat_events, completion, delta, error
from openai_cases import CANARY, agent, observe, sync_client, three_ways

pytestmark = pytest.mark.integration
MESSAGES: Any = [{"role": "user", "content": CANARY}]
LIMITS = {
    "x-ratelimit-limit-requests": "500",
    "x-ratelimit-remaining-requests": "499",
    "x-ratelimit-limit-tokens": "30000",
    "x-ratelimit-remaining-tokens": "29990",
    "x-ratelimit-reset-tokens": "6m0s",
}
LEFT = {
    names.REQUEST_ID: "req-fake",
    names.RATE_LIMIT_REQUESTS: 500,
    names.RATE_LIMIT_REQUESTS_LEFT: 499,
    names.RATE_LIMIT_TOKENS: 30000,
    names.RATE_LIMIT_TOKENS_LEFT: 29990,
}


class Answer(pydantic.BaseModel):
    """A structured output."""

    city: str


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


def with_headers(reply: Reply, **more: str) -> Reply:
    return Reply(
        status=reply.status, body=reply.body, events=reply.events, headers={**reply.headers, **LIMITS, **more}
    )


def chat_with_limits(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(with_headers(chat(CANARY)))
    return client.chat.completions.create(model="m", messages=MESSAGES)


def stream_with_limits(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(with_headers(chat_events([delta({"content": CANARY})])))
    return list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def raw_with_limits(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(with_headers(chat(CANARY)))
    return client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES).parse()


def refused_with_limits(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(with_headers(error(400, CANARY)))
    return client.chat.completions.create(model="m", messages=MESSAGES)


def second_attempt(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(error(429, retry_after_s=0.001), with_headers(chat(CANARY)))
    return client.chat.completions.create(model="m", messages=MESSAGES)


def third_attempt_refused(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(*[with_headers(error(500, CANARY), **{"retry-after-ms": "1"})] * 3)
    return client.chat.completions.create(model="m", messages=MESSAGES)


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (chat_with_limits, LEFT | {names.HTTP_RESEND_COUNT: None}),
        (stream_with_limits, LEFT),
        (raw_with_limits, LEFT),
        (refused_with_limits, LEFT | {names.ERROR_TYPE: "openai.BadRequestError"}),
        (second_attempt, LEFT | {names.HTTP_RESEND_COUNT: 1}),
        (third_attempt_refused, LEFT | {names.HTTP_RESEND_COUNT: 2, names.HTTP_RESPONSE_STATUS_CODE: 500}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_headers_tell(server: FakeOpenAI, scenario: Any, expected: Any) -> None:
    """How much the provider's limits leave, its id of the call, and how often the SDK had to try."""
    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        (span,) = outcome.spans
        assert {key: span.attributes.get(key) for key in expected} == expected


def test_headers_that_are_no_numbers_tell_nothing(server: FakeOpenAI) -> None:
    """Nor do they hurt."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        odd = {"x-ratelimit-remaining-tokens": "many", "x-ratelimit-limit-tokens": "-1"}
        server.reply(Reply(body=chat().body, headers=odd))
        return client.chat.completions.create(model="m", messages=MESSAGES)

    (span,) = observe("on", scenario, server).spans
    assert names.RATE_LIMIT_TOKENS_LEFT not in span.attributes
    assert names.RATE_LIMIT_TOKENS not in span.attributes


def test_a_services_own_pipeline_hears_it_too(server: FakeOpenAI) -> None:
    """Spans that are the service's own, made and ended on its provider."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.clear()
        chat_with_limits(client, server)
        stream_with_limits(client, server)
        try:
            parse_filtered(client, server)
        except openai.ContentFilterFinishReasonError:
            return "filtered"

    with agent("on"), sync_client(server, max_retries=0) as client:
        assert scenario(client, server) == "filtered"
    whole, streamed, failed = (dict(span.attributes or {}) for span in spans.get_finished_spans())
    for attributes in (whole, streamed):
        assert {key: attributes.get(key) for key in LEFT} == LEFT
    assert (failed[names.OUTPUT_TOKENS], failed[names.ERROR_TYPE]) == (
        5,
        "openai.ContentFilterFinishReasonError",
    )


# --- answers that the SDK does not like ------------------------------------------------------------
def parse_filtered(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    choice = {"index": 0, "finish_reason": "content_filter", "message": {"role": "assistant", "content": "{"}}
    server.reply(completion([choice]))
    return client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Answer)


def parse_nonsense(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat("no JSON at all"))
    try:
        return client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Answer)
    except pydantic.ValidationError as error:
        return error.error_count()


@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        (parse_filtered, "openai.ContentFilterFinishReasonError"),
        (parse_nonsense, "pydantic_core._pydantic_core.ValidationError"),
    ],
)
def test_an_answer_that_cannot_be_parsed_is_billed(server: FakeOpenAI, scenario: Any, kind: str) -> None:
    """The SDK raises inside the call; tokens and limits are told all the same."""
    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.ERROR_TYPE] == kind
        assert (span.attributes[names.INPUT_TOKENS], span.attributes[names.OUTPUT_TOKENS]) == (11, 5)
        assert span.attributes[names.RESPONSE_ID] == "chatcmpl-fake"
        assert names.OUTPUT_TYPE in span.attributes
