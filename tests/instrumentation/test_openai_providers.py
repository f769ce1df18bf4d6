"""Whose model it is: told by host, since many providers and servers of one's own speak the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest

from neuronscope.signals import names
from neuronscope.testing.fake_media import images
from neuronscope.testing.fake_openai import chat, chat_stream, embeddings
from neuronscope.testing.fake_provider import Reply
from neuronscope.testing.fake_responses import response
from neuronscope_instrumentation.openai.peers import provider
from openai_cases import agent

MESSAGES: Any = [{"role": "user", "content": "hi"}]
PROVIDERS = {
    "api.openai.com": "openai",
    "eu.api.openai.com": "openai",
    "mine.openai.azure.com": "azure.ai.openai",
    "mine.cognitiveservices.azure.com": "azure.ai.openai",
    "mine.services.ai.azure.com": "azure.ai.inference",
    "api.groq.com": "groq",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral_ai",
    "api.x.ai": "x_ai",
    "api.together.xyz": "together_ai",
    "api.moonshot.ai": "moonshot_ai",
    "openrouter.ai": "openrouter",
    "api.fireworks.ai": "fireworks_ai",
    "router.huggingface.co": "huggingface",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "europe-west1-aiplatform.googleapis.com": "gcp.vertex_ai",
    "bedrock-runtime.eu-west-1.amazonaws.com": "aws.bedrock",
    "bedrock-mantle.us-east-1.api.aws": "aws.bedrock",
    "eu-de.ml.cloud.ibm.com": "ibm.watsonx.ai",
    "vllm": "vllm",
    "vllm-0": "vllm",
    "my-vllm.models.svc.cluster.local": "vllm",
    "ollama": "ollama",
    "llama-cpp-server": "llama_cpp",
    "127.0.0.1": "openai",
    "gateway.example.test": "openai",
    "api.openai.com.evil.test": "openai",
    "notapi.x.ai": "openai",
    "bedrock-runtime.evil.test": "openai",
    "collamas": "openai",
}


@pytest.mark.parametrize(("host", "name"), PROVIDERS.items())
def test_the_provider_is_told_by_host(host: str, name: str) -> None:
    """Whatever speaks the protocol elsewhere is `openai`, with its address."""
    assert provider(host) == name


def mock(reply: Callable[[], Reply], seen: list[httpx2.Request]) -> httpx2.MockTransport:
    """A provider anywhere, without a socket."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        made = reply()
        return httpx2.Response(made.status, json=made.body, headers=dict(made.headers))

    return httpx2.MockTransport(answer)


@pytest.mark.parametrize(
    ("base_url", "name", "joins"),
    [
        ("https://api.openai.com/v1", "openai", False),
        ("https://api.groq.com/openai/v1", "groq", False),
        ("https://openrouter.ai/api/v1", "openrouter", False),
        ("https://api.deepseek.com", "deepseek", False),
        ("https://gateway.example.test/v1", "openai", False),
        ("http://localhost:8000/v1", "openai", True),
        ("http://127.0.0.1:11434/v1", "ollama", True),
        ("http://vllm:8000/v1", "vllm", True),
        ("http://10.1.2.3:8080/v1", "openai", True),
        ("http://vllm.models.svc:8000/v1", "vllm", True),
    ],
)
def test_servers_of_ones_own_join_the_trace(base_url: str, name: str, joins: bool) -> None:
    """They get the span's id; third parties learn nothing, though they speak the same protocol."""
    seen: list[httpx2.Request] = []
    with agent("on") as exporter, httpx2.Client(transport=mock(chat, seen)) as http:
        client = openai.OpenAI(base_url=base_url, api_key="x", http_client=http)
        client.chat.completions.create(model="m", messages=MESSAGES)
    (span,) = exporter.spans
    assert span.attributes[names.PROVIDER_NAME] == name
    assert span.attributes[names.SERVER_ADDRESS] == httpx2.URL(base_url).host
    expected = f"00-{span.trace_id:032x}-{span.span_id:016x}-01" if joins else None
    assert seen[0].headers.get("traceparent") == expected


AZURE: dict[str, Any] = {"api_key": "x", "api_version": "2024-10-21", "max_retries": 0}
ENDPOINT = "https://mine.openai.azure.com"


@pytest.mark.parametrize(
    ("where", "path", "address"),
    [
        ({"azure_endpoint": ENDPOINT}, "/openai/deployments/gpt/chat/completions", "mine.openai.azure.com"),
        (
            {"azure_endpoint": ENDPOINT, "azure_deployment": "mine"},
            "/openai/deployments/mine/chat/completions",
            "mine.openai.azure.com",
        ),
        (
            {"base_url": "https://gateway.example.test/azure"},
            "/azure/deployments/gpt/chat/completions",
            "gateway.example.test",
        ),
    ],
)
def test_azures_own_client(where: Any, path: str, address: str) -> None:
    """Deployments in the path, on the client, or behind a gateway: Azure all the same; copies too."""
    seen: list[httpx2.Request] = []
    with agent("on") as exporter, httpx2.Client(transport=mock(chat, seen)) as http:
        client = openai.AzureOpenAI(**where, **AZURE, http_client=http)
        client.chat.completions.create(model="gpt", messages=MESSAGES)
        client.with_options(timeout=3).chat.completions.create(model="gpt", messages=MESSAGES)
    assert [request.url.path for request in seen] == [path] * 2
    for span in exporter.spans:
        assert span.attributes[names.PROVIDER_NAME] == "azure.ai.openai"
        assert span.attributes[names.SERVER_ADDRESS] == address
        assert span.attributes[names.SERVER_PORT] == 443
        assert span.attributes[names.REQUEST_MODEL] == "gpt"
        assert span.attributes[names.RESPONSE_MODEL] == "fake-model-1"
    assert len(exporter.spans) == 2


@pytest.mark.parametrize("deployment", [None, "mine"])
def test_every_api_of_azure(deployment: str | None) -> None:
    """Responses are not below a deployment, embeddings and images are; the operation is told all the same."""
    seen: list[httpx2.Request] = []
    replies = iter([response(), embeddings([[0.5]], base64_encoded=True), images(), response()])
    with agent("on") as exporter, httpx2.Client(transport=mock(lambda: next(replies), seen)) as http:
        client = openai.AzureOpenAI(
            azure_endpoint=ENDPOINT, azure_deployment=deployment, **AZURE, http_client=http
        )
        client.responses.create(model="gpt", input="hi")
        client.embeddings.create(model="e", input="hi")
        client.images.generate(model="i", prompt="hi")
        client.responses.retrieve("resp-fake")
    told = [
        (span.attributes[names.PROVIDER_NAME], span.attributes[names.OPERATION_NAME])
        for span in exporter.spans
    ]
    operations = ["chat", "embeddings", "generate_content", "fetch_response"]
    assert told == [("azure.ai.openai", operation) for operation in operations]
    assert all("api-version=2024-10-21" in str(request.url) for request in seen)


def test_azures_asynchronous_client() -> None:
    """The same, streamed."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        events = [f"data: {openai_json(event)}\n\n" for event in chat_stream("one two").events or ()]
        body = "".join([*events, "data: [DONE]\n\n"])
        return httpx2.Response(200, text=body, headers={"content-type": "text/event-stream"})

    async def run() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            client = openai.AsyncAzureOpenAI(azure_endpoint=ENDPOINT, **AZURE, http_client=http)
            stream = await client.chat.completions.create(model="gpt", messages=MESSAGES, stream=True)
            assert [chunk async for chunk in stream]

    with agent("on") as exporter:
        asyncio.run(run())
    (span,) = exporter.spans
    assert span.attributes[names.PROVIDER_NAME] == "azure.ai.openai"
    assert span.attributes[names.OUTPUT_TOKENS] == 5
    assert "traceparent" not in seen[0].headers


def openai_json(event: Any) -> str:
    """An event as it goes over the wire."""
    return httpx2.Response(200, json=event).text


def test_azures_request_id() -> None:
    """Azure has a header of its own for it."""
    seen: list[httpx2.Request] = []

    def reply() -> Reply:
        return Reply(
            body=chat().body, headers={"apim-request-id": "apim-1", "x-ratelimit-remaining-tokens": "77"}
        )

    with agent("on") as exporter, httpx2.Client(transport=mock(reply, seen)) as http:
        client = openai.AzureOpenAI(azure_endpoint=ENDPOINT, **AZURE, http_client=http)
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    assert exporter.spans[0].attributes[names.REQUEST_ID] == "apim-1"
    assert exporter.spans[0].attributes[names.RATE_LIMIT_TOKENS_LEFT] == 77
