"""Who is called, told by host: many providers speak OpenAI's protocol."""

from __future__ import annotations

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
    "generativelanguage.googleapis.com": "gcp.gemini",
}
_SUFFIXES: Final = (
    (".openai.azure.com", "azure.ai.openai"),
    (".cognitiveservices.azure.com", "azure.ai.openai"),
    (".api.openai.com", "openai"),  # regional endpoints
    (".api.x.ai", "x_ai"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
)
# What the protocol is called when the host says nothing: a proxy, or a model server of one's own.
DEFAULT: Final = "openai"


@lru_cache(maxsize=256)
def provider(host: str) -> str:
    """OpenTelemetry's name of the provider behind a host."""
    known = _HOSTS.get(host)
    if known is not None:
        return known
    for suffix, name in _SUFFIXES:
        if host.endswith(suffix):
            return name
    return DEFAULT


def peer(client: Any, url: str) -> Peer:
    """The server that a request of `client` goes to; an absolute `url` overrides the client's base."""
    return peer_of(client.base_url, url, provider)
