"""What only the Cohere adapter has: two versions of the API, reranking, billed units, raw responses.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import cohere
import pytest

from client_cases import CANARY, agent, facts_like, observe, three_ways
from client_cohere import ASKED, CASE, COMPLETE, MESSAGES, STREAMED, sync_client
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_cohere import FakeCohere, chat, chat_stream_v1, chat_v1, error, stream_of
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.cohere.messages import read_message
from neuronscope_instrumentation.cohere.requests import provider
from neuronscope_instrumentation.cohere.responses import (
    fold_event,
    has_content,
    read_chat,
    read_embeddings,
    read_rerank,
)

integration = pytest.mark.integration

ASKED_V1: dict[str, Any] = {
    "model": "m",
    "message": CANARY,
    "preamble": CANARY,
    "chat_history": [{"role": "USER", "message": "hi"}, {"role": "CHATBOT", "message": "ho"}],
    "temperature": 0.5,
    "stop_sequences": [CANARY],
}
V1 = {
    names.PROVIDER_NAME: "cohere",
    names.RESPONSE_ID: "chat-fake",
    names.INPUT_TOKENS: 11,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["COMPLETE"],
    names.INPUT_MESSAGE_COUNT: 3,
}
V1_STREAMED = {**V1, names.STREAM_END: "complete", names.STREAM_CHUNKS: 7, names.REQUEST_STREAM: True}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeCohere]:
    """One provider for the module."""
    with FakeCohere() as fake:
        yield fake


@contextmanager
def v1_client(server: FakeProvider) -> Generator[Any]:
    """A client of version 1."""
    with sync_client(server, cohere.Client) as client:
        yield client


def v1_chat(client: Any, server: FakeProvider) -> Any:
    server.reply(chat_v1(CANARY))
    with v1_client(server) as old:
        return old.chat(**ASKED_V1)


def v1_stream(client: Any, server: FakeProvider) -> Any:
    server.reply(chat_stream_v1(f"{CANARY} two three four five"))
    with v1_client(server) as old:
        return list(old.chat_stream(**ASKED_V1))


def v1_embed(client: Any, server: FakeProvider) -> Any:
    with v1_client(server) as old:
        return old.embed(model="e", texts=[CANARY, "b"], input_type="search_query")


def v2_of_a_v1_client(client: Any, server: FakeProvider) -> Any:
    with v1_client(server) as old:
        return old.v2.chat(**ASKED)


def rerank(client: Any, server: FakeProvider) -> Any:
    return client.rerank(model="r", query=CANARY, documents=[CANARY, "b", "c"], top_n=2)


def raw(client: Any, server: FakeProvider) -> Any:
    response = client.with_raw_response.chat(**ASKED)
    return response.headers["x-request-id"], response.data


def raw_stream(client: Any, server: FakeProvider) -> Any:
    with client.with_raw_response.chat_stream(**ASKED) as response:
        return response.headers["x-request-id"], list(response.data)


def raw_stream_left(client: Any, server: FakeProvider) -> Any:
    with client.with_raw_response.chat_stream(**ASKED) as response:
        return next(response.data)


def raw_stream_with_an_error_inside(client: Any, server: FakeProvider) -> Any:
    try:
        with client.with_raw_response.chat_stream(**ASKED) as response:
            next(response.data)
            raise LookupError("the service's own")
    except LookupError as error:
        return str(error)


def retried(client: Any, server: FakeProvider) -> Any:
    server.reply(error(500), error(503))
    options: Any = {"max_retries": 2}
    return client.chat(**ASKED, request_options=options)


def no_model_call(client: Any, server: FakeProvider) -> Any:
    with v1_client(server) as old:
        return old.models.list()


WAYS: list[tuple[Any, list[dict[str, Any]]]] = [
    (v1_chat, [V1]),
    (v1_stream, [V1_STREAMED]),
    (v1_embed, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 3}]),
    (v2_of_a_v1_client, [COMPLETE]),
    (
        rerank,
        [
            {
                names.OPERATION_NAME: "rerank",
                names.REQUEST_MODEL: "r",
                names.INPUT_COUNT: 3,
                names.RETRIEVAL_TOP_K: 2,
                names.RETRIEVAL_RETURNED: 3,
                names.RETRIEVAL_TOP_SCORE: 0.9,
                names.RETRIEVAL_KTH_SCORE: 0.1,
                names.INPUT_TOKENS: None,
            }
        ],
    ),
    (raw, [COMPLETE]),
    (raw_stream, [STREAMED]),
    (raw_stream_left, [{names.STREAM_END: "client_closed", names.ERROR_TYPE: None}]),
    (raw_stream_with_an_error_inside, [{names.STREAM_END: "client_closed", names.ERROR_TYPE: None}]),
    (retried, [COMPLETE]),
    (no_model_call, []),
]


def no_wait(response: Any, retries: int) -> float:
    return 0.0


@integration
@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_call_is_one_span(
    server: FakeCohere, way: Any, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both versions, reranking, raw responses; the service sees no difference."""
    monkeypatch.setattr("cohere.core.http_client._retry_timeout", no_wait)
    for outcome in three_ways(lambda mode: observe(CASE, mode, way, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


@integration
def test_the_words_of_version_1_are_told(server: FakeCohere) -> None:
    """A history, a message and a preamble are a conversation."""
    attributes = observe(CASE, "content", v1_stream, server).spans[0].attributes
    asked = json.loads(str(attributes[names.INPUT_MESSAGES]))
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[2]["parts"] == [{"type": "text", "content": CANARY}]
    assert json.loads(str(attributes[names.SYSTEM_INSTRUCTIONS])) == [{"type": "text", "content": CANARY}]
    (told,) = json.loads(str(attributes[names.OUTPUT_MESSAGES]))
    assert told["parts"] == [{"type": "text", "content": f"{CANARY} two three four five"}]
    assert told["finish_reason"] == "stop"


@integration
def test_a_manager_that_is_not_entered_makes_no_call_and_no_span(server: FakeCohere) -> None:
    """Nor does it leave a span current."""
    server.clear()
    with agent("on", "cohere") as exporter, sync_client(server) as client:
        manager = client.with_raw_response.chat_stream(**ASKED)
        client.chat(**ASKED)
        del manager
        (span,) = exporter.spans
        assert span.parent_span_id is None
    assert len(server.requests) == 1


@integration
def test_the_services_own_header_wins(server: FakeCohere) -> None:
    """Given with the call; never two."""
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    server.clear()
    with agent("on", "cohere"), sync_client(server) as client:
        client.chat(**ASKED, request_options={"additional_headers": {"Traceparent": own}})
    assert server.requests[0].headers["traceparent"] == [own]


def test_thinking_and_tools_are_apart_from_the_text() -> None:
    """Streamed and whole, version 2."""

    def delta(index: int, **message: Any) -> Any:
        return {"index": index, "delta": {"message": message}}

    first = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": ""}}
    events = stream_of(
        [
            {"type": "content-delta", **delta(0, content={"thinking": "h"})},
            {"type": "content-delta", **delta(0, content={"thinking": "m"})},
            {"type": "content-delta", **delta(1, content={"text": "Let me"})},
            {"type": "tool-call-start", **delta(0, tool_calls=first)},
            {"type": "tool-call-delta", **delta(0, tool_calls={"function": {"arguments": '{"q": '}})},
            {"type": "tool-call-delta", **delta(0, tool_calls={"function": {"arguments": '"cats"}'}})},
            {"type": "tool-call-end", "index": 0},
        ],
        "TOOL_CALL",
    ).events
    expected = [
        {"type": "reasoning", "content": "hm"},
        {"type": "text", "content": "Let me"},
        {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "cats"}},
    ]
    response = Response()
    for event in events or ():
        response = fold_event(response, json.dumps(event).encode(), True)
    assert response.messages is not None
    assert list(response.messages[0].parts) == expected
    assert response.messages[0].finish_reason == "tool_call"
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Let me"}]
    calls = [{**first, "function": {"name": "find", "arguments": '{"q": "cats"}'}}]
    whole = read_chat(chat(content=content, tool_calls=calls).body, True)
    assert whole.messages is not None
    assert list(whole.messages[0].parts) == expected


def test_messages_become_opentelemetrys_parts() -> None:
    """Parsed objects and dictionaries alike."""
    result = read_message({"role": "tool", "tool_call_id": "c1", "content": "42"})
    assert list(result.parts) == [{"type": "tool_call_response", "id": "c1", "response": "42"}]
    picture: Any = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://x.test/cat.png"}}],
    }
    assert list(read_message(picture).parts) == [
        {"type": "uri", "modality": "image", "uri": "https://x.test/cat.png"}
    ]
    assert [read_message(message).role for message in MESSAGES] == ["system", "user"]


@pytest.mark.parametrize(
    "odd", [b"", b"not json", b"[]", b'{"usage": [], "embeddings": 3}', None, "text", []]
)
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_chat(odd, True) == Response()
    assert read_embeddings(odd, True) == Response()
    assert read_rerank(odd, True) == Response()
    assert fold_event(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)


def test_the_provider_is_told_by_host() -> None:
    """Cloud platforms have names of their own."""
    assert provider("api.cohere.com") == "cohere"
    assert provider("bedrock-runtime.us-east-1.amazonaws.com") == "aws.bedrock"
