"""What only the Bedrock adapter has: bodies of every model family, event streams, bodies that are read later.

What holds for every client is in `tests/contract/test_client_contract.py`.
"""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import neuronscope as ns
from client_bedrock import ASKED, CASE, COMPLETE, STREAMED, async_client, session, sync_client, where
from client_cases import CANARY, agent, facts_like, observe, observe_async, three_ways
from neuronscope import platform
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_bedrock import (
    FakeBedrock,
    Reply,
    converse,
    converse_stream,
    error,
    invoke,
    invoke_stream,
    stream_of,
)
from neuronscope_instrumentation.bedrock import converse as words
from neuronscope_instrumentation.bedrock.invoke import (
    Answer,
    fold_invoke,
    has_content,
    operation_of,
    read_invoke,
)
from neuronscope_instrumentation.bedrock.messages import read_message

integration = pytest.mark.integration
LLAMA = {"prompt": CANARY, "max_gen_len": 64, "temperature": 0.5, "top_p": 0.9}
TITAN = {
    "inputText": CANARY,
    "textGenerationConfig": {"maxTokenCount": 64, "temperature": 0.5, "topP": 0.9, "stopSequences": [CANARY]},
}
CLAUDE = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 64,
    "temperature": 0.5,
    "top_p": 0.9,
    "system": CANARY,
    "messages": [{"role": "user", "content": [{"type": "text", "text": CANARY}]}],
    "tools": [{"name": "look_up", "description": CANARY, "input_schema": {"type": "object"}}],
}
NOVA = {
    "schemaVersion": "messages-v1",
    "system": [{"text": CANARY}],
    "messages": [{"role": "user", "content": [{"text": CANARY}]}],
    "inferenceConfig": {"maxTokens": 64, "temperature": 0.5, "topP": 0.9},
}
COMMAND = {"message": CANARY, "max_tokens": 64, "temperature": 0.5, "p": 0.9}
MISTRAL = {"prompt": CANARY, "max_tokens": 64, "temperature": 0.5, "top_p": 0.9}
USAGE = {"inputTokens": 11, "outputTokens": 5, "totalTokens": 16}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": CANARY}, "finish_reason": "stop"}
OPENAI = {"choices": [CHOICE], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}
NOVA_SAID = {"message": {"role": "assistant", "content": [{"text": CANARY}]}}
# model, request, answer, reason, is the answer one that counts its tokens?
FAMILIES: list[tuple[str, Any, Any, str, bool]] = [
    (
        "eu.anthropic.claude-sonnet-4-v1:0",
        CLAUDE,
        {
            "id": "msg-fake",
            "type": "message",
            "content": [{"type": "text", "text": CANARY}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 11, "output_tokens": 5},
        },
        "end_turn",
        True,
    ),
    (
        "amazon.nova-lite-v1:0",
        NOVA,
        {"output": NOVA_SAID, "stopReason": "end_turn", "usage": USAGE},
        "end_turn",
        True,
    ),
    (
        "amazon.titan-text-express-v1",
        TITAN,
        {
            "inputTextTokenCount": 11,
            "results": [{"tokenCount": 5, "outputText": CANARY, "completionReason": "FINISH"}],
        },
        "FINISH",
        True,
    ),
    (
        "us.meta.llama3-3-70b-instruct-v1:0",
        LLAMA,
        {
            "generation": CANARY,
            "prompt_token_count": 11,
            "generation_token_count": 5,
            "stop_reason": "stop",
        },
        "stop",
        True,
    ),
    (
        "cohere.command-r-v1:0",
        COMMAND,
        {"text": CANARY, "generation_id": "g", "finish_reason": "COMPLETE"},
        "COMPLETE",
        False,
    ),
    (
        "mistral.mistral-7b-instruct-v0:2",
        MISTRAL,
        {"outputs": [{"text": CANARY, "stop_reason": "stop"}]},
        "stop",
        False,
    ),
    ("openai.gpt-oss-20b-1:0", {**MISTRAL, "messages": NOVA["messages"]}, OPENAI, "stop", True),
    (
        "arn:aws:bedrock:eu-west-1:1:provisioned-model/x",
        LLAMA,
        {"generation": CANARY, "stop_reason": "stop"},
        "stop",
        False,
    ),
]
# model, chunks, reason
STREAMS: list[tuple[str, Any, list[Any], str]] = [
    (
        "amazon.nova-lite-v1:0",
        NOVA,
        [
            {"messageStart": {"role": "assistant"}},
            {"contentBlockDelta": {"delta": {"text": CANARY}, "contentBlockIndex": 0}},
            {"messageStop": {"stopReason": "end_turn"}},
            {"metadata": {"usage": USAGE}},
        ],
        "end_turn",
    ),
    (
        "amazon.titan-text-express-v1",
        TITAN,
        [
            {"outputText": CANARY, "index": 0, "inputTextTokenCount": 11},
            {"outputText": " b", "index": 0, "totalOutputTextTokenCount": 5, "completionReason": "FINISH"},
        ],
        "FINISH",
    ),
    (
        "meta.llama3-8b-instruct-v1:0",
        LLAMA,
        [
            {"generation": CANARY, "prompt_token_count": 11, "stop_reason": None},
            {"generation": "", "generation_token_count": 5, "stop_reason": "stop"},
        ],
        "stop",
    ),
    (
        "cohere.command-r-v1:0",
        COMMAND,
        [
            {"is_finished": False, "event_type": "text-generation", "text": CANARY},
            {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE"},
        ],
        "COMPLETE",
    ),
    (
        "cohere.command-text-v14",
        MISTRAL,
        [{"text": CANARY, "is_finished": False}, {"is_finished": True, "finish_reason": "COMPLETE"}],
        "COMPLETE",
    ),
    (
        "mistral.mistral-7b-instruct-v0:2",
        MISTRAL,
        [
            {"outputs": [{"text": CANARY, "stop_reason": None}]},
            {"outputs": [{"text": "", "stop_reason": "stop"}]},
        ],
        "stop",
    ),
    (
        "openai.gpt-oss-20b-1:0",
        MISTRAL,
        [
            {"choices": [{"index": 0, "delta": {"content": CANARY}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        ],
        "stop",
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeBedrock]:
    """One provider for the module."""
    with FakeBedrock() as fake:
        yield fake


def told(attributes: Any, key: str) -> Any:
    return json.loads(str(attributes[key]))


# --- InvokeModel -------------------------------------------------------------------------------------
@integration
@pytest.mark.parametrize(("model", "asked", "answer", "reason", "counts"), FAMILIES)
def test_every_familys_body_is_read_and_stays_unread(
    server: FakeBedrock, model: str, asked: Any, answer: Any, reason: str, counts: bool
) -> None:
    """Parameters, tokens, reason; the words only with content on; where a body has no counts, headers do."""

    def call(client: Any, fake: Any) -> Any:
        server.reply(invoke(answer, counted=not counts))
        response = client.invoke_model(modelId=model, body=json.dumps(asked))
        body = response["body"]
        return type(body).__qualname__, body.read(), body.read(), response["contentType"]

    on, content = three_ways(lambda mode: observe(CASE, mode, call, server))
    expected = {
        names.REQUEST_MODEL: model,
        names.PROVIDER_NAME: "aws.bedrock",
        names.REQUEST_MAX_TOKENS: 64,
        names.REQUEST_TEMPERATURE: 0.5,
        names.REQUEST_TOP_P: 0.9,
        names.INPUT_TOKENS: 11,
        names.OUTPUT_TOKENS: 5,
        names.FINISH_REASONS: [reason],
    }
    for outcome in (on, content):
        (span,) = outcome.spans
        assert facts_like(span.attributes, expected) == expected
    asked_words = told(content.spans[0].attributes, names.INPUT_MESSAGES)
    assert {"type": "text", "content": CANARY} in asked_words[-1]["parts"]
    (said,) = told(content.spans[0].attributes, names.OUTPUT_MESSAGES)
    assert said["parts"] == [{"type": "text", "content": CANARY}]
    assert said["finish_reason"] == "stop"


@integration
@pytest.mark.parametrize(("model", "asked", "chunks", "reason"), STREAMS)
def test_every_familys_stream_is_folded(
    server: FakeBedrock, model: str, asked: Any, chunks: list[Any], reason: str
) -> None:
    """Bedrock's own counts are on the last chunk."""

    def call(client: Any, fake: Any) -> Any:
        server.reply(invoke_stream(chunks))
        response = client.invoke_model_with_response_stream(modelId=model, body=json.dumps(asked).encode())
        return type(response["body"]).__qualname__, list(response["body"])

    on, content = three_ways(lambda mode: observe(CASE, mode, call, server))
    expected = {
        names.REQUEST_STREAM: True,
        names.REQUEST_MAX_TOKENS: 64,
        names.INPUT_TOKENS: 11,
        names.OUTPUT_TOKENS: 5,
        names.FINISH_REASONS: [reason],
        names.STREAM_END: "complete",
        names.STREAM_CHUNKS: len(chunks),
        names.ERROR_TYPE: None,
    }
    for outcome in (on, content):
        (span,) = outcome.spans
        assert facts_like(span.attributes, expected) == expected
    (said,) = told(content.spans[0].attributes, names.OUTPUT_MESSAGES)
    assert said["parts"][0]["content"].startswith(CANARY)
    assert said["finish_reason"] == "stop"


EMBEDDINGS: list[tuple[str, Any, Any, int, int]] = [
    (
        "amazon.titan-embed-text-v2:0",
        {"inputText": CANARY},
        {"embedding": [0.25] * 4, "inputTextTokenCount": 3},
        4,
        1,
    ),
    ("cohere.embed-english-v3", {"texts": [CANARY, "b"]}, {"id": "e", "embeddings": [[0.25] * 5] * 2}, 5, 2),
    ("cohere.embed-v4:0", {"texts": [CANARY]}, {"id": "e", "embeddings": {"float": [[0.25] * 6]}}, 6, 1),
    (
        "amazon.nova-2-multimodal-embeddings-v1:0",
        {"singleEmbeddingParams": {"text": {"value": CANARY}}},
        {"embeddings": [{"embeddingType": "TEXT", "embedding": [0.25] * 7}]},
        7,
        1,
    ),
]


@integration
@pytest.mark.parametrize(("model", "asked", "answer", "width", "inputs"), EMBEDDINGS)
def test_embeddings_through_invoke_model(
    server: FakeBedrock, model: str, asked: Any, answer: Any, width: int, inputs: int
) -> None:
    """Their length and count, tokens from body or header; never a number of them."""

    def call(client: Any, fake: Any) -> Any:
        reply = invoke(answer, counted=False)
        server.reply(
            Reply(
                body=reply.body,
                headers={"x-amzn-bedrock-input-token-count": "3", "x-amzn-bedrock-output-token-count": "0"},
            )
        )
        return client.invoke_model(modelId=model, body=json.dumps(asked))["body"].read()

    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        (span,) = outcome.spans
        expected = {
            names.OPERATION_NAME: "embeddings",
            names.EMBEDDING_DIMENSIONS: width,
            names.INPUT_COUNT: inputs,
            names.INPUT_TOKENS: 3,
            names.OUTPUT_TOKENS: None,
        }
        assert facts_like(span.attributes, expected) == expected
        assert "0.25" not in repr(span)


@integration
def test_a_reranking_through_invoke_model(server: FakeBedrock) -> None:
    """How many, and how well the best and the worst fit."""

    def call(client: Any, fake: Any) -> Any:
        results = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
        server.reply(invoke({"results": results}, counted=False))
        body = json.dumps({"query": CANARY, "documents": [CANARY, "b"], "top_n": 2, "api_version": 2})
        return client.invoke_model(modelId="cohere.rerank-v3-5:0", body=body)["body"].read()

    expected = {
        names.OPERATION_NAME: "rerank",
        names.INPUT_COUNT: 2,
        names.RETRIEVAL_TOP_K: 2,
        names.RETRIEVAL_RETURNED: 2,
        names.RETRIEVAL_TOP_SCORE: 0.9,
        names.RETRIEVAL_KTH_SCORE: 0.1,
    }
    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        (span,) = outcome.spans
        assert facts_like(span.attributes, expected) == expected


def read_whole(body: Any) -> Any:
    return body.read()


def read_by_lines(body: Any) -> Any:
    return list(body.iter_lines())


def read_by_chunks(body: Any) -> Any:
    return list(body.iter_chunks(7)), list(body)


def read_by_next(body: Any) -> Any:
    return next(body), body.read()


def read_what_there_is(body: Any) -> Any:
    """Just as many bytes as there are, and no more."""
    return body.read(9), body.read(int(body._content_length) - 9)


def read_into_a_buffer(body: Any) -> Any:
    buffer = bytearray(1000)
    return body.readinto(buffer), body.readinto(buffer), bytes(buffer).rstrip(b"\0")


def read_in_a_block(body: Any) -> Any:
    with body as raw:
        return type(raw).__qualname__, raw.read()


def read_as_json(body: Any) -> Any:
    return json.load(body)


def read_half(body: Any) -> Any:
    return body.read(9)


def read_nothing(body: Any) -> Any:
    return body.readable()


def read_closed(body: Any) -> Any:
    body.close()
    return "closed"


@integration
# urllib3 leaves the connection of a dropped body to Python, agent or not.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(
    ("way", "whole"),
    [
        (read_whole, True),
        (read_by_lines, True),
        (read_by_chunks, True),
        (read_by_next, True),
        (read_what_there_is, True),
        (read_into_a_buffer, True),
        (read_in_a_block, True),
        (read_as_json, True),
        (read_half, False),
        (read_nothing, False),
        (read_closed, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_body_is_read_as_the_service_likes(
    server: FakeBedrock, way: Callable[[Any], Any], whole: bool
) -> None:
    """Never by us.  One that is not read to its end has the tokens of its headers."""

    def call(client: Any, fake: Any) -> Any:
        response = client.invoke_model(modelId="anthropic.claude-x", body=json.dumps(CLAUDE))
        seen = way(response["body"])
        del response
        gc.collect()
        return seen

    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        (span,) = outcome.spans
        assert span.attributes[names.INPUT_TOKENS] == 11
        assert span.attributes[names.OUTPUT_TOKENS] == 5
        assert (span.attributes.get(names.RESPONSE_ID) == "msg-fake") == whole
        assert names.ERROR_TYPE not in span.attributes


@integration
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_the_span_of_a_body_ends_when_it_was_read_and_leaves_no_trace_on_it(server: FakeBedrock) -> None:
    """Not before; afterwards the objects are as botocore made them."""
    with agent("on", "bedrock") as exporter, sync_client(server) as client:
        body = client.invoke_model(modelId="anthropic.claude-x", body=json.dumps(CLAUDE))["body"]
        raw = body._raw_stream
        assert exporter.spans == []
        assert "read" in vars(raw)
        body.read()
        assert len(exporter.spans) == 1
        assert "read" not in vars(raw)
        dropped = client.invoke_model(modelId="anthropic.claude-x", body=json.dumps(CLAUDE))
        del dropped
        assert len(exporter.spans) == 2


@integration
def test_async_bodies_are_followed(server: FakeBedrock) -> None:
    """All at once, by chunks, in a block; and one that nobody reads."""

    async def calls(client: Any, fake: Any) -> Any:
        asked: Any = {"modelId": "anthropic.claude-x", "body": json.dumps(CLAUDE)}
        seen: list[Any] = [await (await client.invoke_model(**asked))["body"].read()]
        seen.append([chunk async for chunk in (await client.invoke_model(**asked))["body"]])
        async with (await client.invoke_model(**asked))["body"] as body:
            seen.append((type(body).__qualname__, await body.read(5)))
        stream: Any = (await client.invoke_model_with_response_stream(**asked))["body"]
        seen.append([event async for event in stream])
        return seen

    for outcome in three_ways(lambda mode: observe_async(CASE, mode, calls, server)):
        assert [span.attributes[names.OUTPUT_TOKENS] for span in outcome.spans] == [5, 5, 5, 5]
        assert [names.RESPONSE_ID in span.attributes for span in outcome.spans] == [True, True, False, True]


@integration
def test_a_request_that_reading_would_use_up_is_left_alone(server: FakeBedrock) -> None:
    """A file object goes to the provider whole; its parameters stay unknown, its tokens do not."""

    def call(client: Any, fake: Any) -> Any:
        body = io.BytesIO(json.dumps(CLAUDE).encode())
        return client.invoke_model(modelId="anthropic.claude-x", body=body)["body"].read()

    for outcome in three_ways(lambda mode: observe(CASE, mode, call, server)):
        assert json.loads(outcome.requests[0][2]) == CLAUDE
        (span,) = outcome.spans
        assert names.REQUEST_MAX_TOKENS not in span.attributes
        assert span.attributes[names.INPUT_TOKENS] == 11


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


def test_the_tier_of_a_model_invoked_is_in_a_header(server: FakeBedrock) -> None:
    """As its tokens are."""
    reply = invoke({"generation": "x", "stop_reason": "stop"})
    tiered = replace(reply, headers={**reply.headers, "x-amzn-bedrock-service-tier": "flex"})
    with agent("on", "bedrock") as exporter, sync_client(server) as client:
        server.reply(tiered)
        client.invoke_model(modelId="meta.llama3-8b-instruct-v1:0", body='{"prompt": "x"}')["body"].read()
    (span,) = exporter.spans
    assert span.attributes[names.OPENAI_RESPONSE_SERVICE_TIER] == "flex"
    assert span.attributes[names.INPUT_TOKENS] == 11


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


@pytest.mark.parametrize(
    ("model", "operation"),
    [
        ("anthropic.claude-v2", "chat"),
        ("amazon.titan-text-lite-v1", "text_completion"),
        ("us.cohere.embed-v4:0", "embeddings"),
        ("amazon.rerank-v1:0", "rerank"),
        ("stability.sd3-5-large-v1:0", "generate_content"),
        ("amazon.nova-canvas-v1:0", "generate_content"),
        ("", "chat"),
    ],
)
def test_an_id_tells_what_a_model_does(model: str, operation: str) -> None:
    """As far as it does."""
    assert operation_of(model) == operation


@pytest.mark.parametrize(
    "odd",
    [b"", b"not json", b"[]", b'{"usage": [], "embeddings": 3}', b'{"output": 1, "stopReason": 2}', None],
)
def test_odd_answers_give_no_facts(odd: Any) -> None:
    """A model may say anything; readers do not raise."""
    response = read_invoke(Answer(odd, {}), True)
    assert response.finish_reasons is None
    assert response.output_tokens is None
    chunk = {"chunk": {"bytes": odd}}
    assert fold_invoke(Response(), chunk, True).finish_reasons is None
    assert not has_content(chunk)
    assert words.fold_converse(Response(), odd, True).finish_reasons is None
    assert not words.has_content(odd)
