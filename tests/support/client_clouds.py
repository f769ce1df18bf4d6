"""Claude on cloud platforms, and OpenAI's models on them: the same methods, through clients of their own.

Each client is given an address, and credentials that nobody checks; what it makes of a request and of a
stream (path, headers, framing) is its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import anthropic
import openai

import client_anthropic
import client_openai
from client_cases import ClientCase, timeout_s
from neuronscope.signals import names
from neuronscope.testing.fake_anthropic import message_stream, on_bedrock
from neuronscope.testing.fake_provider import FakeProvider, Reply


def _variant(
    case: ClientCase,
    sdk: Any,
    http: Any,
    client: str,
    provider: str,
    stream_reply: Callable[..., Reply] | None = None,
    **credentials: Any,
) -> ClientCase:
    """The case with another client of its SDK."""

    def options(server: FakeProvider) -> dict[str, Any]:
        return {"base_url": server.base_url, "max_retries": 0, "timeout": timeout_s(), **credentials}

    @contextmanager
    def sync_client(server: FakeProvider) -> Generator[Any]:
        with http.Client(verify=False) as connections:
            yield getattr(sdk, client)(http_client=connections, **options(server))

    @asynccontextmanager
    async def async_client(server: FakeProvider) -> AsyncGenerator[Any]:
        async with http.AsyncClient(verify=False) as connections:
            yield getattr(sdk, f"Async{client}")(http_client=connections, **options(server))

    facts = {names.PROVIDER_NAME: provider}
    return replace(
        case,
        variant=client,
        sync=sync_client,
        aio=async_client,
        stream_reply=stream_reply or case.stream_reply,
        complete={**case.complete, **facts},
        streamed={**case.streamed, **facts},
        calls=(),
    )


def _claude(
    client: str, provider: str, stream_reply: Callable[..., Reply] | None = None, **credentials: Any
) -> ClientCase:
    return _variant(
        client_anthropic.CASE,
        anthropic,
        client_anthropic.HTTP,
        client,
        provider,
        stream_reply,
        **credentials,
    )


def _gpt(client: str, provider: str, **credentials: Any) -> ClientCase:
    return _variant(client_openai.CASE, openai, client_openai.HTTP, client, provider, **credentials)


def _bedrock_stream(text: str, **reply: Any) -> Reply:
    return on_bedrock(message_stream(text, **reply))


CASES = (
    _claude("AnthropicBedrock", "aws.bedrock", _bedrock_stream, api_key="k", aws_region="eu-west-1"),
    _claude("AnthropicBedrockMantle", "aws.bedrock", api_key="k", aws_region="eu-west-1"),
    _claude("AnthropicVertex", "gcp.vertex_ai", region="europe-west1", project_id="p", access_token="t"),
    _claude("AnthropicFoundry", "anthropic", api_key="k"),
    _claude("AnthropicAWS", "anthropic", api_key="k", workspace_id="w", aws_region="eu-west-1"),
    _claude("AnthropicGoogleCloud", "anthropic", token_provider=lambda: "t", workspace_id="w"),
    _gpt("AzureOpenAI", "azure.ai.openai", api_key="k", api_version="2024-10-21"),
    _gpt("BedrockOpenAI", "aws.bedrock", api_key="k", aws_region="eu-west-1"),
)
