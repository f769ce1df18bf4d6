"""Facts that every client's adapter tells alike, content or not: tools, effort, service tier, headers.

Two parallel tool calls, whole and streamed, in each provider's own words on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import client_anthropic
import client_bedrock
import client_cohere
import client_google
import client_mistral
import client_ollama
from client_cases import ClientCase, Mode, agent
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.testing import (
    fake_anthropic,
    fake_bedrock,
    fake_cohere,
    fake_google,
    fake_mistral,
    fake_ollama,
)
from neuronscope.testing.fake_provider import Reply

pytestmark = pytest.mark.integration

CALLED = ["look_up", "add"]


@dataclass(frozen=True)
class Tools:
    """How a client's provider answers with two tool calls.

    Attributes:
        case: the client.
        whole: the answer at once.
        streamed: the same in pieces.
    """

    case: ClientCase
    whole: Callable[[], Reply]
    streamed: Callable[[], Reply]


def function(index: int, name: str) -> dict[str, Any]:
    """A call in the words that most providers share."""
    return {
        "id": f"call-{index}",
        "type": "function",
        "function": {"name": name, "arguments": '{"a": 1}'},
    }


def claude_blocks() -> list[Any]:
    """Anthropic's."""
    return [
        {"type": "tool_use", "id": f"t{index}", "name": name, "input": {"a": 1}}
        for index, name in enumerate(CALLED)
    ]


def claude_stream() -> Reply:
    """Each block begins with the name; the arguments come in pieces."""
    events: list[Any] = []
    for index, block in enumerate(claude_blocks()):
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"a":', " 1}")]
        events += fake_anthropic.block_events(index, {**block, "input": {}}, pieces)
    return fake_anthropic.stream_of(events, stop_reason="tool_use")


def nova_stream() -> Reply:
    """Bedrock's Converse API."""
    events: list[Any] = []
    for index, name in enumerate(CALLED):
        start = {"toolUse": {"toolUseId": f"t{index}", "name": name}}
        events.append({"contentBlockStart": {"contentBlockIndex": index, "start": start}})
        delta = {"toolUse": {"input": '{"a": 1}'}}
        events.append({"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}})
        events.append({"contentBlockStop": {"contentBlockIndex": index}})
    return fake_bedrock.stream_of(events, "tool_use")


def nova() -> Reply:
    blocks = [
        {"toolUse": {"toolUseId": f"t{index}", "name": name, "input": {"a": 1}}}
        for index, name in enumerate(CALLED)
    ]
    return fake_bedrock.converse("", *blocks, reason="tool_use")


def cohere_stream() -> Reply:
    """A plan, then each call: its name, its arguments in pieces, its end."""
    plan = {"message": {"tool_plan": "First I look it up."}}
    events: list[Any] = [{"type": "tool-plan-delta", "delta": plan}]
    for index, name in enumerate(CALLED):
        begun = {**function(index, name), "function": {"name": name, "arguments": ""}}
        events += [
            {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": begun}}},
            *(
                {
                    "type": "tool-call-delta",
                    "index": index,
                    "delta": {"message": {"tool_calls": {"function": {"arguments": piece}}}},
                }
                for piece in ('{"a":', " 1}")
            ),
            {"type": "tool-call-end", "index": index},
        ]
    return fake_cohere.stream_of(events, "TOOL_CALL")


def gemini_parts() -> list[Any]:
    """Google's."""
    return [{"functionCall": {"name": name, "args": {"a": 1}}} for name in CALLED]


def mistral_deltas() -> list[Any]:
    """Two calls in one chunk: the wire has no more pieces."""
    calls = [{**function(index, name), "index": index} for index, name in enumerate(CALLED)]
    return [{"role": "assistant", "content": ""}, {"content": "", "tool_calls": calls}]


def ollama_calls() -> list[Any]:
    """Arguments are an object, and there is no id."""
    return [{"function": {"name": name, "arguments": {"a": 1}}} for name in CALLED]


TOOLS = (
    Tools(
        client_anthropic.CASE,
        lambda: fake_anthropic.message(content=claude_blocks(), stop_reason="tool_use"),
        claude_stream,
    ),
    Tools(client_bedrock.CASE, nova, nova_stream),
    Tools(
        client_cohere.CASE,
        lambda: fake_cohere.chat("", tool_calls=[function(i, name) for i, name in enumerate(CALLED)]),
        cohere_stream,
    ),
    Tools(
        client_google.CASE,
        lambda: fake_google.generation(content={"role": "model", "parts": gemini_parts()}),
        lambda: fake_google.chunks([[part] for part in gemini_parts()]),
    ),
    Tools(
        client_mistral.CASE,
        lambda: fake_mistral.chat("", tool_calls=[function(i, name) for i, name in enumerate(CALLED)]),
        lambda: fake_mistral.chunks(mistral_deltas(), "tool_calls"),
    ),
    Tools(
        client_ollama.CASE,
        lambda: fake_ollama.chat("", tool_calls=ollama_calls()),
        lambda: fake_ollama.parts([{"content": "", "tool_calls": [call]} for call in ollama_calls()]),
    ),
)


def calls(case: ClientCase, mode: Mode, *replies: Reply) -> list[SpanRecord]:
    """A call and a stream, as spans."""
    with case.server() as server, case.sync(server) as client, agent(mode, case.name) as exporter:
        server.reply(*replies)
        case.chat(client)
        if len(replies) > 1:
            list(case.stream(client))
    return exporter.spans


@pytest.mark.parametrize("mode", ["on", "content"])
@pytest.mark.parametrize("tools", TOOLS, ids=lambda tools: tools.case.name)
def test_tools_offered_and_called_are_told_by_name(tools: Tools, mode: Mode) -> None:
    """Whole and streamed, several at once, with content off as on."""
    spans = calls(tools.case, mode, tools.whole(), tools.streamed())
    assert len(spans) == 2
    for span in spans:
        assert span.attributes[names.TOOLS_OFFERED] == ["look_up"]
        assert span.attributes[names.TOOLS_CALLED] == CALLED
        assert names.ERROR_TYPE not in span.attributes
        assert span.attributes.get(names.STREAM_END, "complete") == "complete"


def test_a_plan_for_tools_is_reasoning() -> None:
    """Cohere's models say first what they are going to do."""
    (whole, streamed) = calls(
        client_cohere.CASE,
        "content",
        fake_cohere.chat("", tool_plan="First I look it up.", tool_calls=[function(0, "look_up")]),
        cohere_stream(),
    )
    for span in (whole, streamed):
        assert '{"type":"reasoning","content":"First I look it up."}' in str(
            span.attributes[names.OUTPUT_MESSAGES]
        )


def with_usage(reply: Reply, **more: Any) -> Reply:
    """An answer whose usage tells more."""
    return replace(reply, body={**reply.body, "usage": {**reply.body["usage"], **more}})


def tiers() -> tuple[tuple[ClientCase, Reply], ...]:
    """Answers of another service tier, where each provider tells it."""
    google = fake_google.generation()
    told = {**google.body["usageMetadata"], "trafficType": "PROVISIONED_THROUGHPUT"}
    bedrock = fake_bedrock.converse()
    return (
        (client_anthropic.CASE, with_usage(fake_anthropic.message(), service_tier="priority")),
        (client_mistral.CASE, with_usage(fake_mistral.chat(), service_tier="priority")),
        (client_google.CASE, replace(google, body={**google.body, "usageMetadata": told})),
        (client_bedrock.CASE, replace(bedrock, body={**bedrock.body, "serviceTier": {"type": "priority"}})),
    )


@pytest.mark.parametrize(("case", "reply"), tiers(), ids=[case.name for case, _ in tiers()])
def test_another_service_tier_is_told_and_has_no_usual_price(case: ClientCase, reply: Reply) -> None:
    """Its tokens cost more, or nothing: what they would usually cost would be wrong."""
    (span,) = calls(case, "on", reply)
    assert span.attributes[names.OPENAI_RESPONSE_SERVICE_TIER] in ("priority", "provisioned_throughput")
    assert names.COST not in span.attributes


def test_claude_of_the_priority_tier_has_no_cost() -> None:
    """A model that has a price; in a stream the tier comes with the first event."""
    usual = fake_anthropic.message(model="claude-sonnet-4-5")
    (span,) = calls(client_anthropic.CASE, "on", usual)
    assert names.COST in span.attributes
    (span,) = calls(client_anthropic.CASE, "on", with_usage(usual, service_tier="priority"))
    assert names.COST not in span.attributes
    stream = fake_anthropic.message_stream()
    events: list[Any] = list(stream.events or ())
    start, *others = events
    message = {
        **start["message"],
        "model": "claude-sonnet-4-5",
        "usage": {**start["message"]["usage"], "service_tier": "priority"},
    }
    priority = replace(stream, events=[{**start, "message": message}, *others])
    spans = calls(client_anthropic.CASE, "on", usual, priority)
    assert [names.COST in span.attributes for span in spans] == [True, False]


HEADERS: tuple[tuple[ClientCase, Reply, dict[str, str], dict[str, Any]], ...] = (
    (
        client_mistral.CASE,
        fake_mistral.chat(),
        {
            "x-ratelimit-limit-req-minute": "720",
            "x-ratelimit-remaining-req-minute": "717",
            "x-ratelimit-limit-tokens-minute": "5000000",
            "x-ratelimit-remaining-tokens-minute": "4999911",
            "mistral-correlation-id": "corr-1",
        },
        {
            names.RATE_LIMIT_REQUESTS: 720,
            names.RATE_LIMIT_REQUESTS_LEFT: 717,
            names.RATE_LIMIT_TOKENS: 5_000_000,
            names.RATE_LIMIT_TOKENS_LEFT: 4_999_911,
            names.REQUEST_ID: "corr-1",
        },
    ),
    (
        client_cohere.CASE,
        fake_cohere.chat(),
        {
            "x-trial-endpoint-call-limit": "20",
            "x-trial-endpoint-call-remaining": "19",
            "x-debug-trace-id": "trace-1",
        },
        {
            names.RATE_LIMIT_REQUESTS: 20,
            names.RATE_LIMIT_REQUESTS_LEFT: 19,
            names.REQUEST_ID: "trace-1",
        },
    ),
)


@pytest.mark.parametrize(
    ("case", "reply", "headers", "facts"), HEADERS, ids=[case.name for case, *_ in HEADERS]
)
def test_limits_and_ids_of_the_response_are_told(
    case: ClientCase, reply: Reply, headers: dict[str, str], facts: dict[str, Any]
) -> None:
    """Of an answer, of a stream, and of a refusal, which is when they matter."""
    refused = replace(case.error(429, "slow down"), headers=headers)
    with case.server() as server, case.sync(server) as client, agent("on", case.name) as exporter:
        server.reply(replace(reply, headers=headers), replace(case.stream_reply("one two"), headers=headers))
        case.chat(client)
        list(case.stream(client))
        server.reply(refused)
        with pytest.raises(case.errors):
            case.chat(client)
    assert len(exporter.spans) == 3
    for span in exporter.spans:
        assert {key: span.attributes.get(key) for key in facts} == facts


def test_a_refusal_is_told() -> None:
    """Claude says so by its stop reason."""
    spans = calls(
        client_anthropic.CASE,
        "on",
        fake_anthropic.message("", stop_reason="refusal"),
        fake_anthropic.stream_of([], stop_reason="refusal"),
    )
    assert [span.attributes.get(names.REFUSED) for span in spans] == [True, True]


def text_only(usage: dict[str, Any]) -> dict[str, Any]:
    """A usage without its details."""
    return {key: value for key, value in usage.items() if not key.endswith("Details")}


def test_gemini_counts_tokens_by_modality() -> None:
    """Sound and pictures have prices of their own: such a call has no price made of text's."""
    reply = fake_google.generation()
    usage = {
        **reply.body["usageMetadata"],
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 3},
            {"modality": "AUDIO", "tokenCount": 8},
        ],
        "candidatesTokensDetails": [{"modality": "TEXT", "tokenCount": 3}],
    }
    told = {**reply.body, "modelVersion": "gemini-2.5-flash"}
    del usage["cachedContentTokenCount"]  # which has a price of its own, too
    (text,) = calls(
        client_google.CASE, "on", replace(reply, body={**told, "usageMetadata": text_only(usage)})
    )
    assert names.COST in text.attributes
    (span,) = calls(client_google.CASE, "on", replace(reply, body={**told, "usageMetadata": usage}))
    assert names.COST not in span.attributes
    assert span.attributes[names.AUDIO_INPUT_TOKENS] == 8
    assert span.attributes[names.TEXT_INPUT_TOKENS] == 3
    assert span.attributes[names.TEXT_OUTPUT_TOKENS] == 3
