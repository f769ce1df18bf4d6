"""What only the Google Gen AI adapter has: chats, function calling, Vertex, inputs of all kinds.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import google.auth.credentials
import pytest
from google.genai import types

from client_cases import CANARY, agent, facts_like, observe, observe_async, three_ways
from client_google import ASKED, CASE, COMPLETE, STREAMED, async_client, sync_client
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_google import FakeGoogle, Reply, chunks, generation
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.google_genai.messages import read_content
from neuronscope_instrumentation.google_genai.requests import call_of
from neuronscope_instrumentation.google_genai.responses import (
    fold_chunk,
    has_content,
    read_embeddings,
    read_response,
)

integration = pytest.mark.integration

PICTURE = b"hello"


class Anonymous(google.auth.credentials.Credentials):
    """Credentials without a refresh."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # google.auth is half annotated
        self.token = "t"

    def refresh(self, request: Any) -> None:
        """Nothing to do: the token never ends."""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGoogle]:
    """One provider for the module."""
    with FakeGoogle() as fake:
        yield fake


def chat(client: Any, server: FakeProvider) -> Any:
    conversation = client.chats.create(model="m")
    first = conversation.send_message(CANARY)
    return first, conversation.send_message("again"), len(conversation.get_history())


def chat_stream(client: Any, server: FakeProvider) -> Any:
    return list(client.chats.create(model="m").send_message_stream(CANARY))


def inputs_of_all_kinds(client: Any, server: FakeProvider) -> Any:
    part = types.Part.from_bytes(data=PICTURE, mime_type="image/png")
    content = types.Content(role="user", parts=[types.Part(text=CANARY)])
    asked: list[Any] = [CANARY, types.Part(text=CANARY), [part, CANARY], [content], {"text": CANARY}]
    return [client.models.generate_content(model="m", contents=contents).text for contents in asked]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def function_calling(client: Any, server: FakeProvider) -> Any:
    call = {"functionCall": {"name": "add", "args": {"a": 1, "b": 2}}}
    server.reply(generation(content={"role": "model", "parts": [call]}), generation("3"))
    config: Any = {"tools": [add]}
    return client.chats.create(model="m", config=config).send_message(CANARY).text


def blocked(client: Any, server: FakeProvider) -> Any:
    server.reply(
        Reply(body={"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}})
    )
    return client.models.generate_content(**ASKED).candidates


def error_in_the_stream(client: Any, server: FakeProvider) -> Any:
    first = (chunks([[{"text": "one"}], [{"text": "two"}]]).events or ())[:1]
    server.reply(Reply(events=[*first, {"error": {"code": 503, "message": CANARY, "status": "UNAVAILABLE"}}]))
    return list(client.models.generate_content_stream(**ASKED))


def ended_before_it_was_done(client: Any, server: FakeProvider) -> Any:
    server.reply(Reply(events=(chunks([[{"text": "one"}], [{"text": "two"}]]).events or ())[:1]))
    return list(client.models.generate_content_stream(**ASKED))


def no_model_call(client: Any, server: FakeProvider) -> Any:
    return client.models.count_tokens(model="m", contents=CANARY)


BILLED = {names.INPUT_TOKENS: 11, names.OUTPUT_TOKENS: 5, names.FINISH_REASONS: ["STOP"]}
WAYS: list[tuple[Any, list[dict[str, Any]]]] = [
    (chat, [{**BILLED, names.INPUT_MESSAGE_COUNT: 1}, {**BILLED, names.INPUT_MESSAGE_COUNT: 3}]),
    (chat_stream, [{**BILLED, names.STREAM_END: "complete"}]),
    (inputs_of_all_kinds, [BILLED] * 5),
    (function_calling, [BILLED, BILLED]),
    (blocked, [{names.FINISH_REASONS: ["SAFETY"], names.INPUT_TOKENS: 4, names.OUTPUT_TOKENS: None}]),
    (
        error_in_the_stream,
        [{names.ERROR_TYPE: "google.genai.errors.ServerError", names.HTTP_RESPONSE_STATUS_CODE: 503}],
    ),
    (ended_before_it_was_done, [{names.ERROR_TYPE: "stream_cut_off", names.STREAM_END: "error"}]),
    (no_model_call, []),
]


@integration
@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_call_is_one_span(server: FakeGoogle, way: Any, expected: list[Any]) -> None:
    """Chats, function calling, inputs of all kinds; the service sees no difference."""
    for outcome in three_ways(lambda mode: observe(CASE, mode, way, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


async def achat_stream(client: Any, server: FakeProvider) -> Any:
    stream = await client.chats.create(model="m").send_message_stream(CANARY)
    return [chunk async for chunk in stream]


@integration
def test_asynchronous_chats_too(server: FakeGoogle) -> None:
    """A stream of a chat."""
    for outcome in three_ways(lambda mode: observe_async(CASE, mode, achat_stream, server)):
        (span,) = outcome.spans
        assert facts_like(span.attributes, BILLED) == BILLED


@integration
def test_vertex_is_told_apart(server: FakeGoogle) -> None:
    """Its paths, its provider's name, its way of embedding."""
    server.clear()
    options: dict[str, Any] = {
        "vertexai": True,
        "project": "p",
        "location": "eu",
        "credentials": Anonymous(),
        "api_key": None,
    }
    with agent("on", "google_genai") as exporter, sync_client(server, **options) as client:
        client.models.generate_content(**ASKED)
        list(client.models.generate_content_stream(**ASKED))
        client.models.embed_content(model="text-embedding-005", contents=["a", "b"])
        spans = exporter.spans
    for span, expected in zip(spans, (COMPLETE, STREAMED), strict=False):
        told = {**expected, names.PROVIDER_NAME: "gcp.vertex_ai"}
        assert facts_like(span.attributes, told) == told
    embedding = {names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 6}
    assert facts_like(spans[2].attributes, embedding) == embedding
    assert server.requests[0].path.endswith("/publishers/google/models/m:generateContent")


@integration
def test_the_services_own_header_wins(server: FakeGoogle) -> None:
    """Given with the call; options may be a dictionary or an object; never two headers."""
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    server.clear()
    options = types.HttpOptions(headers={"Traceparent": own})
    mine = types.HttpOptions(headers={"x-mine": "1"})
    with agent("on", "google_genai"), sync_client(server) as client:
        client.models.generate_content(model="m", contents="a", config={"http_options": options})
        client.models.generate_content(model="m", contents="a", config={"http_options": mine})
    assert [request.headers["traceparent"] == [own] for request in server.requests] == [True, False]
    assert server.requests[1].headers["x-mine"] == ["1"]
    assert mine.headers == {"x-mine": "1"}


@integration
def test_concurrent_calls_keep_their_own_spans(server: FakeGoogle) -> None:
    """Tasks side by side, none the child of another."""

    async def run() -> None:
        async with async_client(server) as client:
            await asyncio.gather(*(CASE.achat(client) for _ in range(3)))

    with agent("on", "google_genai") as exporter:
        asyncio.run(run())
        assert [span.parent_span_id for span in exporter.spans] == [None] * 3


TOLD: list[Any] = [
    {"type": "reasoning", "content": "hm"},
    {"type": "text", "content": "Let me"},
    {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "cats"}},
]
PARTS: list[Any] = [
    {"text": "h", "thought": True},
    {"text": "m", "thought": True},
    {"text": "Let "},
    {"text": "me"},
    {"functionCall": {"id": "c1", "name": "find", "args": {"q": "cats"}}},
]


def test_thoughts_and_calls_are_apart_from_the_text() -> None:
    """Streamed and whole."""
    response = Response()
    for event in chunks([[part] for part in PARTS]).events or ():
        response = fold_chunk(response, json.dumps(event), True)
    whole = read_response(generation(content={"parts": PARTS}).body, True)
    for read in (response, whole):
        assert read.messages is not None
        assert list(read.messages[0].parts) == TOLD
        assert read.messages[0].finish_reason == "stop"
        assert (read.output_tokens, read.reasoning_tokens) == (5, 2)


def test_contents_become_opentelemetrys_parts() -> None:
    """Pictures by size and hash, files by address, results of functions."""
    sent: Any = {
        "role": "user",
        "parts": [
            {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PICTURE).decode()}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/v.mp4"}},
            {"novel": {"x": "y"}},
        ],
    }
    assert list(read_content(sent).parts) == [
        {
            "type": "blob",
            "modality": "image",
            "mime_type": "image/png",
            "size": len(PICTURE),
            "sha256": hashlib.sha256(PICTURE).hexdigest(),
        },
        {"type": "uri", "modality": "video", "uri": "gs://b/v.mp4"},
        {"type": "novel"},
    ]
    result = read_content({"parts": [{"functionResponse": {"name": "f", "response": {"r": 1}}}]})
    assert result.role == "tool"
    assert list(result.parts) == [{"type": "tool_call_response", "name": "f", "response": {"r": 1}}]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("models/m:generateContent", ("m", "generateContent")),
        ("publishers/google/models/m:streamGenerateContent?alt=sse", ("m", "streamGenerateContent")),
        ("tunedModels/t-1:generateContent", ("t-1", "generateContent")),
        ("models", None),
    ],
)
def test_the_path_tells_model_and_method(path: str, expected: Any) -> None:
    """Paths without a method call nothing."""
    assert call_of(path) == expected


@pytest.mark.parametrize("odd", [b"", "not json", "[]", '{"candidates": 3, "usageMetadata": []}', None, []])
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_response(odd, True) == Response()
    assert read_embeddings(odd, True) == Response()
    assert fold_chunk(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)
