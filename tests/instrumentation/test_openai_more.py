"""Fine points of the OpenAI adapter: headers, choices, tools, sound, verdicts; and what calls no model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import neuronscope as ns
from neuronscope.signals import names
from neuronscope.testing.fake_media import (
    image_stream,
    moderation,
    search,
    speech,
    speech_events,
    text_completion,
    transcription,
)
from neuronscope.testing.fake_openai import (
    FakeOpenAI,
    Reply,
    chat_events,
    completion,
    delta,
)
from openai_cases import CANARY, agent, observe, sync_client, three_ways

pytestmark = pytest.mark.integration

MESSAGES: Any = [{"role": "user", "content": CANARY}]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


# --- chats -----------------------------------------------------------------------------------------
def test_what_a_chat_tells_without_its_content(server: FakeOpenAI) -> None:
    """Several choices, log probabilities, refusals, tools offered and called, modalities, effort."""
    calls = [
        {"id": "a", "type": "function", "function": {"name": "find", "arguments": CANARY}},
        {"id": "b", "type": "custom", "custom": {"name": "shell", "input": CANARY}},
    ]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "assistant", "content": None, "refusal": CANARY},
    ]
    choices: list[Any] = [
        {"index": index, "message": each, "finish_reason": "stop", "logprobs": {"content": []}}
        for index, each in enumerate(messages)
    ]
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 7,
        "total_tokens": 16,
        "prompt_tokens_details": {"audio_tokens": 6, "text_tokens": 3, "image_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 5},
    }
    deltas: list[Any] = [
        delta({"tool_calls": [{"index": 0, **calls[0]}, {"index": 1, **calls[1]}]}),
        {**delta({"refusal": CANARY}, index=1, finish_reason="stop"), "logprobs": {"content": []}},
        delta({}, finish_reason="stop"),
    ]
    final = {**chat_events([]).events[0], "usage": usage}  # type: ignore[index]

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(completion(choices, usage=usage))
        server.reply(Reply(events=[*(chat_events(deltas, usage=False).events or ()), final]))
        asked: dict[str, Any] = {
            "model": "m",
            "messages": MESSAGES,
            "n": 2,
            "reasoning_effort": "high",
            "tools": [
                {"type": "function", "function": {"name": "find"}},
                {"type": "custom", "custom": {"name": "shell"}},
            ],
        }
        return client.chat.completions.create(**asked), list(
            client.chat.completions.create(**asked, stream=True)
        )

    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        for span in outcome.spans:
            expected = {
                names.REQUEST_CHOICE_COUNT: 2,
                names.REASONING_LEVEL: "high",
                names.TOOLS_OFFERED: ["find", "shell"],
                names.TOOLS_CALLED: ["find", "shell"],
                names.REFUSED: True,
                names.LOGPROBS: True,
                names.AUDIO_INPUT_TOKENS: 6,
                names.TEXT_INPUT_TOKENS: 3,
                names.AUDIO_OUTPUT_TOKENS: 5,
                names.FINISH_REASONS: ["stop", "stop"],
            }
            assert {key: span.attributes.get(key) for key in expected} == expected
        assert len(outcome.spans) == 2


def test_functions_of_old(server: FakeOpenAI) -> None:
    """`functions` and `function_call`, which old models know instead of tools."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        message = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}}
        server.reply(completion([{"index": 0, "message": message, "finish_reason": "function_call"}]))
        functions: Any = [{"name": "find", "parameters": {}}]
        return client.chat.completions.create(model="m", messages=MESSAGES, functions=functions)

    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.TOOLS_OFFERED] == ["find"]
        assert span.attributes[names.TOOLS_CALLED] == ["find"]


# --- the others ------------------------------------------------------------------------------------
def test_sound_as_events_tells_its_tokens(server: FakeOpenAI) -> None:
    """Read whole, or unread by the SDK; and sound is counted, never kept."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(speech_events(), speech_events(), speech())
        asked: dict[str, Any] = {"model": "s", "input": CANARY, "voice": "alloy"}
        whole = client.audio.speech.create(**asked, stream_format="sse").content
        with client.audio.speech.with_streaming_response.create(**asked, stream_format="sse") as response:
            events = list(response.iter_lines())
        with client.audio.speech.with_streaming_response.create(**asked) as response:
            return whole, events, b"".join(response.iter_bytes())

    for outcome in three_ways(lambda mode: observe(mode, scenario, server)):
        first, second, third = outcome.spans
        for span in (first, second):
            assert span.attributes[names.OUTPUT_BYTES] == 16
            assert span.attributes[names.OUTPUT_TOKENS] == 5
        assert third.attributes[names.OUTPUT_BYTES] == 20
        assert "not-really" not in repr(outcome.spans)


def test_subtitles_and_seconds(server: FakeOpenAI) -> None:
    """Text answers are text; models that are billed by time tell seconds."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        subtitles = Reply(body=f"1\n{CANARY}".encode(), headers={"content-type": "text/plain"})
        timed = {"text": CANARY, "usage": {"type": "duration", "seconds": 4.5}}
        server.reply(subtitles, subtitles, Reply(body=timed))
        asked: dict[str, Any] = {"model": "t", "file": ("a.mp3", b"sound")}
        return (
            client.audio.transcriptions.create(**asked, response_format="srt"),
            client.audio.transcriptions.with_raw_response.create(**asked, response_format="srt").text,
            client.audio.transcriptions.create(**asked),
        )

    on, content = three_ways(lambda mode: observe(mode, scenario, server))
    assert on.spans[2].attributes[names.AUDIO_SECONDS] == 4.5
    assert all(CANARY in str(span.attributes[names.OUTPUT_MESSAGES]) for span in content.spans)


def test_pictures_are_hashed(server: FakeOpenAI) -> None:
    """With content on: size and digest; without: nothing but their number."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(image_stream())
        return list(client.images.generate(model="i", prompt=CANARY, stream=True, partial_images=1))

    (span,) = observe("content", scenario, server).spans
    (told,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
    (part,) = told["parts"]
    assert (part["type"], part["modality"], part["mime_type"], part["size"]) == (
        "blob",
        "image",
        "image/png",
        8,
    )


def test_a_verdict_on_several_inputs(server: FakeOpenAI) -> None:
    """Nothing flagged is an answer too; parts of a message count as its parts."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(moderation(), moderation(["hate"]))
        parts: Any = [{"type": "text", "text": CANARY}]
        return client.moderations.create(input=[CANARY, "b"]), client.moderations.create(input=parts)

    on, content = three_ways(lambda mode: observe(mode, scenario, server))
    assert [span.attributes[names.MODERATION_FLAGGED] for span in on.spans] == [False, True]
    assert [span.attributes[names.INPUT_COUNT] for span in on.spans] == [2, 1]
    assert all(CANARY in str(span.attributes[names.INPUT_MESSAGES]) for span in content.spans)


def test_old_completions_with_several_prompts(server: FakeOpenAI) -> None:
    """Prompts as texts or as tokens."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(text_completion(CANARY, choices=[]), text_completion(CANARY))
        return (
            client.completions.create(model="m", prompt=[CANARY, "b"], stop="x"),
            client.completions.create(model="m", prompt=[1, 2, 3], echo=True),
        )

    _, content = three_ways(lambda mode: observe(mode, scenario, server))
    assert [span.attributes[names.INPUT_COUNT] for span in content.spans] == [2, 1]


def test_a_search_in_the_providers_store(server: FakeOpenAI) -> None:
    """A retrieval like any other: of the scope's retrieval spans, not of its model calls."""
    with ns.Platform(exporters=[], deferred=False), sync_client(server) as client:
        ns.instrument("openai")
        server.reply(search("a", "b"))
        with ns.Scope("t") as scope:
            client.vector_stores.search("vs-1", query="q")
        (found,) = scope.artifact.retrieval_spans
        assert (found.collection, found.store, list(found.ids)) == ("vs-1", "openai", ["file-0", "file-1"])
        assert scope.artifact.llm_spans == []


# --- everywhere the same ---------------------------------------------------------------------------
def test_the_module_level_client(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """`openai.chat.completions.create` and its siblings, with the settings of the module."""
    monkeypatch.setattr(openai, "api_key", "x")
    monkeypatch.setattr(openai, "base_url", f"{server.base_url}/")
    openai_state: Any = openai
    monkeypatch.setattr(openai_state, "_client", None)
    with agent("on") as exporter:
        openai.chat.completions.create(model="m", messages=MESSAGES)
        openai.responses.create(model="m", input="hi")
        openai.embeddings.create(model="e", input="hi")
        openai.moderations.create(input="hi")
        openai.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    assert [span.attributes[names.OPERATION_NAME] for span in exporter.spans] == [
        "chat",
        "chat",
        "embeddings",
        "moderation",
        "chat",
    ]
    openai_state._client.close()


def no_model_works(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    """Bookkeeping of all kinds."""
    server.reply(*[Reply(body={"id": "x", "object": "x", "data": [], "has_more": False})] * 9)
    client.models.retrieve("m")
    client.files.list()
    client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    client.batches.create(input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h")
    client.batches.retrieve("b")
    client.vector_stores.create(name="v")
    client.chat.completions.retrieve("chatcmpl-1")
    client.chat.completions.list()
    client.conversations.create()


def test_what_no_model_works_on_has_no_span(server: FakeOpenAI) -> None:
    """Files, batches, stores, stored completions and conversations run untouched."""
    for outcome in three_ways(lambda mode: observe(mode, no_model_works, server)):
        assert outcome.spans == []
        assert len(outcome.requests) == 9
    assert not any("traceparent" in request.headers for request in server.requests)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_plain_transcription_has_its_words(server: FakeOpenAI) -> None:
    """With content on only."""

    def scenario(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(transcription(CANARY))
        translations: Any = client.audio.translations  # deprecated, not gone
        create = translations.create
        return create(model="t", file=("a.mp3", b"sound"), prompt=CANARY)

    _, content = three_ways(lambda mode: observe(mode, scenario, server))
    assert CANARY in str(content.spans[0].attributes[names.INPUT_MESSAGES])
