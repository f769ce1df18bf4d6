"""Events of the Responses API, folded: what came before a stream was left, odd ones, items of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_responses import custom_call, function_call, message, reasoning, response_events
from neuronscope_instrumentation.openai.events import fold_event, has_content, is_complete
from neuronscope_instrumentation.openai.items import read_input
from neuronscope_instrumentation.openai.responses import read_response
from openai_cases import CANARY


def fold(events: Any, content: bool) -> Response:
    folded = Response()
    for event in events:
        folded = fold_event(folded, json.dumps(event).encode(), content)
    return folded


OUTPUT = [
    reasoning("hm hm"),
    message("zebra two three"),
    function_call("find", '{"q": "cats"}', "a"),
    custom_call("shell", "ls -l", "b"),
]


def test_what_came_before_a_stream_was_left_counts() -> None:
    """At every point the pieces so far: text, reasoning, names and arguments; nothing that has not come."""
    events = list(response_events(OUTPUT).events or ())[:-1]
    folded = fold(events, content=True)
    assert folded.messages is not None
    assert list(folded.messages[0].parts) == [
        {"type": "reasoning", "content": "hm hm"},
        {"type": "text", "content": "zebra two three"},
        {"type": "tool_call", "id": "a", "name": "find", "arguments": {"q": "cats"}},
        {"type": "tool_call", "id": "b", "name": "shell", "arguments": "ls -l"},
    ]
    assert folded.extra[names.TOOLS_CALLED] == ["find", "shell"]
    assert (folded.id, folded.model, folded.input_tokens) == ("resp-fake", "fake-model-1", None)
    assert not is_complete(folded)
    for length in range(len(events)):
        part = fold(events[:length], content=True)
        if part.messages is not None:
            assert all(
                each["type"] != "unknown" for each in (part.messages[0].parts if part.messages else ())
            )


def test_half_a_tool_call_is_half_a_tool_call() -> None:
    """Its name is known from the beginning, its arguments as far as they came."""
    events = list(response_events([function_call("find", '{"q": "cats"}', "a")]).events or ())
    folded = fold(events[:4], content=True)
    assert folded.messages is not None
    assert list(folded.messages[0].parts) == [
        {"type": "tool_call", "id": "a", "name": "find", "arguments": '{"q": '}
    ]


def test_without_content_nothing_of_it_is_kept() -> None:
    """Facts only."""
    events = list(response_events(OUTPUT).events or ())
    for length in range(len(events)):
        folded = fold(events[:length], content=False)
        assert folded.messages is None
        assert "zebra two" not in repr(folded)


def test_a_server_that_leaves_the_output_out_of_the_last_event() -> None:
    """What came before is the output."""
    events: Any = list(response_events([message("one"), function_call("find", "{}", "a")]).events or ())
    events[-1]["response"]["output"] = []
    folded = fold(events, content=True)
    assert folded.finish_reasons == ["tool_calls"]
    assert folded.messages is not None
    assert [part["type"] for part in folded.messages[0].parts] == ["text", "tool_call"]
    assert folded.messages[0].finish_reason == "tool_call"
    assert folded.output_tokens == 5
    assert is_complete(folded)


def test_what_the_model_writes_stops_the_clock() -> None:
    """Deltas do, what frames them does not."""
    kinds = {event["type"]: has_content(event) for event in response_events(OUTPUT).events or ()}
    assert {kind for kind, content in kinds.items() if content} == {
        "response.reasoning_summary_text.delta",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
    }


@pytest.mark.parametrize(
    "odd", [b"", b"not json", b"[]", b'"text"', b'{"output": 3, "usage": "?"}', None, "x", []]
)
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_response(odd, True) == Response()
    assert fold_event(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)


def test_items_become_opentelemetrys_parts() -> None:
    """Messages with every kind of part, tool calls and their results, what the provider's tools did."""
    picture = "data:image/png;base64,AAAA"
    read = read_input(
        [
            {"role": "developer", "content": "rules"},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": picture},
                    {"type": "input_image", "file_id": "file-1"},
                    {"type": "input_file", "file_url": "https://example.test/a.pdf"},
                    {"type": "novel"},
                ],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "42"}],
            },
            {"type": "mcp_call", "id": "m", "name": "look", "arguments": "{}", "output": CANARY},
            {"type": "image_generation_call", "id": "i", "result": "AAAA", "output_format": "png"},
            {"type": "reasoning", "summary": [], "encrypted_content": CANARY},
            {"type": "item_reference", "id": "x"},
        ]
    )
    assert [each.role for each in read[:4]] == ["system", "user", "assistant", "tool"]
    kinds = [[part["type"] for part in each.parts] for each in read]
    assert kinds == [
        ["text"],
        ["text", "blob", "file", "uri", "novel"],
        ["tool_call"],
        ["tool_call_response"],
        ["server_tool_call", "server_tool_call_response"],
        ["server_tool_call", "blob"],
        ["reasoning"],
        ["item_reference"],
    ]
    assert read[3].parts[0]["response"] == [{"type": "text", "content": "42"}]
    assert CANARY not in repr(read)
