"""What only the Anthropic adapter has: helpers, raw responses, cloud platforms, blocks of all kinds.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import anthropic.lib.bedrock
import anthropic.lib.vertex
import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
from client_anthropic import ASKED, CASE, COMPLETE, MESSAGES, STREAMED, async_client, sync_client
from client_cases import CANARY, MODES, agent, facts_like, observe, observe_async, plain, three_ways
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_anthropic import (
    FakeAnthropic,
    Reply,
    block_events,
    error,
    message,
    message_stream,
    stream_of,
)
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.anthropic.chunks import fold_message_event, has_content
from neuronscope_instrumentation.anthropic.messages import read_message
from neuronscope_instrumentation.anthropic.peers import by_host, provider_for
from neuronscope_instrumentation.anthropic.requests import calls_model
from neuronscope_instrumentation.anthropic.responses import read_response

integration = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAnthropic]:
    """One provider for the module."""
    with FakeAnthropic() as fake:
        yield fake


@pytest.fixture(autouse=True)
def forget_requests(server: FakeAnthropic) -> None:
    """Each test sees its own requests."""
    server.clear()


# --- every way to call ------------------------------------------------------------------------------
def stream_helper(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        kinds = [event.type for event in helper]
    return type(helper).__qualname__, kinds, helper.get_final_message(), helper.request_id


def stream_helper_text(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        return list(helper.text_stream), helper.get_final_text()


def stream_helper_final(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        return helper.get_final_message()


def beta_create(client: Any, server: FakeProvider) -> Any:
    return client.beta.messages.create(**ASKED, betas=["some-beta"])


def beta_stream(client: Any, server: FakeProvider) -> Any:
    with client.beta.messages.stream(**ASKED) as helper:
        return [event.type for event in helper], helper.get_final_message()


def raw(client: Any, server: FakeProvider) -> Any:
    response = client.messages.with_raw_response.create(**ASKED)
    assert not hasattr(response, "content_blocks")
    parsed = response.parse()
    return type(response).__qualname__, response.headers["x-request-id"], parsed, response.parse() is parsed


def raw_never_parsed(client: Any, server: FakeProvider) -> Any:
    return client.messages.with_raw_response.create(**ASKED).status_code


def raw_stream(client: Any, server: FakeProvider) -> Any:
    response = client.messages.with_raw_response.create(**ASKED, stream=True)
    return response.headers["x-request-id"], list(response.parse())


def raw_stream_bytes(client: Any, server: FakeProvider) -> Any:
    response = client.messages.with_raw_response.create(**ASKED, stream=True)
    return b"".join(response.http_response.iter_bytes())


def streaming_parse(client: Any, server: FakeProvider) -> Any:
    with client.messages.with_streaming_response.create(**ASKED) as response:
        return type(response).__qualname__, response.headers["x-request-id"], response.parse()


def streaming_bytes(client: Any, server: FakeProvider) -> Any:
    with client.messages.with_streaming_response.create(**ASKED) as response:
        return b"".join(response.iter_bytes())


def streaming_lines(client: Any, server: FakeProvider) -> Any:
    with client.messages.with_streaming_response.create(**ASKED, stream=True) as response:
        return list(response.iter_lines())


def messages_from_a_generator(client: Any, server: FakeProvider) -> Any:
    messages: Any = (message for message in MESSAGES)
    return client.messages.create(**{**ASKED, "messages": messages})


def retried(client: Any, server: FakeProvider) -> Any:
    server.reply(error(429, retry_after_s=0.01), error(529, retry_after_s=0.01))
    return client.with_options(max_retries=2).messages.create(**ASKED)


def no_model_call(client: Any, server: FakeProvider) -> Any:
    counted = client.messages.count_tokens(model="m", messages=MESSAGES)
    return counted, list(client.models.list())


def helper_left_early(client: Any, server: FakeProvider) -> Any:
    with client.messages.stream(**ASKED) as helper:
        return next(iter(helper)).type


def error_event(client: Any, server: FakeProvider) -> Any:
    events = [*(message_stream("one").events or ())[:4]]
    failure = {"type": "error", "error": {"type": "overloaded_error", "message": CANARY}}
    server.reply(Reply(events=[*events, failure]))
    chunks: list[Any] = []
    try:
        for event in client.messages.create(**ASKED, stream=True):
            chunks.append(event)  # noqa: PERF402 - what came before the error counts
    except anthropic.APIStatusError as caught:
        return chunks, plain(caught)
    return chunks


def cut_before_its_end(client: Any, server: FakeProvider) -> Any:
    server.reply(stream_of((message_stream("one two").events or ())[2:-2], stop_reason=None))
    return list(client.messages.create(**ASKED, stream=True))


PLAIN_GENERATOR = {**COMPLETE, names.INPUT_MESSAGE_COUNT: None}
PARTIAL = {
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: None,
    names.STREAM_END: "error",
}
WAYS: list[tuple[Any, list[dict[str, Any]]]] = [
    (stream_helper, [STREAMED]),
    (stream_helper_text, [STREAMED]),
    (stream_helper_final, [STREAMED]),
    (beta_create, [COMPLETE]),
    (beta_stream, [STREAMED]),
    (raw, [COMPLETE]),
    (raw_never_parsed, [COMPLETE]),
    (raw_stream, [{**STREAMED, names.STREAM_CHUNKS: 11}]),  # bytes: the ping counts
    (raw_stream_bytes, [{**STREAMED, names.STREAM_CHUNKS: 11}]),
    (streaming_parse, [COMPLETE]),
    (streaming_bytes, [COMPLETE]),
    (streaming_lines, [{**STREAMED, names.STREAM_CHUNKS: 11}]),
    (messages_from_a_generator, [PLAIN_GENERATOR]),
    (retried, [COMPLETE]),
    (no_model_call, []),
    (
        helper_left_early,
        [{names.STREAM_END: "client_closed", names.ERROR_TYPE: None, names.INPUT_TOKENS: 11}],
    ),
    (error_event, [PARTIAL]),
    (cut_before_its_end, [{**PARTIAL, names.ERROR_TYPE: "stream_cut_off"}]),
]


@integration
@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_way_to_call_is_one_span(server: FakeAnthropic, way: Any, expected: list[Any]) -> None:
    """Helpers, beta paths, raw and streaming responses; the service sees no difference."""
    for outcome in three_ways(lambda mode: observe(CASE, mode, way, server)):
        assert [
            facts_like(span.attributes, facts) for span, facts in zip(outcome.spans, expected, strict=True)
        ] == expected


async def astream_helper(client: Any, server: FakeProvider) -> Any:
    async with client.messages.stream(**ASKED) as helper:
        kinds = [event.type async for event in helper]
    return type(helper).__qualname__, kinds, await helper.get_final_message()


async def astream_helper_text(client: Any, server: FakeProvider) -> Any:
    async with client.messages.stream(**ASKED) as helper:
        return [text async for text in helper.text_stream]


async def abeta(client: Any, server: FakeProvider) -> Any:
    return await client.beta.messages.create(**ASKED)


async def araw(client: Any, server: FakeProvider) -> Any:
    response: Any = await client.messages.with_raw_response.create(**ASKED)
    parsed = response.parse()
    return response.headers["x-request-id"], await parsed if asyncio.iscoroutine(parsed) else parsed


async def astreaming(client: Any, server: FakeProvider) -> Any:
    async with client.messages.with_streaming_response.create(**ASKED) as response:
        return await response.parse()


@integration
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (astream_helper, STREAMED),
        (astream_helper_text, STREAMED),
        (abeta, COMPLETE),
        (araw, COMPLETE),
        (astreaming, COMPLETE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_asynchronous_way_too(server: FakeAnthropic, way: Any, expected: dict[str, Any]) -> None:
    """The stream manager is not awaited, its helpers are the SDK's."""
    for outcome in three_ways(lambda mode: observe_async(CASE, mode, way, server)):
        (span,) = outcome.spans
        assert facts_like(span.attributes, expected) == expected


@integration
def test_streams_are_the_sdks_own(server: FakeAnthropic) -> None:
    """`isinstance` holds, and the response below is at hand."""
    with agent("on", "anthropic"), sync_client(server) as client:
        with client.messages.create(**ASKED, stream=True) as stream:
            assert issubclass(type(stream), anthropic.Stream)
            assert stream.response.status_code == 200
            next(stream)
        assert stream.response.is_closed

    async def run() -> None:
        async with async_client(server) as client:
            stream: Any = await client.messages.create(**ASKED, stream=True)
            assert issubclass(type(stream), anthropic.AsyncStream)
            await stream.close()
            assert stream.response.is_closed

    with agent("on", "anthropic"):
        asyncio.run(run())


# --- blocks -----------------------------------------------------------------------------------------
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


# --- platforms --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages", True),
        ("/v1/messages?beta=true", True),
        ("https://gateway.test/anthropic/v1/messages", True),
        ("/v1/messages/count_tokens", False),
        ("/v1/messages/batches", False),
        ("/v1/models", False),
    ],
)
def test_the_path_decides(path: str, expected: bool) -> None:
    """Paths that call no model are left alone."""
    assert calls_model(path) is expected


def test_the_provider_is_told_by_client_or_host() -> None:
    """Cloud platforms have names of their own."""
    assert by_host("api.anthropic.com") == "anthropic"
    assert by_host("bedrock-runtime.eu-west-1.amazonaws.com") == "aws.bedrock"
    assert by_host("europe-west1-aiplatform.googleapis.com") == "gcp.vertex_ai"
    assert provider_for(anthropic.Anthropic)("127.0.0.1") == "anthropic"

    class Mine(anthropic.lib.bedrock.AsyncAnthropicBedrock):
        """A service's own."""

    assert provider_for(Mine)("127.0.0.1") == "aws.bedrock"


@integration
@pytest.mark.parametrize("way", ["with_raw_response", "with_streaming_response"])
def test_bedrocks_frames_are_read_along(server: FakeAnthropic, way: str) -> None:
    """Where the service gets the response itself, its body is a binary event stream."""
    with agent("on", "anthropic") as exporter, httpx2.Client(verify=False) as http:
        client: Any = anthropic.lib.bedrock.AnthropicBedrock(
            api_key="k", aws_region="eu-west-1", base_url=server.base_url, http_client=http
        )
        asked: Any = {"model": "m", "max_tokens": 9, "messages": MESSAGES, "stream": True}
        if way == "with_raw_response":
            stream: Any = client.messages.with_raw_response.create(**asked).parse()
            assert len(list(stream)) == 10
        else:
            with client.messages.with_streaming_response.create(**asked) as response:
                assert b"".join(response.iter_bytes())
    (span,) = exporter.spans
    assert span.attributes[names.STREAM_END] == "complete"
    assert span.attributes[names.INPUT_TOKENS] == 11
    assert span.attributes[names.OUTPUT_TOKENS] == 5
    assert span.attributes[names.FINISH_REASONS] == ["end_turn"]


@integration
def test_vertex_goes_through_the_same_choke_point(server: FakeAnthropic) -> None:
    """The model is in the body when we look, in the path when it is sent; copies are observed too."""
    with agent("on", "anthropic") as exporter, httpx2.Client(verify=False) as http:
        client = anthropic.lib.vertex.AnthropicVertex(
            region="eu", project_id="p", access_token="t", base_url=server.base_url, http_client=http
        )
        client.messages.create(**ASKED)
        list(client.with_options(timeout=3).messages.create(**ASKED, stream=True))
    assert [request.path for request in server.requests] == [
        "/projects/p/locations/eu/publishers/anthropic/models/m:rawPredict",
        "/projects/p/locations/eu/publishers/anthropic/models/m:streamRawPredict",
    ]
    expected = {names.PROVIDER_NAME: "gcp.vertex_ai", names.REQUEST_MODEL: "m", names.INPUT_TOKENS: 11}
    assert [facts_like(span.attributes, expected) for span in exporter.spans] == [expected] * 2


@integration
def test_bedrock_goes_through_the_same_choke_point(server: FakeAnthropic) -> None:
    """With a bearer token no AWS library is needed."""
    with agent("on", "anthropic") as exporter, httpx2.Client(verify=False) as http:
        client: Any = anthropic.lib.bedrock.AnthropicBedrock(
            api_key="k", aws_region="eu-west-1", base_url=server.base_url, http_client=http
        )
        client.messages.create(**ASKED)
    assert [request.path for request in server.requests] == ["/model/m/invoke"]
    expected = {names.PROVIDER_NAME: "aws.bedrock", names.REQUEST_MODEL: "m", names.OUTPUT_TOKENS: 5}
    assert facts_like(exporter.spans[0].attributes, expected) == expected


@integration
def test_only_the_given_client_and_its_copies_are_observed(server: FakeAnthropic) -> None:
    """`with_options` and `copy` make clients that stand for the first."""
    with agent("on") as exporter, sync_client(server) as mine, sync_client(server) as other:
        ns.uninstrument()
        assert ns.hooks.instrument_anthropic(mine) is mine
        other.messages.create(**{**ASKED, "model": "other"})
        mine.messages.create(**{**ASKED, "model": "mine"})
        mine.with_options(timeout=9).copy().messages.create(**{**ASKED, "model": "copied"})
        assert [span.attributes[names.REQUEST_MODEL] for span in exporter.spans] == ["mine", "copied"]


# --- the SDK's own tracing --------------------------------------------------------------------------
def use(client: Any) -> None:
    client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        stream.until_done()
    client.messages.count_tokens(model="m", messages=MESSAGES)


@integration
def test_our_provider_does_not_wake_the_sdks_own_tracing(server: FakeAnthropic) -> None:
    """Without us it would make no span and send no header: so it does not now."""
    with agent("on", "anthropic") as exporter, sync_client(server) as client:
        use(client)
        assert [span.name for span in exporter.spans] == ["chat m", "chat m"]
        assert ["traceparent" in request.headers for request in server.requests] == [True, True, False]


@pytest.mark.any_names  # the SDK's own tracing writes on our span
@integration
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_services_own_pipeline_gets_one_span_a_call(server: FakeAnthropic, mode: Any) -> None:
    """What the SDK alone would have told is on our span, and its header is still sent."""
    theirs = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    trace.set_tracer_provider(provider)
    with agent(mode, "anthropic") as exporter, sync_client(server) as client:
        client.messages.create(**ASKED, thinking={"type": "adaptive"})
        list(client.messages.create(**ASKED, stream=True))
        server.reply(error(401, CANARY))
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**ASKED)
        client.messages.count_tokens(model="m", messages=MESSAGES)
        calls = exporter.spans
    spans = theirs.get_finished_spans()
    assert [span.name for span in spans] == ["chat m"] * 3 + ["anthropic.messages.count_tokens"]
    assert len([span for span in calls if names.INPUT_TOKENS in span.attributes]) == 2
    attributes = dict(spans[0].attributes or {})
    assert attributes["anthropic.thinking.type"] == "adaptive"
    assert attributes[names.INPUT_TOKENS] == 11
    assert dict(spans[2].attributes or {})[names.ERROR_TYPE] == "anthropic.AuthenticationError"
    assert spans[2].status.status_code is trace.StatusCode.ERROR
    assert (CANARY in repr([span.attributes for span in spans])) is (mode == "content")
    for span, request in zip(spans, server.requests, strict=True):
        assert span.context is not None
        flags = int(span.context.trace_flags)
        identity = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{flags:02x}"
        assert request.headers["traceparent"] == [identity]


@integration
def test_a_provider_given_to_the_client_is_undisturbed(server: FakeAnthropic) -> None:
    """Spans that go elsewhere double nothing."""
    theirs = InMemorySpanExporter()
    private = TracerProvider()
    private.add_span_processor(SimpleSpanProcessor(theirs))
    option: Any = {"tracer_provider": private}
    with (
        agent("on", "anthropic") as exporter,
        sync_client(server, open_telemetry=option) as client,
    ):
        client.messages.create(**ASKED)
        assert [span.name for span in exporter.spans] == ["chat m"]
    (span,) = theirs.get_finished_spans()
    assert span.name == "anthropic.messages.create"


def test_what_headers_tell(server: FakeProvider) -> None:
    """The provider's id of a call, what its limits leave, and how often the SDK had to try."""
    told = {
        "request-id": "req-1",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-tokens-remaining": "39000",
    }
    answers = (message("one"), message_stream("one two"), error(400, "no"))
    with agent("on", "anthropic") as exporter, sync_client(server, max_retries=1) as client:
        busy = error(529, "busy")
        server.reply(dataclasses.replace(busy, headers={"retry-after-ms": "1"}))
        server.reply(*[dataclasses.replace(answer, headers=told) for answer in answers])
        client.messages.create(**ASKED)
        list(client.messages.create(**ASKED, stream=True))
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ASKED)
    assert [span.attributes.get(names.HTTP_RESEND_COUNT) for span in exporter.spans] == [1, None, None]
    for span in exporter.spans:
        assert span.attributes[names.REQUEST_ID] == "req-1"
        assert span.attributes[names.RATE_LIMIT_REQUESTS] == 50
        assert span.attributes[names.RATE_LIMIT_REQUESTS_LEFT] == 49
        assert span.attributes[names.RATE_LIMIT_TOKENS_LEFT] == 39000
