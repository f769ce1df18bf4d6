"""Whose Claude is called: Anthropic's own, or a cloud platform's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Peer
from neuronscope_instrumentation.common.peers import Provider
from neuronscope_instrumentation.common.peers import peer as peer_of

DEFAULT: Final = "anthropic"
# By the client's class first: a platform is often reached through a gateway of one's own.  Where Anthropic
# runs Claude itself, on whosever machines (Foundry, AWS, Google Cloud), it is the provider; the SDK says so.
_CLASSES: Final = {
    "AnthropicBedrock": "aws.bedrock",
    "AnthropicBedrockMantle": "aws.bedrock",
    "AnthropicVertex": "gcp.vertex_ai",
    "AnthropicFoundry": DEFAULT,
    "AnthropicAWS": DEFAULT,
    "AnthropicGoogleCloud": DEFAULT,
}
_SUFFIXES: Final = (
    (".amazonaws.com", "aws.bedrock"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
)


@lru_cache(maxsize=64)
def provider_for(client: type) -> Provider:
    """How to name the provider behind a host, for clients of this class."""
    for base in client.__mro__:
        name = _CLASSES.get(base.__name__.removeprefix("Async"))
        if name is not None:
            return _always(name)
    return by_host


def _always(name: str) -> Provider:
    """Whatever the host is."""

    def provider(host: str) -> str:
        return name

    return provider


def by_host(host: str) -> str:
    """OpenTelemetry's name of the provider behind a host."""
    return next((name for suffix, name in _SUFFIXES if host.endswith(suffix)), DEFAULT)


def peer(client: Any, url: str) -> Peer:
    """The server that a request of `client` goes to."""
    return peer_of(client.base_url, url, provider_for(type(client)))  # type: ignore[arg-type] # mypy does not see that classes hash
