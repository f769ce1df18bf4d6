"""Observe single client objects: ``client = ns.hooks.instrument_openai(openai.OpenAI())``."""

from __future__ import annotations

from typing import TypeVar

from neuronscope import platform

__all__ = [
    "instrument_anthropic",
    "instrument_cohere",
    "instrument_google_genai",
    "instrument_mistral",
    "instrument_ollama",
    "instrument_openai",
]

T = TypeVar("T")


def instrument_openai(client: T) -> T:
    """Observe one OpenAI client (sync or async, Azure's too), and the copies it makes; returns it."""
    platform.instrument_object("openai", client)
    return client


def instrument_anthropic(client: T) -> T:
    """Observe one Anthropic client (sync or async, of any platform), and its copies; returns it."""
    platform.instrument_object("anthropic", client)
    return client


def instrument_ollama(client: T) -> T:
    """Observe one Ollama client (sync or async); returns it."""
    platform.instrument_object("ollama", client)
    return client


def instrument_mistral(client: T) -> T:
    """Observe one Mistral client and its parts (``client.chat``); returns it."""
    platform.instrument_object("mistral", client)
    return client


def instrument_cohere(client: T) -> T:
    """Observe one Cohere client (sync or async, of either version), and its ``v2``; returns it."""
    platform.instrument_object("cohere", client)
    return client


def instrument_google_genai(client: T) -> T:
    """Observe one Google Gen AI client, and its ``aio``; returns it."""
    platform.instrument_object("google_genai", client)
    return client


def __dir__() -> list[str]:
    return sorted(__all__)
