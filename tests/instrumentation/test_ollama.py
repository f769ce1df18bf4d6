"""What only the Ollama adapter has: completions, functions bound before us, thinking, pictures.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ollama import chat as chat_bound_before  # pyright: ignore[reportUnknownVariableType] # half annotated

from client_cases import CANARY, agent, facts_like, observe, observe_async, three_ways
from client_ollama import ASKED, CASE, COMPLETE, MESSAGES, sync_client
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_ollama import FakeOllama, Reply, completion, completion_stream, parts
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.ollama.responses import (
    fold_part,
    has_content,
    read_embeddings,
    read_response,
)

pytestmark = pytest.mark.integration

PROMPT: dict[str, Any] = {"model": "m", "prompt": CANARY, "system": "be brief", "options": ASKED["options"]}
COMPLETION = {
    **{key: value for key, value in COMPLETE.items() if key != names.INPUT_MESSAGE_COUNT},
    names.OPERATION_NAME: "text_completion",
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOllama]:
    """One server for the module."""
    with FakeOllama() as fake:
        yield fake


def generate(client: Any, server: FakeProvider) -> Any:
    server.reply(completion(CANARY))
    return client.generate(**PROMPT)


def generate_stream(client: Any, server: FakeProvider) -> Any:
    server.reply(completion_stream(f"{CANARY} two three four five"))
    return list(client.generate(**PROMPT, stream=True))


def embed_one(client: Any, server: FakeProvider) -> Any:
    return client.embed(model="e", input=CANARY, dimensions=3)


def old_embeddings(client: Any, server: FakeProvider) -> Any:
    return client.embeddings(model="e", prompt=CANARY)


def messages_from_a_generator(client: Any, server: FakeProvider) -> Any:
    return client.chat(**{**ASKED, "messages": (message for message in MESSAGES)})


def no_model_call(client: Any, server: FakeProvider) -> Any:
    return client.list()


def error_in_the_stream(client: Any, server: FakeProvider) -> Any:
    server.reply(Reply(events=[*(parts([{"content": "one"}]).events or ())[:1], {"error": CANARY}]))
    return list(client.chat(**ASKED, stream=True))


def ended_before_it_was_done(client: Any, server: FakeProvider) -> Any:
    server.reply(Reply(events=(parts([{"content": "one"}, {"content": "two"}]).events or ())[:2]))
    return list(client.chat(**ASKED, stream=True))


def send_into_the_generator(client: Any, server: FakeProvider) -> Any:
    stream = client.chat(**ASKED, stream=True)
    return [stream.send(None), next(stream), stream.close(), stream.close()]


WAYS: list[tuple[Any, list[dict[str, Any]]]] = [
    (generate, [COMPLETION]),
    (generate_stream, [{**COMPLETION, names.STREAM_CHUNKS: 6, names.STREAM_END: "complete"}]),
    (embed_one, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 1, names.OPERATION_NAME: "embeddings"}]),
    (old_embeddings, [{names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 1, names.INPUT_TOKENS: None}]),
    (messages_from_a_generator, [COMPLETE]),
    (no_model_call, []),
    (
        error_in_the_stream,
        [
            {
                names.ERROR_TYPE: "ollama._types.ResponseError",
                names.STREAM_END: "error",
                names.HTTP_RESPONSE_STATUS_CODE: None,  # the SDK's own -1 is none
            }
        ],
    ),
    (ended_before_it_was_done, [{names.ERROR_TYPE: "stream_cut_off", names.OUTPUT_TOKENS: None}]),
    (send_into_the_generator, [{names.STREAM_END: "client_closed", names.STREAM_CHUNKS: 2}]),
]


@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_call_is_one_span(server: FakeOllama, way: Any, expected: list[Any]) -> None:
    """Chats, completions, embeddings; the service sees no difference."""
    for outcome in three_ways(lambda mode: observe(CASE, mode, way, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


async def agenerate(client: Any, server: FakeProvider) -> Any:
    return [part async for part in await client.generate(**PROMPT, stream=True)]


async def asend(client: Any, server: FakeProvider) -> Any:
    stream = await client.chat(**ASKED, stream=True)
    return [await stream.asend(None), await anext(stream), await stream.aclose(), type(stream).__name__]


@pytest.mark.parametrize(("way", "end"), [(agenerate, "complete"), (asend, "client_closed")])
def test_asynchronous_generators_stay_what_they_are(server: FakeOllama, way: Any, end: str) -> None:
    """`asend`, `aclose` and the type."""
    for outcome in three_ways(lambda mode: observe_async(CASE, mode, way, server)):
        (span,) = outcome.spans
        assert span.attributes[names.STREAM_END] == end


def test_functions_bound_before_us_are_observed(server: FakeOllama, monkeypatch: pytest.MonkeyPatch) -> None:
    """`from ollama import chat`, bound to the module's own client, before the agent is there."""
    module_client = chat_bound_before.__self__  # type: ignore[attr-defined]
    with sync_client(server) as client:
        monkeypatch.setattr(module_client, "_client", client._client)
        with agent("on", "ollama") as exporter:
            chat_bound_before(**ASKED)
            list(sys.modules["ollama"].generate(**PROMPT, stream=True))
            assert [span.name for span in exporter.spans] == ["chat m", "text_completion m"]


def test_the_services_own_header_wins(server: FakeOllama) -> None:
    """Given with the client; never two."""
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    server.clear()
    with agent("on", "ollama"), sync_client(server, headers={"Traceparent": own}) as client:
        client.chat(**ASKED)
    assert server.requests[0].headers["traceparent"] == [own]


@pytest.mark.parametrize("streams", [False, True])
def test_thinking_and_tools_are_apart_from_the_text(server: FakeOllama, streams: bool) -> None:
    """Pictures by size and hash, results of tools with their tool's name."""
    call = {"function": {"name": "look_up", "arguments": {"city": "Paris"}}}
    pieces: list[Any] = [
        {"thinking": "h"},
        {"thinking": "m"},
        {"content": "Let "},
        {"content": "me", "tool_calls": [call]},
    ]
    picture = b"hello"
    messages: Any = [
        {"role": "user", "content": "look", "images": [picture]},
        {"role": "tool", "tool_name": "look_up", "content": "42"},
    ]

    def use(client: Any, server: FakeProvider) -> Any:
        if streams:
            server.reply(parts(pieces))
            return list(client.chat(model="m", messages=messages, stream=True))
        whole = {"role": "assistant", "content": "Let me", "thinking": "hm", "tool_calls": [call]}
        server.reply(Reply(body={"model": "m", "message": whole, "done": True, "done_reason": "stop"}))
        return client.chat(model="m", messages=messages)

    _, content = three_ways(lambda mode: observe(CASE, mode, use, server))
    attributes = content.spans[0].attributes
    assert json.loads(str(attributes[names.OUTPUT_MESSAGES])) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "Let me"},
                {"type": "tool_call", "name": "look_up", "arguments": {"city": "Paris"}},
            ],
            "finish_reason": "stop",
        }
    ]
    asked, result = json.loads(str(attributes[names.INPUT_MESSAGES]))
    assert asked["parts"][1]["sha256"] == hashlib.sha256(picture).hexdigest()
    assert asked["parts"][1]["size"] == len(picture)
    assert result["parts"] == [{"type": "tool_call_response", "name": "look_up", "response": "42"}]
    assert base64.b64encode(picture).decode() not in repr(content.spans)


def test_a_prompt_and_its_system_text_are_told(server: FakeOllama) -> None:
    """A completion's content is in the words of a conversation."""
    attributes = observe(CASE, "content", generate, server).spans[0].attributes
    assert json.loads(str(attributes[names.INPUT_MESSAGES])) == [
        {"role": "user", "parts": [{"type": "text", "content": CANARY}]}
    ]
    assert json.loads(str(attributes[names.SYSTEM_INSTRUCTIONS])) == [{"type": "text", "content": "be brief"}]


@pytest.mark.parametrize("odd", [None, "text", [], {"message": 3, "eval_count": "5", "embeddings": 1}])
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_response(odd, True) == Response()
    assert read_embeddings(odd, True) == Response()
    assert fold_part(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)
