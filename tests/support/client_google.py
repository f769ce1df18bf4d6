"""How services use the Google Gen AI SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from google.genai import Client, errors

from client_cases import CANARY, ClientCase, timeout_s
from neuronscope.signals import names
from neuronscope.testing.fake_google import FakeGoogle, error, generation, generation_stream
from neuronscope.testing.fake_provider import FakeProvider

CONFIG: dict[str, Any] = {
    "system_instruction": CANARY,
    "temperature": 0.5,
    "max_output_tokens": 64,
    "top_k": 3,
    "seed": 7,
    "stop_sequences": [CANARY],
    "tools": [{"function_declarations": [{"name": "look_up", "description": CANARY}]}],
}
ASKED: dict[str, Any] = {"model": "m", "contents": CANARY, "config": CONFIG}
COMPLETE = {
    names.PROVIDER_NAME: "gcp.gemini",
    names.REQUEST_MODEL: "m",
    names.RESPONSE_MODEL: "fake-model-1",
    names.RESPONSE_ID: "gen-fake",
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: 5,
    names.REASONING_TOKENS: 2,
    names.FINISH_REASONS: ["STOP"],
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_MAX_TOKENS: 64,
    names.REQUEST_TOP_K: 3,
    names.REQUEST_SEED: 7,
    names.INPUT_MESSAGE_COUNT: 1,
    names.ERROR_TYPE: None,
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.STREAM_CHUNKS: 5}


def _client(server: FakeProvider, **options: Any) -> Any:
    http: dict[str, Any] = {
        "base_url": server.base_url,
        "timeout": int(timeout_s() * 1000),
        "client_args": {"verify": False},
        "async_client_args": {"verify": False, "transport": httpx2.AsyncHTTPTransport(verify=False)},
    }  # the transport, since the SDK would take aiohttp if that happens to be there
    return Client(http_options=http, **{"api_key": "test", **options})  # type: ignore[arg-type] # a dict will do


@contextmanager
def sync_client(server: FakeProvider, **options: Any) -> Generator[Any]:
    """A client of the fake server."""
    client = _client(server, **options)
    yield client
    client.close()


@asynccontextmanager
async def async_client(server: FakeProvider, **options: Any) -> AsyncGenerator[Any]:
    """Its asynchronous side."""
    client = _client(server, **options)
    yield client.aio
    await client.aio.aclose()
    client.close()


async def achat(client: Any) -> Any:
    """One generation."""
    return await client.models.generate_content(**ASKED)


async def astream(client: Any) -> Any:
    """One streamed generation."""
    return await client.models.generate_content_stream(**ASKED)


async def aembed(client: Any) -> Any:
    """One embeddings call."""
    return await client.models.embed_content(model="e", contents=[CANARY, "b"])


CASE = ClientCase(
    name="google_genai",
    distribution="google-genai",
    server=FakeGoogle,
    sync=sync_client,
    aio=async_client,
    errors=(errors.APIError, httpx2.HTTPError),
    chat=lambda client: client.models.generate_content(**ASKED),
    stream=lambda client: client.models.generate_content_stream(**ASKED),
    achat=achat,
    astream=astream,
    reply=generation,
    stream_reply=generation_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unauthorised="google.genai.errors.ClientError",
    timeout="httpx2.ReadTimeout",
    operation="generate_content",
    watched=tuple(
        f"google.genai._api_client:BaseApiClient.{function}"
        for function in ("request", "async_request", "request_streamed", "async_request_streamed")
    ),
    embed=lambda client: client.models.embed_content(model="e", contents=[CANARY, "b"]),
    aembed=aembed,
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2},
)
