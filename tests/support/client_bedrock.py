"""How services use AWS Bedrock's runtime: conversations through botocore and aiobotocore."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

import aiobotocore.session
import aiohttp
import botocore.session
import urllib3
from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from client_cases import CANARY, ClientCase
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
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 1, names.INPUT_TOKENS: 3},
)
