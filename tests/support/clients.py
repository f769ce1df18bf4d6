"""Which clients the contract suite runs over, and which version of each is installed.

All of them; or, in an environment that has only some (the oldest versions that we claim, say), those that
`NEURONSCOPE_TEST_CLIENTS` names.
"""

from __future__ import annotations

import importlib
import os
import re
from functools import cache
from importlib.metadata import version
from typing import Any, Final, cast

from client_cases import ClientCase, with_calls

CHOICE: Final = "NEURONSCOPE_TEST_CLIENTS"
CLIENTS: Final = ("openai", "anthropic", "ollama", "mistral", "cohere", "google", "bedrock")


def some_only() -> bool:
    """Is this an environment of some clients, whose versions may be old?"""
    return bool(os.environ.get(CHOICE))


@cache
def cases() -> tuple[ClientCase, ...]:
    """How each client is used."""
    chosen = [name for name in os.environ.get(CHOICE, "").split(",") if name] or CLIENTS
    return tuple(
        with_calls(cast(ClientCase, importlib.import_module(f"client_{name}").CASE)) for name in chosen
    )


@cache
def variants() -> tuple[ClientCase, ...]:
    """Clients of the same SDKs for other platforms; all SDKs that have some have to be there."""
    return (
        () if some_only() else cast("tuple[ClientCase, ...]", importlib.import_module("client_clouds").CASES)
    )


@cache
def has(distribution: str, since: str) -> bool:
    """Is that version installed, or a later one?"""
    return _release(version(distribution)) >= _release(since)


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def http_library(sdk: str) -> Any:
    """The HTTP library that an SDK is made on: its clients take no other's.  Newer ones have httpx2."""
    base = importlib.import_module(f"{sdk}._base_client")
    return importlib.import_module("httpx2" if hasattr(base, "httpx2") else "httpx")
