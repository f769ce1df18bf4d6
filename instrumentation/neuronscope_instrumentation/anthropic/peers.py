"""Whose Claude is called: Anthropic's own, or a cloud platform's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.common.peers import Provider
from neuronscope_instrumentation.common.peers import peer as peer_of

# By the client's class first: a platform is often reached through a gateway of one's own.
_CLASSES: Final = (
    ("Bedrock", "aws.bedrock"),
    ("AWS", "aws.bedrock"),
    ("Vertex", "gcp.vertex_ai"),
    ("GoogleCloud", "gcp.vertex_ai"),
    ("Foundry", "azure.ai.inference"),
)
_SUFFIXES: Final = (
    (".amazonaws.com", "aws.bedrock"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    (".services.ai.azure.com", "azure.ai.inference"),
)
DEFAULT: Final = "anthropic"


@lru_cache(maxsize=64)
def provider_for(client: str) -> Provider:
    """How to name the provider behind a host, for a client class of this name."""
    for part, name in _CLASSES:
        if part in client:
            return lambda _: name
    return by_host


def by_host(host: str) -> str:
    """OpenTelemetry's name of the provider behind a host."""
    return next((name for suffix, name in _SUFFIXES if host.endswith(suffix)), DEFAULT)


def peer(client: Any, url: str) -> Peer:
    """The server that a request of `client` goes to."""
    return peer_of(client.base_url, url, provider_for(type(client).__name__))
