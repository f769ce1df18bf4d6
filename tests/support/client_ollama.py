"""How services use the Ollama client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import ollama

from client_cases import CANARY, ClientCase, timeout_s
from neuronscope.signals import names
from neuronscope.testing.fake_ollama import FakeOllama, chat, chat_stream, error
from neuronscope.testing.fake_provider import FakeProvider

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": CANARY}]
TOOLS: Any = [{"type": "function", "function": {"name": "look_up", "description": CANARY, "parameters": {}}}]
ASKED: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "tools": TOOLS,
    "options": {"temperature": 0.5, "num_predict": 64, "top_k": 3, "seed": 7, "stop": [CANARY]},
}
COMPLETE = {
    names.PROVIDER_NAME: "ollama",
    names.REQUEST_MODEL: "m",
    names.RESPONSE_MODEL: "fake-model-1",
    names.INPUT_TOKENS: 11,
    names.OUTPUT_TOKENS: 5,
    names.FINISH_REASONS: ["stop"],
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_MAX_TOKENS: 64,
    names.REQUEST_TOP_K: 3,
    names.REQUEST_SEED: 7,
    names.INPUT_MESSAGE_COUNT: 2,
    names.ERROR_TYPE: None,
}
STREAMED = {**COMPLETE, names.REQUEST_STREAM: True, names.STREAM_END: "complete", names.STREAM_CHUNKS: 6}


@contextmanager
def sync_client(server: FakeProvider, **options: Any) -> Generator[Any]:
    """A client of the fake server."""
    client: Any = ollama.Client(host=server.base_url, timeout=timeout_s(), verify=False, **options)
    with client._client:  # the first releases' clients are no context managers themselves
        yield client


@asynccontextmanager
async def async_client(server: FakeProvider, **options: Any) -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    client: Any = ollama.AsyncClient(host=server.base_url, timeout=timeout_s(), verify=False, **options)
    async with client._client:
        yield client


async def achat(client: Any) -> Any:
    """One chat."""
    return await client.chat(**ASKED)


async def astream(client: Any) -> Any:
    """One streamed chat."""
    return await client.chat(**ASKED, stream=True)


async def aembed(client: Any) -> Any:
    """One embeddings call."""
    return await client.embed(model="e", input=[CANARY, "b"])


CASE = ClientCase(
    name="ollama",
    distribution="ollama",
    server=FakeOllama,
    sync=sync_client,
    aio=async_client,
    errors=(ollama.ResponseError, ConnectionError, httpx.HTTPError),
    chat=lambda client: client.chat(**ASKED),
    stream=lambda client: client.chat(**ASKED, stream=True),
    achat=achat,
    astream=astream,
    reply=chat,
    stream_reply=chat_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unauthorised="ollama._types.ResponseError",
    timeout="httpx.ReadTimeout",
    watched=("ollama._client:Client._request", "ollama._client:AsyncClient._request"),
    embed=lambda client: client.embed(model="e", input=[CANARY, "b"]),
    aembed=aembed,
    embedding={names.EMBEDDING_DIMENSIONS: 3, names.INPUT_COUNT: 2, names.INPUT_TOKENS: 3},
)
