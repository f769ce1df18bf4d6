"""Anthropic's blocks: thinking, tools, what servers find, what a cache keeps; whole and in pieces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from client_anthropic import ASKED, CASE, MESSAGES, sync_client
from client_cases import CANARY, agent, observe, three_ways
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_anthropic import (
    FakeAnthropic,
    Reply,
    block_events,
    message,
    message_stream,
    stream_of,
)
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.anthropic.chunks import fold_message_event, has_content
from neuronscope_instrumentation.anthropic.messages import read_message
from neuronscope_instrumentation.anthropic.responses import read_response

integration = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAnthropic]:
    """One provider for the module."""
    with FakeAnthropic() as fake:
        yield fake


THINKING: Any = {"type": "thinking", "thinking": "", "signature": ""}
TOOL: Any = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {}}
SEARCH: Any = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND: Any = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [
        {"type": "web_search_result", "title": CANARY, "url": "https://x.test", "encrypted_content": "e"}
    ],
}
BLOCKS: Any = [
    *block_events(
        0,
        THINKING,
        [
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "thinking_delta", "thinking": "m"},
            {"type": "signature_delta", "signature": "sig"},
        ],
    ),
    *block_events(1, SEARCH, [{"type": "input_json_delta", "partial_json": '{"q": "cats"}'}]),
    *block_events(2, FOUND, []),
    *block_events(3, {"type": "text", "text": ""}, [{"type": "text_delta", "text": "Let me "}]),
    *block_events(
        4,
        TOOL,
        [
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"city": '},
            {"type": "input_json_delta", "partial_json": '"Paris"}'},
        ],
    ),
    *block_events(5, {**TOOL, "id": "t2"}, []),
]
TOLD: Any = [
    {"type": "reasoning", "content": "hmm"},
    {
        "type": "server_tool_call",
        "id": "s1",
        "name": "web_search",
        "server_tool_call": {"type": "server_tool_use", "arguments": {"q": "cats"}},
    },
    {
        "type": "server_tool_call_response",
        "id": "s1",
        "server_tool_call_response": {"type": "web_search_tool_result"},
    },
    {"type": "text", "content": "Let me "},
    {"type": "tool_call", "id": "t1", "name": "look_up", "arguments": {"city": "Paris"}},
    {"type": "tool_call", "id": "t2", "name": "look_up"},
]


@integration
@pytest.mark.parametrize("helper", [False, True])
def test_thinking_and_tools_are_put_together_apart_from_the_text(server: FakeAnthropic, helper: bool) -> None:
    """Events that the helper derives are not counted twice; tool arguments may begin empty."""

    def use(client: Any, server: FakeProvider) -> Any:
        server.reply(stream_of(BLOCKS, stop_reason="tool_use"))
        if helper:
            with client.messages.stream(**ASKED) as stream:
                return [event.type for event in stream], stream.get_final_message()
        return list(client.messages.create(**ASKED, stream=True))

    on, content = three_ways(lambda mode: observe(CASE, mode, use, server))
    assert on.spans[0].attributes[names.FINISH_REASONS] == ["tool_use"]
    assert on.spans[0].attributes[names.OUTPUT_TOKENS] == 5
    (told,) = json.loads(str(content.spans[0].attributes[names.OUTPUT_MESSAGES]))
    assert told == {"role": "assistant", "parts": TOLD, "finish_reason": "tool_call"}


def test_a_whole_message_reads_like_its_stream() -> None:
    """The same parts, parsed or as JSON bytes."""
    blocks: list[Any] = [
        {"type": "thinking", "thinking": "hmm", "signature": "sig"},
        {**SEARCH, "input": {"q": "cats"}},
        FOUND,
        {"type": "text", "text": "Let me "},
        {**TOOL, "input": {"city": "Paris"}},
        {**TOOL, "id": "t2"},
    ]
    body = message(content=blocks, stop_reason="tool_use").body
    for form in (body, json.dumps(body).encode()):
        response = read_response(form, True)
        assert response.messages is not None
        assert list(response.messages[0].parts) == TOLD


def test_pieces_without_their_start_are_kept() -> None:
    """Gateways leave `content_block_start` out; no KeyError, the text is told."""
    events = [event for event in BLOCKS if event["type"] == "content_block_delta"]
    response = Response()
    for event in events:
        response = fold_message_event(response, event, True)
    assert response.messages is not None
    kinds = [part["type"] for part in response.messages[0].parts]
    assert kinds == ["reasoning", "tool_call", "text", "tool_call"]


def test_messages_become_opentelemetrys_parts() -> None:
    """Pictures by size and hash, documents, results of tools."""
    data = "aGVsbG8="
    sent: Any = {
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
            {"type": "image", "source": {"type": "url", "url": "https://x.test/cat.png"}},
            {"type": "document", "source": {"type": "file", "file_id": "f1"}},
            {"type": "document", "source": {"type": "text", "data": "words", "media_type": "text/plain"}},
            {"type": "novel"},
        ],
    }
    assert list(read_message(sent).parts) == [
        {"type": "text", "content": "look"},
        {
            "type": "blob",
            "modality": "image",
            "mime_type": "image/png",
            "size": 5,
            "sha256": hashlib.sha256(b"hello").hexdigest(),
        },
        {"type": "uri", "modality": "image", "uri": "https://x.test/cat.png"},
        {"type": "file", "modality": "document", "file_id": "f1"},
        {"type": "text", "content": "words"},
        {"type": "novel"},
    ]
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]}
    read = read_message(result)
    assert read.role == "tool"
    assert list(read.parts) == [{"type": "tool_call_response", "id": "t1", "response": "42"}]


def test_content_is_what_the_model_wrote() -> None:
    """Starts, signatures, pings and usage do not stop the clock."""
    kinds = [event["type"] for event in (message_stream("a").events or ()) if has_content(event)]
    assert kinds == ["content_block_delta"]
    assert not has_content({"type": "content_block_delta", "delta": {"type": "signature_delta"}})
    assert has_content({"type": "content_block_start", "content_block": {"type": "tool_use"}})


@pytest.mark.parametrize("odd", [b"", b"not json", b"[]", b'{"content": 3, "usage": []}', None, "text", []])
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_response(odd, True) == Response()
    assert fold_message_event(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)


def test_cached_tokens_are_part_of_the_input() -> None:
    """Absent ones are unknown, not zero."""
    response = read_response(message(usage={"input_tokens": 3, "output_tokens": 1}).body, False)
    assert (response.input_tokens, response.cache_read_tokens, response.cache_write_tokens) == (3, None, None)
    usage = {"output_tokens": 1, "cache_read_input_tokens": 9}
    assert read_response(message(usage=usage).body, False).input_tokens is None


def test_what_the_cache_keeps_for_an_hour_is_told_and_billed_apart(server: FakeAnthropic) -> None:
    """Whole, streamed, and where the stream's end tells it again."""
    usage = {
        "input_tokens": 0,
        "output_tokens": 1,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 10,
        "cache_creation": {"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4},
    }
    whole: Any = message(usage=usage, model="claude-sonnet-4-5").body
    begun: Any = {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    asked: Any = {"model": "m", "max_tokens": 9, "messages": MESSAGES}
    with agent("on", "anthropic") as exporter, sync_client(server) as client:
        server.reply(Reply(body=whole), Reply(events=[begun, ended, {"type": "message_stop"}]))
        client.messages.create(**asked)
        list(client.messages.create(**asked, stream=True))
    for span in exporter.spans:
        assert span.attributes[names.CACHE_WRITE_TOKENS] == 10
        assert span.attributes[names.CACHE_WRITE_1H_TOKENS] == 4
        assert span.attributes[names.FINISH_REASONS] == ["end_turn"]
        assert span.attributes[names.COST] == pytest.approx((6 * 3.75 + 4 * 6.0 + 15.0) / 1e6)
    assert len(exporter.spans) == 2
