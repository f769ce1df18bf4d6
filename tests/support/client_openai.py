"""How services use the OpenAI SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai

import openai_methods
from client_cases import CANARY, ClientCase, timeout_s
from clients import has, http_library, some_only
from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, chat, chat_stream, error
from neuronscope.testing.fake_provider import FakeProvider

HTTP = http_library("openai")
MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": CANARY}]
TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "description": CANARY, "parameters": {}}}]
ASKED: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "tools": TOOLS,
    "temperature": 0.5,
    "max_completion_tokens" if has("openai", "1.45") else "max_tokens": 64,
    "seed": 7,
    "stop": [CANARY],
}
COMPLETE = {
    **openai_methods.CHAT_FACTS,
    names.RESPONSE_ID: "chatcmpl-fake",
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_MAX_TOKENS: 64,
    names.REQUEST_SEED: 7,
    names.INPUT_MESSAGE_COUNT: 2,
    names.TOOLS_OFFERED: ["look_up"],
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.STREAM_CHUNKS: 8}


def _asked(server: FakeProvider, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "base_url": server.base_url,
        "api_key": "test",
        "max_retries": 0,
        "timeout": timeout_s(),
        **options,
    }


@contextmanager
def sync_client(server: FakeProvider, **options: Any) -> Generator[Any]:
    """A client of the fake server; without TLS set-up it costs nothing to make."""
    with HTTP.Client(verify=False) as http:
        yield openai.OpenAI(http_client=http, **_asked(server, options))


@asynccontextmanager
async def async_client(server: FakeProvider, **options: Any) -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    async with HTTP.AsyncClient(verify=False) as http:
        yield openai.AsyncOpenAI(http_client=http, **_asked(server, options))


async def achat(client: Any) -> Any:
    """One chat."""
    return await client.chat.completions.create(**ASKED)


async def astream(client: Any) -> Any:
    """One streamed chat."""
    return await client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})


async def aembed(client: Any) -> Any:
    """One embeddings call."""
    return await client.embeddings.create(model="e", input=[CANARY, "b"])


CASE = ClientCase(
    name="openai",
    distribution="openai",
    server=FakeOpenAI,
    sync=sync_client,
    aio=async_client,
    errors=(openai.OpenAIError, HTTP.HTTPError),
    chat=lambda client: client.chat.completions.create(**ASKED),
    stream=lambda client: client.chat.completions.create(
        **ASKED, stream=True, stream_options={"include_usage": True}
    ),
    achat=achat,
    astream=astream,
    reply=chat,
    stream_reply=chat_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unauthorised="openai.AuthenticationError",
    timeout="openai.APITimeoutError",
    watched=(
        "openai._base_client:SyncAPIClient.request",
        "openai._base_client:AsyncAPIClient.request",
        "openai._base_client:SyncAPIClient._process_response",
        "openai._base_client:AsyncAPIClient._process_response",
        "openai._client:OpenAI.copy",
        "openai._client:AsyncOpenAI.with_options",
        "openai.lib.azure:AzureOpenAI.copy",
    ),
    embed=lambda client: client.embeddings.create(model="e", input=[CANARY, "b"]),
    aembed=aembed,
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 3},
    calls=tuple(openai_methods.calls(openai.OpenAI(api_key="x") if some_only() else None)),
)
