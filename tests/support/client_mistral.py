"""How services use the Mistral SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from mistralai.client import Mistral, errors

from client_cases import CANARY, ClientCase, timeout_s
from neuronscope.signals import names
from neuronscope.testing.fake_mistral import FakeMistral, chat, chat_stream, error
from neuronscope.testing.fake_provider import FakeProvider

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": CANARY}]
TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "description": CANARY, "parameters": {}}}]
ASKED: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "tools": TOOLS,
    "temperature": 0.5,
    "max_tokens": 64,
    "random_seed": 7,
    "stop": [CANARY],
}
COMPLETE = {
    names.PROVIDER_NAME: "mistral_ai",
    names.REQUEST_MODEL: "m",
    names.RESPONSE_MODEL: "fake-model-1",
    names.RESPONSE_ID: "cmpl-fake",
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["stop"],
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_MAX_TOKENS: 64,
    names.REQUEST_SEED: 7,
    names.INPUT_MESSAGE_COUNT: 2,
    names.ERROR_TYPE: None,
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.STREAM_CHUNKS: 7}


@contextmanager
def sync_client(server: FakeProvider, **options: Any) -> Generator[Any]:
    """A client of the fake server; without TLS set-up it costs nothing to make."""
    with httpx2.Client(verify=False) as http:
        waits = int(timeout_s() * 1000)
        yield Mistral(server_url=server.base_url, api_key="test", client=http, timeout_ms=waits, **options)


@asynccontextmanager
async def async_client(server: FakeProvider, **options: Any) -> AsyncGenerator[Any]:
    """The same object; its methods have asynchronous twins."""
    async with httpx2.AsyncClient(verify=False) as http:
        waits = int(timeout_s() * 1000)
        yield Mistral(
            server_url=server.base_url, api_key="test", async_client=http, timeout_ms=waits, **options
        )


async def achat(client: Any) -> Any:
    """One chat."""
    return await client.chat.complete_async(**ASKED)


async def astream(client: Any) -> Any:
    """One streamed chat."""
    return await client.chat.stream_async(**ASKED)


async def aembed(client: Any) -> Any:
    """One embeddings call."""
    return await client.embeddings.create_async(model="e", inputs=[CANARY, "b"])


CASE = ClientCase(
    name="mistral",
    distribution="mistralai",
    server=FakeMistral,
    sync=sync_client,
    aio=async_client,
    errors=(errors.MistralError, errors.NoResponseError, httpx2.HTTPError),
    chat=lambda client: client.chat.complete(**ASKED),
    stream=lambda client: client.chat.stream(**ASKED),
    achat=achat,
    astream=astream,
    reply=chat,
    stream_reply=chat_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unauthorised="401",
    timeout="httpx2.ReadTimeout",
    watched=(
        "mistralai.client.basesdk:BaseSDK.do_request",
        "mistralai.client.basesdk:BaseSDK.do_request_async",
        "mistralai.client._hooks.tracing:get_or_create_otel_tracer",
    ),
    embed=lambda client: client.embeddings.create(model="e", inputs=[CANARY, "b"]),
    aembed=aembed,
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 3},
)
