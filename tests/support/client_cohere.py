"""How services use the Cohere SDK, version 2 of its API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import cohere
import httpx
from cohere.core.api_error import ApiError

from client_cases import CANARY, ClientCase, timeout_s
from neuronscope.signals import names
from neuronscope.testing.fake_cohere import FakeCohere, chat, chat_stream, error
from neuronscope.testing.fake_provider import FakeProvider

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": CANARY}]
TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "description": CANARY, "parameters": {}}}]
ASKED: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "tools": TOOLS,
    "temperature": 0.5,
    "max_tokens": 64,
    "seed": 7,
    "k": 3,
    "stop_sequences": [CANARY],
}
COMPLETE = {
    names.PROVIDER_NAME: "cohere",
    names.REQUEST_MODEL: "m",
    names.RESPONSE_ID: "chat-fake",
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["COMPLETE"],
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_MAX_TOKENS: 64,
    names.REQUEST_SEED: 7,
    names.REQUEST_TOP_K: 3,
    names.INPUT_MESSAGE_COUNT: 2,
    names.ERROR_TYPE: None,
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.STREAM_CHUNKS: 9}


@contextmanager
def sync_client(server: FakeProvider, kind: Any = cohere.ClientV2) -> Generator[Any]:
    """A client of the fake server; without TLS set-up it costs nothing to make."""
    with httpx.Client(verify=False, timeout=timeout_s()) as http:
        yield kind(
            base_url=server.base_url,
            api_key="test",
            httpx_client=http,
            timeout=timeout_s(),
            max_retries=0,
        )


@asynccontextmanager
async def async_client(server: FakeProvider, kind: Any = cohere.AsyncClientV2) -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    async with httpx.AsyncClient(verify=False, timeout=timeout_s()) as http:
        yield kind(
            base_url=server.base_url,
            api_key="test",
            httpx_client=http,
            timeout=timeout_s(),
            max_retries=0,
        )


async def astream(client: Any) -> Any:
    """One streamed chat: an asynchronous generator, not awaited."""
    return client.chat_stream(**ASKED)


async def achat(client: Any) -> Any:
    """One chat."""
    return await client.chat(**ASKED)


async def aembed(client: Any) -> Any:
    """One embeddings call."""
    return await client.embed(
        model="e", texts=[CANARY, "b"], input_type="search_document", embedding_types=["float"]
    )


CASE = ClientCase(
    name="cohere",
    distribution="cohere",
    server=FakeCohere,
    sync=sync_client,
    aio=async_client,
    errors=(ApiError, httpx.HTTPError),
    chat=lambda client: client.chat(**ASKED),
    stream=lambda client: client.chat_stream(**ASKED),
    achat=achat,
    astream=astream,
    reply=chat,
    stream_reply=chat_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unauthorised="401",
    timeout="httpx.ReadTimeout",
    watched=(
        "cohere.core.http_client:HttpClient.request",
        "cohere.core.http_client:HttpClient.stream",
        "cohere.core.http_client:AsyncHttpClient.request",
        "cohere.core.http_client:AsyncHttpClient.stream",
    ),
    embed=lambda client: client.embed(
        model="e", texts=[CANARY, "b"], input_type="search_document", embedding_types=["float"]
    ),
    aembed=aembed,
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 3},
)
