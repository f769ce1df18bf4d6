"""Odd uses of the SDK, which end with and without the agent alike."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, chat_stream
from openai_cases import MESSAGES, Scenario, facts_like, observe, three_ways

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


def stream_dropped_but_its_response(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    server.reply(chat_stream("one two three four five"))
    stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    response = stream.response  # whose headers are looked at later
    next(stream)
    del stream
    gc.collect()
    return response.is_closed


def headers_of_another_kind(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    headers: Any = [("x-mine", "1")]
    try:
        return client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=headers)
    except AttributeError as error:
        return str(error)


def a_body_of_another_kind(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    body: Any = [("top_k", 1)]
    try:
        return client.chat.completions.create(model="m", messages=MESSAGES, extra_body=body)
    except TypeError as error:
        return str(error)


CASES: list[tuple[Scenario, dict[str, Any]]] = [
    (stream_dropped_but_its_response, {names.STREAM_END: "client_closed", names.STREAM_CHUNKS: 1}),
    (headers_of_another_kind, {names.ERROR_TYPE: "AttributeError"}),
    (a_body_of_another_kind, {names.ERROR_TYPE: "TypeError"}),
]


@pytest.mark.parametrize(("scenario", "expected"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_service_sees_no_difference(
    server: FakeOpenAI, scenario: Scenario, expected: dict[str, Any]
) -> None:
    """What comes of it, what goes over the wire and the log; and one span."""
    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        (span,) = outcome.spans
        assert facts_like(span.attributes, expected) == expected
