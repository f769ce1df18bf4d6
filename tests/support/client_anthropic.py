"""How services use the Anthropic SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anthropic
from anthropic.lib.streaming import MessageStream

from client_cases import CANARY, ClientCase, timeout_s
from clients import has, http_library
from neuronscope.signals import names
from neuronscope.testing.fake_anthropic import FakeAnthropic, error, message, message_stream
from neuronscope.testing.fake_provider import FakeProvider

HTTP = http_library("anthropic")
MESSAGES: Any = [{"role": "user", "content": CANARY}]
TOOLS: Any = [{"name": "look_up", "description": CANARY, "input_schema": {"type": "object"}}]
ASKED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 64,
    "messages": MESSAGES,
    "system": CANARY,
    "stop_sequences": [CANARY],
    "extra_body": {"temperature": 0.5},  # an argument of its own until 2.x
    "tools": TOOLS,
}
# The helper of the first releases reads the response, not the stream: there we read its bytes, pings and all.
PINGS = int(not hasattr(MessageStream, "response"))
COMPLETE = {
    names.PROVIDER_NAME: "anthropic",
    names.REQUEST_MODEL: "m",
    names.RESPONSE_MODEL: "fake-model-1",
    names.RESPONSE_ID: "msg_fake",
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.CACHE_WRITE_TOKENS: 2,
    names.OUTPUT_TOKENS: 5,
    names.REASONING_TOKENS: 2,
    names.FINISH_REASONS: ["end_turn"],
    names.REQUEST_TEMPERATURE: 0.5,
    names.REQUEST_MAX_TOKENS: 64,
    names.INPUT_MESSAGE_COUNT: 1,
    names.ERROR_TYPE: None,
}
STREAMED = {
    **COMPLETE,
    names.REQUEST_STREAM: True,
    names.STREAM_END: "complete",
    names.STREAM_CHUNKS: 10 + PINGS,
}


@contextmanager
def sync_client(server: FakeProvider, **options: Any) -> Generator[Any]:
    """A client of the fake server; without TLS set-up it costs nothing to make."""
    with HTTP.Client(verify=False) as http:
        chosen: dict[str, Any] = {"max_retries": 0, "timeout": timeout_s(), **options}
        yield anthropic.Anthropic(base_url=server.base_url, api_key="test", http_client=http, **chosen)


@asynccontextmanager
async def async_client(server: FakeProvider, **options: Any) -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    async with HTTP.AsyncClient(verify=False) as http:
        chosen: dict[str, Any] = {"max_retries": 0, "timeout": timeout_s(), **options}
        yield anthropic.AsyncAnthropic(base_url=server.base_url, api_key="test", http_client=http, **chosen)


async def achat(client: Any) -> Any:
    """One message."""
    return await client.messages.create(**ASKED)


async def astream(client: Any) -> Any:
    """One streamed message."""
    return await client.messages.create(**ASKED, stream=True)


CASE = ClientCase(
    name="anthropic",
    distribution="anthropic",
    server=FakeAnthropic,
    sync=sync_client,
    aio=async_client,
    errors=(anthropic.AnthropicError, HTTP.HTTPError),
    chat=lambda client: client.messages.create(**ASKED),
    stream=lambda client: client.messages.create(**ASKED, stream=True),
    achat=achat,
    astream=astream,
    reply=message,
    stream_reply=message_stream,
    error=error,
    complete=COMPLETE,
    streamed=STREAMED,
    unseen=PINGS,
    unauthorised="anthropic.AuthenticationError",
    timeout="anthropic.APITimeoutError",
    watched=(
        "anthropic._base_client:SyncAPIClient.request",
        "anthropic._base_client:AsyncAPIClient.request",
        "anthropic._base_client:SyncAPIClient._process_response",
        "anthropic._base_client:AsyncAPIClient._process_response",
        *(("anthropic._base_client:start_api_call_span",) if has("anthropic", "2.0") else ()),
        "anthropic._client:Anthropic.copy",
        "anthropic._client:AsyncAnthropic.with_options",
        "anthropic.lib.vertex._client:AnthropicVertex.copy",
    ),
)
