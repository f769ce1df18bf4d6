"""`InvokeModel`: the words of every family of models, whole, streamed, embedded, reranked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from client_bedrock import CASE, sync_client
from client_cases import CANARY, agent, facts_like, observe, three_ways
from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope.testing.fake_bedrock import FakeBedrock, Reply, invoke, invoke_stream
from neuronscope_instrumentation.bedrock import converse as words
from neuronscope_instrumentation.bedrock.invoke import (
    Answer,
    fold_invoke,
    has_content,
    operation_of,
    read_invoke,
)

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
