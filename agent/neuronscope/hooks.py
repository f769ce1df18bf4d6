"""Observe single client objects: ``client = ns.hooks.instrument_openai(openai.OpenAI())``."""

from __future__ import annotations

from typing import TypeVar

from neuronscope import platform

T = TypeVar("T")


def instrument_openai(client: T) -> T:
    """Observe one OpenAI client (sync or async), and the copies it makes of itself; returns it."""
    platform.instrument_object("openai", client)
    return client


def instrument_anthropic(client: T) -> T:
    """Observe one Anthropic client (sync or async, of any platform), and its copies; returns it."""
    platform.instrument_object("anthropic", client)
    return client
