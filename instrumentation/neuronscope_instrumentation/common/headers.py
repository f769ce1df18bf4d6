"""What HTTP headers tell of a call: the provider's id of it, and how much its limits leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from neuronscope.signals import names

_LIMITS: Final = (
    (names.RATE_LIMIT_REQUESTS, "limit", "requests"),
    (names.RATE_LIMIT_REQUESTS_LEFT, "remaining", "requests"),
    (names.RATE_LIMIT_TOKENS, "limit", "tokens"),
    (names.RATE_LIMIT_TOKENS_LEFT, "remaining", "tokens"),
)


def header_reader(
    limits: str | Mapping[str, str], identifiers: Sequence[str]
) -> Callable[[Mapping[str, str]], Mapping[str, Any]]:
    """A reader of headers.

    Args:
        limits: how headers of limits are called, for each unit or for all: ``{bound}`` stands for limit or
            remaining, ``{unit}`` for requests or tokens.
        identifiers: headers that may hold the provider's id of the call; the first that is there counts.
    """
    called: Mapping[str, str] = {"requests": limits, "tokens": limits} if isinstance(limits, str) else limits
    wanted = {
        called[unit].format(bound=bound, unit=unit): key for key, bound, unit in _LIMITS if unit in called
    }
    return partial(_read, wanted, tuple(identifiers))


def _read(
    wanted: Mapping[str, str], identifiers: Sequence[str], headers: Mapping[str, str]
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for header, key in wanted.items():
        value = headers.get(header)
        if value is not None and value.isascii() and value.isdigit():
            told[key] = int(value)
    identifier = next(filter(None, map(headers.get, identifiers)), None)
    if identifier is not None:
        told[names.REQUEST_ID] = identifier
    return told
