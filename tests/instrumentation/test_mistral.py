"""What only the Mistral adapter has: fill-in-the-middle, agents, parsed answers, the SDK's own tracing.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pydantic
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from client_cases import CANARY, agent, facts_like, observe, three_ways
from client_mistral import ASKED, CASE, COMPLETE, MESSAGES, STREAMED, sync_client
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_mistral import FakeMistral, Reply, chat, chunks
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.mistral.messages import read_message
from neuronscope_instrumentation.mistral.requests import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    endpoint_of,
    provider,
    read_request,
)
from neuronscope_instrumentation.mistral.responses import (
    fold_chunk,
    has_content,
    read_response,
)
from neuronscope_instrumentation.openai.embeddings import read_embeddings

integration = pytest.mark.integration


class Answer(pydantic.BaseModel):
    """A structured output."""

    city: str


@pytest.fixture(scope="module")
def server() -> Iterator[FakeMistral]:
    """One provider for the module."""
    with FakeMistral() as fake:
        yield fake


def fill_in_the_middle(client: Any, server: FakeProvider) -> Any:
    return client.fim.complete(model="m", prompt=CANARY, suffix="end", temperature=0.5)


def agent_complete(client: Any, server: FakeProvider) -> Any:
    return client.agents.complete(agent_id="ag-1", messages=MESSAGES[1:])


def parse(client: Any, server: FakeProvider) -> Any:
    server.reply(chat('{"city": "Paris"}'))
    return client.chat.parse(response_format=Answer, model="m", messages=MESSAGES).choices[0].message.parsed


def parse_what_does_not_fit(client: Any, server: FakeProvider) -> Any:
    server.reply(chat("[]"))
    with pytest.raises(pydantic.ValidationError):
        client.chat.parse(response_format=Answer, model="m", messages=MESSAGES)


def messages_from_a_generator(client: Any, server: FakeProvider) -> Any:
    return client.chat.complete(**{**ASKED, "messages": (message for message in MESSAGES)})


def stream_in_with(client: Any, server: FakeProvider) -> Any:
    with client.chat.stream(**ASKED) as stream:
        events = list(stream)
    return type(stream).__qualname__, events, stream.response.status_code, stream.response.is_closed


def ended_before_it_was_done(client: Any, server: FakeProvider) -> Any:
    events = chunks([{"content": "one"}, {"content": "two"}]).events or ()
    server.reply(Reply(events=events[:2], done=False))
    return list(client.chat.stream(**ASKED))


def no_model_call(client: Any, server: FakeProvider) -> Any:
    return client.models.list()


BILLED = {names.INPUT_TOKENS: 11, names.OUTPUT_TOKENS: 5}
WAYS: list[tuple[Any, list[dict[str, Any]]]] = [
    (fill_in_the_middle, [{**BILLED, names.OPERATION_NAME: "text_completion", names.REQUEST_MODEL: "m"}]),
    (agent_complete, [{**BILLED, names.OPERATION_NAME: "chat", names.INPUT_MESSAGE_COUNT: 1}]),
    (parse, [{**BILLED, names.OUTPUT_TYPE: "json"}]),
    (parse_what_does_not_fit, [{**BILLED, names.ERROR_TYPE: None}]),
    (messages_from_a_generator, [COMPLETE]),
    (stream_in_with, [STREAMED]),
    (ended_before_it_was_done, [{names.STREAM_END: "error", names.ERROR_TYPE: "stream_cut_off"}]),
    (no_model_call, []),
]


@integration
@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_call_is_one_span(server: FakeMistral, way: Any, expected: list[Any]) -> None:
    """Completions of code, agents, structured output; the service sees no difference."""
    for outcome in three_ways(lambda mode: observe(CASE, mode, way, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


CALLS = [
    {"index": 0, "id": "c1", "function": {"name": "find", "arguments": '{"q": '}},
    {"index": 1, "id": "c2", "function": {"name": "add", "arguments": {"x": 1}}},
]
DELTAS: list[Any] = [
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}]},
    {"content": "Let "},
    {"content": [{"type": "text", "text": "me"}]},
]
TOLD = [
    {"type": "reasoning", "content": "hm"},
    {"type": "text", "content": "Let me"},
    {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "cats"}},
    {"type": "tool_call", "id": "c2", "name": "add", "arguments": {"x": 1}},
]


def test_thinking_and_tools_are_apart_from_the_text() -> None:
    """Arguments as text or as an object, calls in parallel, thinking as a chunk of its own."""
    rest = {"index": 0, "id": "null", "function": {"name": "", "arguments": '"cats"}'}}
    calls: list[Any] = [CALLS[0], {**rest, "id": None}]
    events = chunks(
        [*DELTAS, {"tool_calls": [calls[0], CALLS[1]]}, {"tool_calls": [calls[1]]}], "tool_calls"
    ).events
    for as_bytes in (False, True):
        response = Response()
        for event in events or ():
            response = fold_chunk(response, json.dumps(event).encode() if as_bytes else event, True)
        assert response.messages is not None
        assert list(response.messages[0].parts) == TOLD
        assert response.messages[0].finish_reason == "tool_call"
        assert response.finish_reasons == ["tool_calls"]
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Let me"},
    ]
    whole = [{**CALLS[0], "function": {"name": "find", "arguments": '{"q": "cats"}'}}, CALLS[1]]
    read = read_response(chat(content=content, tool_calls=whole).body, True)
    assert read.messages is not None
    assert list(read.messages[0].parts) == TOLD


def test_messages_become_opentelemetrys_parts() -> None:
    """Pictures, documents, results of tools."""
    sent: Any = {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": "https://x.test/cat.png"},
            {"type": "document_url", "document_url": "https://x.test/paper.pdf"},
            {"type": "file", "file_id": "f1"},
            {"type": "novel"},
        ],
    }
    assert list(read_message(sent).parts) == [
        {"type": "uri", "modality": "image", "uri": "https://x.test/cat.png"},
        {"type": "uri", "modality": "document", "uri": "https://x.test/paper.pdf"},
        {"type": "file", "modality": "document", "file_id": "f1"},
        {"type": "novel"},
    ]
    result = read_message({"role": "tool", "tool_call_id": "c1", "content": "42"})
    assert list(result.parts) == [{"type": "tool_call_response", "id": "c1", "response": "42"}]


def test_the_length_of_a_vector_in_base64_is_told() -> None:
    """`encoding_format` may ask for it."""
    vector = base64.b64encode(bytes(4 * 7)).decode()
    answer = {"model": "mistral-embed", "data": [{"embedding": vector}], "usage": {"prompt_tokens": 3}}
    assert EMBEDDINGS.read_response is read_embeddings
    found = read_embeddings(json.dumps(answer).encode(), False)
    assert (found.dimensions, found.input_tokens) == (7, 3)


@pytest.mark.parametrize("odd", [b"", b"not json", b"[]", b'{"choices": 3, "usage": []}', None, "text", []])
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A server may say anything; readers do not raise."""
    assert read_response(odd, True) == Response()
    assert read_embeddings(odd, True) == Response()
    assert fold_chunk(Response(), odd, True).finish_reasons is None
    assert not has_content(odd)
    assert read_request({"body": odd}, True).model is None


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/fim/completions", COMPLETION),
        ("/v1/agents/completions", CHAT),
        ("/v1/embeddings", EMBEDDINGS),
        ("/v1/projects/p/locations/l/publishers/mistralai/models/m:rawPredict", CHAT),
        ("/v1/models", None),
        ("/v1/files", None),
    ],
)
def test_the_path_decides_the_endpoint(path: str, endpoint: Any) -> None:
    """Paths that call no model are left alone."""
    assert endpoint_of(path) is endpoint


def test_the_provider_is_told_by_host() -> None:
    """Cloud platforms have names of their own."""
    assert provider("api.mistral.ai") == "mistral_ai"
    assert provider("europe-west4-aiplatform.googleapis.com") == "gcp.vertex_ai"
    assert provider("x.eastus2.inference.ai.azure.com") == "azure.ai.inference"


@pytest.mark.any_names  # the SDK's own tracing writes on our span
@integration
@pytest.mark.parametrize("theirs_first", [False, True])
def test_the_sdks_own_tracing_is_not_a_second_span(
    server: FakeMistral, monkeypatch: pytest.MonkeyPatch, theirs_first: bool
) -> None:
    """Switched on by its variable, into the process's pipeline: ours, or the service's own."""
    monkeypatch.setenv("MISTRAL_SDK_TELEMETRY", "global")
    theirs = InMemorySpanExporter()
    if theirs_first:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(theirs))
        trace.set_tracer_provider(provider)
    with agent("on", "mistral") as exporter, sync_client(server) as client:
        client.chat.complete(**ASKED)
        list(client.chat.stream(**ASKED))
        assert [span.name for span in exporter.spans] == ["chat m", "chat m"]
    if theirs_first:
        assert [span.name for span in theirs.get_finished_spans()] == ["chat m", "chat m"]


@integration
def test_hooks_of_the_service_see_its_request(server: FakeMistral) -> None:
    """The user's header wins; its HTTP client is used."""
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    server.clear()
    seen: list[str] = []

    def note(request: httpx2.Request) -> None:
        seen.append(request.headers["traceparent"])

    with agent("on", "mistral"), sync_client(server) as client:
        http = client.sdk_configuration.client
        http.event_hooks["request"].append(note)
        client.chat.complete(**ASKED, http_headers={"Traceparent": own})
    assert isinstance(http, httpx2.Client)
    assert seen == [own]
    assert server.requests[0].headers["traceparent"] == [own]
