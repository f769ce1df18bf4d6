"""What a call's span says: requests, responses, folds, messages, providers.  Pure functions, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from neuronscope.instrumentation import Response
from neuronscope.testing.fake_openai import USAGE, chat_events, chat_stream, completion, delta
from neuronscope_instrumentation.openai.answers import read_chat
from neuronscope_instrumentation.openai.chat import CHAT, read_chat_request
from neuronscope_instrumentation.openai.chunks import fold_chat_chunk, has_content
from neuronscope_instrumentation.openai.embeddings import EMBEDDINGS, read_embeddings
from neuronscope_instrumentation.openai.messages import read_message
from neuronscope_instrumentation.openai.routes import route_of


def fold(events: Any, content: bool, form: str = "parsed") -> Response:
    """Fold a stream given as parsed chunks, or as the JSON bytes of raw responses."""
    response = Response()
    for event in events:
        chunk: Any = (
            ChatCompletionChunk.construct(**event) if form == "parsed" else json.dumps(event).encode()
        )
        response = fold_chat_chunk(response, chunk, content)
    return response


def parts_of(response: Response, choice: int = 0) -> list[Any]:
    assert response.messages is not None
    return list(response.messages[choice].parts)


@pytest.mark.parametrize("form", ["parsed", "json"])
@pytest.mark.parametrize("content", [False, True])
def test_a_stream_folds_into_the_whole_answer(form: str, content: bool) -> None:
    """Model, id, finish reason and usage; the text only where content may be recorded."""
    response = fold(chat_stream("zebra two three").events, content, form)
    assert (response.id, response.model, response.finish_reasons) == (
        "chatcmpl-fake",
        "fake-model-1",
        ["stop"],
    )
    assert (response.input_tokens, response.output_tokens) == (11, 5)
    assert (response.cache_read_tokens, response.reasoning_tokens) == (4, 2)
    assert (response.service_tier, response.system_fingerprint) == ("default", "fp_fake")
    if content:
        assert parts_of(response) == [{"type": "text", "content": "zebra two three"}]
    else:
        assert response.messages is None
        assert "zebra" not in repr(response)


def test_parallel_tool_calls_are_put_together() -> None:
    """Interleaved by index; ids come once, arguments may be null at first."""

    def call(index: int, **fields: Any) -> Any:
        return delta({"tool_calls": [{"index": index, **fields}]})

    events = chat_events(
        [
            call(0, id="a", type="function", function={"name": "find", "arguments": None}),
            call(1, id="b", type="function", function={"name": "add", "arguments": ""}),
            call(0, function={"arguments": '{"q": '}),
            call(1, function={"arguments": '{"x": 1}'}),
            call(0, function={"arguments": '"cats"}'}),
            call(2, id="c", type="custom", custom={"name": "shell", "input": "ls "}),
            call(2, custom={"input": "-l"}),
            delta({}, finish_reason="tool_calls"),
        ]
    ).events
    response = fold(events, content=True)
    assert parts_of(response) == [
        {"type": "tool_call", "id": "a", "name": "find", "arguments": {"q": "cats"}},
        {"type": "tool_call", "id": "b", "name": "add", "arguments": {"x": 1}},
        {"type": "tool_call", "id": "c", "name": "shell", "arguments": "ls -l"},
    ]
    assert response.finish_reasons == ["tool_calls"]
    assert response.messages is not None
    assert response.messages[0].finish_reason == "tool_call"
    assert fold(events, content=False).finish_reasons == ["tool_calls"]


def test_a_legacy_function_call_is_put_together() -> None:
    """`function_call` of old models and old servers."""
    events = chat_events(
        [
            delta({"function_call": {"name": "find", "arguments": ""}}),
            delta({"function_call": {"arguments": '{"q": 1}'}}),
            delta({}, finish_reason="function_call"),
        ]
    ).events
    assert parts_of(fold(events, content=True)) == [
        {"type": "tool_call", "name": "find", "arguments": {"q": 1}}
    ]


def test_several_choices_keep_their_order() -> None:
    """Whichever ends first."""
    events = chat_events(
        [
            delta({"content": "zero"}),
            delta({"content": "one"}, index=1),
            delta({}, index=1, finish_reason="length"),
            delta({}, finish_reason="stop"),
        ]
    ).events
    response = fold(events, content=True)
    assert response.finish_reasons == ["stop", "length"]
    assert [parts_of(response, choice)[0]["content"] for choice in (0, 1)] == ["zero", "one"]


def test_refusal_and_reasoning_are_parts_of_their_own() -> None:
    """Reasoning under either name that servers use."""
    events = chat_events(
        [
            delta({"reasoning_content": "hm"}),
            delta({"reasoning": "m"}),
            delta({"refusal": "No."}),
            delta({}, finish_reason="stop"),
        ]
    ).events
    assert parts_of(fold(events, content=True)) == [
        {"type": "reasoning", "content": "hmm"},
        {"type": "refusal", "content": "No."},
    ]


def test_usage_that_never_came_is_unknown() -> None:
    """Not zero."""
    response = fold(chat_stream("one", usage=False).events, content=False)
    assert response.input_tokens is None
    assert response.output_tokens is None


def test_the_last_of_several_usages_counts() -> None:
    """Some servers report usage with every chunk, each including the ones before."""
    events = list(chat_stream("one", usage=False).events or ())
    events = [
        {**event, "usage": {"prompt_tokens": 3, "completion_tokens": n}} for n, event in enumerate(events)
    ]
    response = fold(events, content=False)
    assert (response.input_tokens, response.output_tokens) == (3, len(events) - 1)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"content": "a"}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True),
        ({"reasoning_content": "hm"}, True),
        ({"refusal": "no"}, True),
        ({}, False),
    ],
)
def test_content_is_what_the_model_wrote(content: Any, expected: bool) -> None:
    """Roles, filters and usage do not stop the clock."""
    event: Any = next(iter(chat_events([delta(content)], usage=False).events or ()))
    assert has_content(ChatCompletionChunk.construct(**event)) is expected
    assert has_content(json.dumps(event).encode()) is expected
    assert has_content(json.dumps({**event, "choices": []}).encode()) is False


@pytest.mark.parametrize(
    "odd", [b"", b"not json", b"[]", b'"text"', b'{"choices": null, "usage": 3}', None, "text", []]
)
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_chat(odd, True) == Response()
    assert read_embeddings(odd, True) == Response()
    assert fold_chat_chunk(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)


def test_a_completion_is_read_with_all_its_choices() -> None:
    """In order of their index."""
    answers = [
        {"index": 1, "finish_reason": "length", "message": {"role": "assistant", "content": "b"}},
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}},
    ]
    response = read_chat(json.dumps(completion(answers, usage=dict(USAGE)).body).encode(), True)
    assert response.finish_reasons == ["stop", "length"]
    assert [parts_of(response, choice)[0]["content"] for choice in (0, 1)] == ["a", "b"]


def test_values_not_given_are_not_told() -> None:
    """Only values of the right type become facts."""
    from openai import NOT_GIVEN, omit

    odd = {"temperature": NOT_GIVEN, "top_p": omit, "seed": None, "max_tokens": True, "model": 3, "n": "2"}
    request = read_chat_request({**odd, "stop": [], "messages": []}, True)
    facts = (
        request.temperature,
        request.top_p,
        request.seed,
        request.max_tokens,
        request.model,
        request.choice_count,
    )
    assert facts == (None,) * 6


def test_messages_become_opentelemetrys_parts() -> None:
    """Roles, texts, addresses, tool calls and their answers."""
    messages: list[Any] = [
        {"role": "developer", "content": "rules"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://example.test/cat.png"}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "novel", "novel": "?"},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    read = [read_message(message) for message in messages]
    assert [message.role for message in read] == ["system", "user", "assistant", "tool"]
    assert list(read[1].parts) == [
        {"type": "text", "content": "look"},
        {"type": "uri", "modality": "image", "uri": "https://example.test/cat.png"},
        {"type": "file", "modality": "document", "file_id": "file-1"},
        {"type": "novel"},
    ]
    assert list(read[2].parts) == [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}]
    assert list(read[3].parts) == [{"type": "tool_call_response", "id": "c", "response": "42"}]


def test_blobs_become_size_and_hash() -> None:
    """Over several slices, and the same whether the picture or its base64 is hashed by others."""
    picture = bytes(range(256)) * 8192
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    (part,) = read_message(message).parts
    assert part == {
        "type": "blob",
        "modality": "image",
        "mime_type": "image/png",
        "size": len(picture),
        "sha256": hashlib.sha256(picture).hexdigest(),
    }
    audio = {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "!é!", "format": "wav"}}],
    }
    (part,) = read_message(audio).parts
    assert (part["mime_type"], part["size"]) == ("audio/wav", len("!é!".encode()))


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("/chat/completions", CHAT),
        ("/deployments/gpt/chat/completions?api-version=1", CHAT),
        ("https://other.test/v1/embeddings", EMBEDDINGS),
        ("/chat/completions/chatcmpl-1", None),
        ("/files", None),
    ],
)
def test_the_path_decides_the_endpoint(url: str, endpoint: Any) -> None:
    """Paths that call no model are left alone."""
    route = route_of("post", url)
    assert (route.endpoint if route is not None else None) is endpoint
