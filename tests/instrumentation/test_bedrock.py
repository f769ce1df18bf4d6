"""What only the Bedrock adapter has: conversations, their event streams, what else botocore calls.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import neuronscope as ns
from client_bedrock import ASKED, CASE, COMPLETE, STREAMED, async_client, session, sync_client, where
from client_cases import CANARY, agent, facts_like, observe, three_ways
from neuronscope import platform
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_bedrock import FakeBedrock, converse, converse_stream, error, stream_of
from neuronscope_instrumentation.bedrock import converse as words
from neuronscope_instrumentation.bedrock.messages import read_message

integration = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeBedrock]:
    """One provider for the module."""
    with FakeBedrock() as fake:
        yield fake


def told(attributes: Any, key: str) -> Any:
    return json.loads(str(attributes[key]))


def no_wait(seconds: float) -> None:
    pass


# --- conversations -----------------------------------------------------------------------------------
@integration
def test_an_error_inside_a_stream_is_raised_and_told_by_its_code(server: FakeBedrock) -> None:
    """An event that is an exception: the service gets it, the span its code and what came before."""

    def call(client: Any, fake: Any) -> Any:
        events = [{"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": CANARY}}}]
        server.reply(stream_of([*events, {"throttlingException": {"message": CANARY}}]))
        seen: list[Any] = []
        stream = client.converse_stream(**ASKED)["stream"]
        try:
            for event in stream:
                seen.append(event)  # noqa: PERF402 - what came before counts
        except ClientError as failed:
            return seen, type(failed).__qualname__, failed.response
        finally:
            stream.close()  # else botocore leaves its connection to the garbage collector
        return seen

    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        (span,) = outcome.spans
        assert span.attributes[names.ERROR_TYPE] == "ThrottlingException"
        assert span.attributes[names.STREAM_END] == "error"
        assert span.attributes[names.STREAM_CHUNKS] == 2


@integration
def test_retries_are_one_span_that_tells_them(server: FakeBedrock, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's own, below the call."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", no_wait)
    with agent("on", "bedrock") as exporter, sync_client(server, retries={"total_max_attempts": 3}) as client:
        server.clear()
        server.reply(error(503), error(429), converse())
        client.converse(**ASKED)
        (span,) = exporter.spans
        assert len(server.requests) == 3
        assert span.attributes[names.HTTP_RESEND_COUNT] == 2
        assert facts_like(span.attributes, COMPLETE) == COMPLETE


def test_an_answer_with_citations_is_text_and_a_broken_one_an_error() -> None:
    """What the model has said is in pieces between its sources; a reason that no service asked for."""
    cited = {"citationsContent": {"content": [{"text": "one "}, {"text": "two"}], "citations": []}}
    message = {"role": "assistant", "content": [cited]}
    answer = {"output": {"message": message}, "stopReason": "malformed_tool_use"}
    (told,) = list(words.read_converse(answer, True).messages or [])
    assert told.parts == [{"type": "text", "content": "one two"}]
    assert told.finish_reason == "error"


@integration
def test_tools_reasoning_and_guardrails(server: FakeBedrock) -> None:
    """Streamed: each kind of block is what it is, whatever comes between."""
    events = [
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "s"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "Let me"}}},
        {
            "contentBlockStart": {
                "contentBlockIndex": 2,
                "start": {"toolUse": {"toolUseId": "t1", "name": "find"}},
            }
        },
        {
            "contentBlockStart": {
                "contentBlockIndex": 3,
                "start": {"toolUse": {"toolUseId": "t2", "name": "now"}},
            }
        },
        {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"q": '}}}},
        {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"toolUse": {"input": f'"{CANARY}"}}'}}}},
    ]
    guarded: Any = {"guardrailIdentifier": "g1", "guardrailVersion": "1"}

    def call(client: Any, fake: Any) -> Any:
        server.reply(stream_of(events, "tool_use"))
        return list(client.converse_stream(**ASKED, guardrailConfig=guarded)["stream"])

    on, content = three_ways(lambda mode: observe(CASE, mode, call, server))
    for outcome in (on, content):
        assert outcome.spans[0].attributes[names.BEDROCK_GUARDRAIL] == "g1"
    (said,) = told(content.spans[0].attributes, names.OUTPUT_MESSAGES)
    assert said == {
        "role": "assistant",
        "finish_reason": "tool_call",
        "parts": [
            {"type": "reasoning", "content": "hm"},
            {"type": "text", "content": "Let me"},
            {"type": "tool_call", "id": "t1", "name": "find", "arguments": {"q": CANARY}},
            {"type": "tool_call", "id": "t2", "name": "now"},
        ],
    }
    assert told(content.spans[0].attributes, names.TOOL_DEFINITIONS) == [
        {"type": "function", "name": "look_up"}
    ]


@integration
def test_boto3s_client_is_botocores(server: FakeBedrock) -> None:
    """Signed with somebody's keys: trace headers go along, and the service's client may be older than us."""
    make: Any = vars(boto3)["client"]
    client = make(
        **where(server),
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )
    with agent("on", "bedrock") as exporter:
        server.clear()
        client.converse(**ASKED)
        list(client.converse_stream(**ASKED)["stream"])
        assert facts_like(exporter.spans[1].attributes, STREAMED) == STREAMED
        assert [request.headers["traceparent"][0].split("-")[2] for request in server.requests] == [
            f"{span.span_id:016x}" for span in exporter.spans
        ]
    client.close()


@integration
def test_other_services_and_other_operations_are_none_of_ours(server: FakeBedrock) -> None:
    """They go through the same function, untouched."""
    with agent("on", "bedrock") as exporter, sync_client(server) as client:
        server.clear()
        with pytest.raises(ClientError):
            client.apply_guardrail(
                guardrailIdentifier="g",
                guardrailVersion="1",
                source="INPUT",
                content=[{"text": {"text": "a"}}],
            )
        other = session().create_client(
            "bedrock",
            region_name="eu-west-1",
            endpoint_url=server.base_url,
            aws_access_key_id="a",
            aws_secret_access_key="b",
            config=Config(retries={"total_max_attempts": 1}),
        )
        with pytest.raises(ClientError):
            other.list_foundation_models()
        other.close()
        assert exporter.spans == []
        assert not any("traceparent" in request.headers for request in server.requests)


@integration
def test_one_client_can_be_observed_alone(server: FakeBedrock) -> None:
    """`ns.hooks`: the other client's calls are not ours."""
    exporter = ns.testing.InMemoryExporter()
    running = ns.Platform(exporters=[exporter], deferred=False)
    with running, sync_client(server) as one, sync_client(server) as other:
        platform.instrument_object("bedrock", one)
        one.converse(**ASKED)
        other.converse(**ASKED)
        assert len(exporter.spans) == 1


@integration
async def test_an_async_stream_has_the_facts_of_the_whole(server: FakeBedrock) -> None:
    """The event stream keeps its type and its other names."""
    with agent("on", "bedrock") as exporter:
        async with async_client(server) as client:
            server.reply(converse_stream("one two three four five"))
            stream = (await client.converse_stream(**ASKED))["stream"]
            assert type(stream).__qualname__ == "AioEventStream"
            assert len([event async for event in stream]) == 9
        assert facts_like(exporter.spans[0].attributes, STREAMED) == STREAMED


# --- readers -----------------------------------------------------------------------------------------
def test_parts_of_messages_are_opentelemetrys() -> None:
    """Media by size and hash, or by address; a message of results only is the tool's."""
    picture = {"image": {"format": "png", "source": {"bytes": b"abc"}}}
    film = {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/k"}}}}
    encoded = {"document": {"format": "pdf", "source": {"bytes": "YWJj"}}}
    parts = list(
        read_message({"role": "user", "content": [picture, film, encoded, {"cachePoint": {}}]}).parts
    )
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert parts == [
        {"type": "blob", "modality": "image", "mime_type": "image/png", "size": 3, "sha256": digest},
        {"type": "uri", "modality": "video", "uri": "s3://b/k"},
        {"type": "blob", "modality": "document", "mime_type": "document/pdf", "size": 3, "sha256": digest},
        {"type": "cachePoint"},
    ]
    result = {"toolResult": {"toolUseId": "t1", "content": [{"json": {"a": 1}}]}}
    message = read_message({"role": "user", "content": [result]})
    assert message.role == "tool"
    assert list(message.parts) == [
        {"type": "tool_call_response", "id": "t1", "response": [{"type": "json", "content": {"a": 1}}]}
    ]


def test_input_tokens_include_cached_ones() -> None:
    """Bedrock counts the three apart."""
    told_counts = {
        "inputTokens": 10,
        "outputTokens": 3,
        "cacheReadInputTokens": 20,
        "cacheWriteInputTokens": 5,
    }
    assert words.usage(told_counts) == {
        "input_tokens": 35,
        "output_tokens": 3,
        "cache_read_tokens": 20,
        "cache_write_tokens": 5,
    }
    assert words.usage(None) == {}


def test_what_a_cache_keeps_for_an_hour_is_told_apart() -> None:
    """Whole and streamed; a minute's is not."""
    details = [{"ttl": "1h", "inputTokens": 4}, {"ttl": "5m", "inputTokens": 6}]
    usage = {"inputTokens": 1, "outputTokens": 1, "cacheWriteInputTokens": 10, "cacheDetails": details}
    whole = words.read_converse({"usage": usage}, False)
    streamed = words.fold_converse(Response(), {"metadata": {"usage": usage}}, False)
    for told in (whole, streamed):
        assert told.cache_write_tokens == 10
        assert told.extra[names.CACHE_WRITE_1H_TOKENS] == 4
