"""`InvokeModel`'s body, which the service reads when and how it likes, and which we never read."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_bedrock import CASE, sync_client
from client_cases import CANARY, agent, observe, observe_async, three_ways
from neuronscope.signals import names
from neuronscope.testing.fake_bedrock import FakeBedrock

integration = pytest.mark.integration
CLAUDE = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 64,
    "temperature": 0.5,
    "top_p": 0.9,
    "system": CANARY,
    "messages": [{"role": "user", "content": [{"type": "text", "text": CANARY}]}],
    "tools": [{"name": "look_up", "description": CANARY, "input_schema": {"type": "object"}}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeBedrock]:
    """One provider for the module."""
    with FakeBedrock() as fake:
        yield fake


def read_whole(body: Any) -> Any:
    return body.read()


def read_by_lines(body: Any) -> Any:
    return list(body.iter_lines())


def read_by_chunks(body: Any) -> Any:
    return list(body.iter_chunks(7)), list(body)


def read_by_next(body: Any) -> Any:
    return next(body), body.read()


def read_what_there_is(body: Any) -> Any:
    """Just as many bytes as there are, and no more."""
    return body.read(9), body.read(int(body._content_length) - 9)


def read_into_a_buffer(body: Any) -> Any:
    buffer = bytearray(1000)
    return body.readinto(buffer), body.readinto(buffer), bytes(buffer).rstrip(b"\0")


def read_in_a_block(body: Any) -> Any:
    with body as raw:
        return type(raw).__qualname__, raw.read()


def read_as_json(body: Any) -> Any:
    return json.load(body)


def read_half(body: Any) -> Any:
    return body.read(9)


def read_nothing(body: Any) -> Any:
    return body.readable()


def read_closed(body: Any) -> Any:
    body.close()
    return "closed"


@integration
# urllib3 leaves the connection of a dropped body to Python, agent or not.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(
    ("way", "whole"),
    [
        (read_whole, True),
        (read_by_lines, True),
        (read_by_chunks, True),
        (read_by_next, True),
        (read_what_there_is, True),
        (read_into_a_buffer, True),
        (read_in_a_block, True),
        (read_as_json, True),
        (read_half, False),
        (read_nothing, False),
        (read_closed, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_body_is_read_as_the_service_likes(
    server: FakeBedrock, way: Callable[[Any], Any], whole: bool
) -> None:
    """Never by us.  One that is not read to its end has the tokens of its headers."""

    def call(client: Any, fake: Any) -> Any:
        response = client.invoke_model(modelId="anthropic.claude-x", body=json.dumps(CLAUDE))
        seen = way(response["body"])
        del response
        gc.collect()
        return seen

    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        (span,) = outcome.spans
        assert span.attributes[names.INPUT_TOKENS] == 11
        assert span.attributes[names.OUTPUT_TOKENS] == 5
        assert (span.attributes.get(names.RESPONSE_ID) == "msg-fake") == whole
        assert names.ERROR_TYPE not in span.attributes


@integration
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_the_span_of_a_body_ends_when_it_was_read_and_leaves_no_trace_on_it(server: FakeBedrock) -> None:
    """Not before; afterwards the objects are as botocore made them."""
    with agent("on", "bedrock") as exporter, sync_client(server) as client:
        body = client.invoke_model(modelId="anthropic.claude-x", body=json.dumps(CLAUDE))["body"]
        raw = body._raw_stream
        assert exporter.spans == []
        assert "read" in vars(raw)
        body.read()
        assert len(exporter.spans) == 1
        assert "read" not in vars(raw)
        dropped = client.invoke_model(modelId="anthropic.claude-x", body=json.dumps(CLAUDE))
        del dropped
        assert len(exporter.spans) == 2


@integration
def test_async_bodies_are_followed(server: FakeBedrock) -> None:
    """All at once, by chunks, in a block; and one that nobody reads."""

    async def calls(client: Any, fake: Any) -> Any:
        asked: Any = {"modelId": "anthropic.claude-x", "body": json.dumps(CLAUDE)}
        seen: list[Any] = [await (await client.invoke_model(**asked))["body"].read()]
        seen.append([chunk async for chunk in (await client.invoke_model(**asked))["body"]])
        async with (await client.invoke_model(**asked))["body"] as body:
            seen.append((type(body).__qualname__, await body.read(5)))
        stream: Any = (await client.invoke_model_with_response_stream(**asked))["body"]
        seen.append([event async for event in stream])
        return seen

    for outcome in three_ways(lambda mode: observe_async(CASE, mode, calls, server)):
        assert [span.attributes[names.OUTPUT_TOKENS] for span in outcome.spans] == [5, 5, 5, 5]
        assert [names.RESPONSE_ID in span.attributes for span in outcome.spans] == [True, True, False, True]


@integration
def test_a_request_that_reading_would_use_up_is_left_alone(server: FakeBedrock) -> None:
    """A file object goes to the provider whole; its parameters stay unknown, its tokens do not."""

    def call(client: Any, fake: Any) -> Any:
        body = io.BytesIO(json.dumps(CLAUDE).encode())
        return client.invoke_model(modelId="anthropic.claude-x", body=body)["body"].read()

    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        assert json.loads(outcome.requests[0][2]) == CLAUDE
        (span,) = outcome.spans
        assert names.REQUEST_MAX_TOKENS not in span.attributes
        assert span.attributes[names.INPUT_TOKENS] == 11
