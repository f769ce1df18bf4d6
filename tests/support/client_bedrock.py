"""How services use AWS Bedrock's runtime: conversations through botocore and aiobotocore."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from typing import Any

import aiobotocore.session
import aiohttp
import botocore.session
import urllib3
from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from client_cases import CANARY, Call, ClientCase
from neuronscope.signals import names
from neuronscope.testing.fake_bedrock import FakeBedrock, converse, converse_stream, error
from neuronscope.testing.fake_provider import FakeProvider

ASKED: dict[str, Any] = {
    "modelId": "m",
    "messages": [{"role": "user", "content": [{"text": CANARY}]}],
    "system": [{"text": CANARY}],
    "inferenceConfig": {"temperature": 0.5, "topP": 0.9, "maxTokens": 64, "stopSequences": [CANARY]},
    "toolConfig": {
        "tools": [
            {
                "toolSpec": {
                    "name": "look_up",
                    "description": CANARY,
                    "inputSchema": {"json": {"type": "object"}},
                }
            }
        ]
    },
    "additionalModelRequestFields": {"top_k": 3},
}
COMPLETE = {
    names.PROVIDER_NAME: "aws.bedrock",
    names.REQUEST_MODEL: "m",
    names.INPUT_TOKENS: 15,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["end_turn"],
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_TOP_P: 0.9,
    names.REQUEST_TOP_K: 3,
    names.REQUEST_MAX_TOKENS: 64,
    names.INPUT_MESSAGE_COUNT: 1,
    names.ERROR_TYPE: None,
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.STREAM_CHUNKS: 9}
TITAN: dict[str, Any] = {"modelId": "amazon.titan-embed-text-v2:0", "body": json.dumps({"inputText": CANARY})}
CLAUDE: dict[str, Any] = {
    "modelId": "anthropic.claude-x",
    "body": json.dumps(
        {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 64,
            "messages": [{"role": "user", "content": [{"type": "text", "text": CANARY}]}],
        }
    ),
}
JOB = "arn:aws:bedrock:eu-west-1:1:async-invoke/fake"
REEL: dict[str, Any] = {
    "clientRequestToken": "the-same-each-time",  # else botocore makes one
    "modelId": "amazon.nova-reel-v1:1",
    "modelInput": {
        "taskType": "TEXT_VIDEO",
        "textToVideoParams": {"text": CANARY},
        "videoGenerationConfig": {"durationSeconds": 6, "fps": 24, "dimension": "1280x720", "seed": 1},
    },
    "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://{CANARY}"}},
}
SEGMENTS: dict[str, Any] = {
    "clientRequestToken": "the-same-each-time",
    "modelId": "amazon.nova-2-multimodal-embeddings-v1:0",
    "modelInput": {
        "taskType": "SEGMENTED_EMBEDDING",
        "segmentedEmbeddingParams": {"embeddingDimension": 1024, "text": {"source": {"s3Location": CANARY}}},
    },
    "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://{CANARY}"}},
}
_LIMITS: dict[str, Any] = {"read_timeout": 0.5, "connect_timeout": 0.5, "retries": {"total_max_attempts": 1}}


@cache
def session() -> Any:
    """One for all clients: it has read its models."""
    return botocore.session.Session()


@cache
def async_session() -> Any:
    """Its asynchronous twin."""
    return aiobotocore.session.AioSession()


def where(server: FakeProvider) -> dict[str, Any]:
    """A client's service and address."""
    return {"service_name": "bedrock-runtime", "region_name": "eu-west-1", "endpoint_url": server.base_url}


@contextmanager
def sync_client(server: FakeProvider, **config: Any) -> Generator[Any]:
    """A client of the fake server, unsigned: a signature would tell two runs apart."""
    told = Config(signature_version=UNSIGNED, **{**_LIMITS, **config})
    client = session().create_client(**where(server), config=told)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def async_client(server: FakeProvider) -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    config = AioConfig(signature_version=UNSIGNED, **_LIMITS)
    async with async_session().create_client(**where(server), config=config) as client:
        yield client


async def achat(client: Any) -> Any:
    """One conversation."""
    return await client.converse(**ASKED)


async def astream(client: Any) -> Any:
    """One streamed conversation."""
    return (await client.converse_stream(**ASKED))["stream"]


async def aembed(client: Any) -> Any:
    """One embedding."""
    return await (await client.invoke_model(**TITAN))["body"].read()


async def astart(client: Any, asked: dict[str, Any]) -> Any:
    """One job."""
    return await client.start_async_invoke(**asked)


async def ainvoke(client: Any) -> Any:
    """One model invoked, and its body read."""
    return await (await client.invoke_model(**CLAUDE))["body"].read()


async def ainvoke_stream(client: Any) -> Any:
    """One model invoked, its stream."""
    return (await client.invoke_model_with_response_stream(**CLAUDE))["body"]


async def ainvoke_stream_whole(client: Any) -> Any:
    """That stream read."""
    return [event async for event in await ainvoke_stream(client)]


_INVOKED: dict[str, Any] = {
    names.OPERATION_NAME: "chat",
    names.REQUEST_MODEL: "anthropic.claude-x",
    names.REQUEST_MAX_TOKENS: 64,
    names.INPUT_TOKENS: 11,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["end_turn"],
    names.RESPONSE_ID: "msg-fake",
}
_STARTED: dict[str, Any] = {
    names.PROVIDER_NAME: "aws.bedrock",
    names.INPUT_TOKENS: None,
    names.OUTPUT_TOKENS: None,
    names.REQUEST_STREAM: None,
}
CALLS = (
    Call(
        name="invoke_model",
        run=lambda client: client.invoke_model(**CLAUDE)["body"].read(),
        arun=ainvoke,
        replies=tuple,
        facts=_INVOKED,
    ),
    Call(
        name="invoke_model_with_response_stream",
        run=lambda client: list(client.invoke_model_with_response_stream(**CLAUDE)["body"]),
        arun=ainvoke_stream_whole,
        replies=tuple,
        facts={**_INVOKED, names.REQUEST_STREAM: True, names.STREAM_END: "complete"},
        opened=lambda client: client.invoke_model_with_response_stream(**CLAUDE)["body"],
        aopened=ainvoke_stream,
    ),
    Call(
        name="start_async_invoke of a film",
        run=lambda client: client.start_async_invoke(**REEL),
        arun=partial(astart, asked=REEL),
        replies=tuple,
        facts={
            **_STARTED,
            names.OPERATION_NAME: "generate_content",
            names.OUTPUT_TYPE: "video",
            names.RESPONSE_ID: JOB,
            names.REQUEST_MODEL: REEL["modelId"],
        },
    ),
    Call(
        name="start_async_invoke of embeddings",
        run=lambda client: client.start_async_invoke(**SEGMENTS),
        arun=partial(astart, asked=SEGMENTS),
        replies=tuple,
        facts={
            **_STARTED,
            names.OPERATION_NAME: "embeddings",
            names.EMBEDDING_DIMENSIONS: 1024,
            names.REQUEST_MODEL: SEGMENTS["modelId"],
        },
        content=False,
    ),
)
CASE = ClientCase(
    name="bedrock",
    distribution="botocore",
    server=FakeBedrock,
    sync=sync_client,
    aio=async_client,
    errors=(BotoCoreError, ClientError, urllib3.exceptions.HTTPError, aiohttp.ClientError),
    chat=lambda client: client.converse(**ASKED),
    stream=lambda client: client.converse_stream(**ASKED)["stream"],
    achat=achat,
    astream=astream,
    reply=converse,
    stream_reply=converse_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unauthorised="UnrecognizedClientException",
    timeout="botocore.exceptions.ReadTimeoutError",
    notices_cut=False,  # botocore takes a body that did not come for an empty one
    watched=(
        "botocore.client:BaseClient._make_api_call",
        "botocore.client:BaseClient._convert_to_request_dict",
        "aiobotocore.client:AioBaseClient._make_api_call",
        "aiobotocore.client:AioBaseClient._convert_to_request_dict",
    ),
    embed=lambda client: client.invoke_model(**TITAN)["body"].read(),
    aembed=aembed,
    calls=CALLS,
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 1, names.INPUT_TOKENS: 3},
)
