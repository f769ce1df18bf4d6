"""Who is called, told by host: many providers speak OpenAI's protocol.

The semantic conventions want the provider behind the address, whatever SDK reaches it.  Names that they do
not list are the providers' own, in the same spelling.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.common.peers import peer as peer_of

_HOSTS: Final = {
    "api.openai.com": "openai",
    "api.groq.com": "groq",
    "api.deepseek.com": "deepseek",
    "api.mistral.ai": "mistral_ai",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
    "api.anthropic.com": "anthropic",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "api.moonshot.ai": "moonshot_ai",
    "api.moonshot.cn": "moonshot_ai",
    "api.together.ai": "together_ai",
    "api.together.xyz": "together_ai",
    "api.fireworks.ai": "fireworks_ai",
    "api.cerebras.ai": "cerebras",
    "api.sambanova.ai": "sambanova",
    "api.deepinfra.com": "deepinfra",
    "api.novita.ai": "novita_ai",
    "api.ollama.com": "ollama",
    "ollama.com": "ollama",
    "openrouter.ai": "openrouter",
    "router.huggingface.co": "huggingface",
    "integrate.api.nvidia.com": "nvidia",
    "dashscope.aliyuncs.com": "alibaba_cloud",
    "dashscope-intl.aliyuncs.com": "alibaba_cloud",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "models.inference.ai.azure.com": "azure.ai.inference",
}
_SUFFIXES: Final = (
    (".openai.azure.com", "azure.ai.openai"),
    (".cognitiveservices.azure.com", "azure.ai.openai"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".models.ai.azure.com", "azure.ai.inference"),
    (".api.openai.com", "openai"),  # regional endpoints
    (".api.x.ai", "x_ai"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"),
    (".endpoints.huggingface.cloud", "huggingface"),
)
_BEDROCK: Final = re.compile(
    r"bedrock(-runtime|-mantle)?(-fips)?\.[a-z0-9-]+\.(amazonaws\.com|api\.aws)(\.cn)?"
)
# Model servers of one's own, told by the name of their host (compose, Kubernetes), or by a port that nobody
# else is known to use.
_SERVERS: Final = {"vllm": "vllm", "ollama": "ollama", "llamacpp": "llama_cpp", "llama-cpp": "llama_cpp"}
_PORTS: Final = {11434: "ollama"}
# What the protocol is called when the host says nothing: a proxy, or a model server of one's own.
DEFAULT: Final = "openai"
# A platform's own client means that platform, also behind a gateway.
_CLIENTS: Final = {"AzureOpenAI": "azure.ai.openai", "BedrockOpenAI": "aws.bedrock"}


@lru_cache(maxsize=256)
def provider(host: str) -> str:
    """OpenTelemetry's name of the provider behind a host."""
    known = _HOSTS.get(host)
    if known is not None:
        return known
    for suffix, name in _SUFFIXES:
        if host.endswith(suffix):
            return name
    if _BEDROCK.fullmatch(host):
        return "aws.bedrock"
    return _server(host.partition(".")[0]) or DEFAULT


def _server(name: str) -> str | None:
    """The make of a model server whose host is called after it: ``vllm``, ``ollama-0``, ``my-vllm``."""
    found = (make for word, make in _SERVERS.items() if re.search(rf"(^|[-_]){word}($|[-_0-9])", name))
    return next(found, None)


def peer(client: Any, url: str) -> Peer:
    """The server that a request of `client` goes to; an absolute `url` overrides the client's base."""
    # The property imports a module at each look; what it returns is this.
    found = peer_of(getattr(client, "_base_url", None) or client.base_url, url, provider)
    if found.provider != DEFAULT or found.address == "api.openai.com":
        return found
    return _named(found, type(client))  # type: ignore[arg-type] # mypy does not see that classes hash


@lru_cache(maxsize=256)
def _named(found: Peer, client: type, /) -> Peer:  # by position: a keyword costs the cache more
    if found.address is not None and found.address.endswith("api.openai.com"):
        return found
    platforms = (_CLIENTS.get(base.__name__.removeprefix("Async")) for base in client.__mro__)
    name = next(filter(None, platforms), None) or _PORTS.get(found.port or 0, DEFAULT)
    return found._replace(provider=name)
