"""Reading foreign values: parsed SDK objects, plain dictionaries and JSON bytes look the same from here.

Each function lets one type through and turns everything else (`NotGiven`, `Omit`, None, a server's odd
answer) into None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec


def field(value: Any, name: str) -> Any:
    """A field of a parsed object or a dictionary; None if it is absent."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    return getattr(value, name, None)


def mapping(value: Any) -> Mapping[str, Any] | None:
    """A mapping, such as a request's body or its headers."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def text(value: Any) -> str | None:
    """A string that is not empty."""
    return value if isinstance(value, str) and value else None


def number(value: Any) -> float | None:
    """An int or a float; booleans are neither."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """An int; booleans are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def items(value: Any) -> Sequence[Any]:
    """The elements of a list or tuple; nothing of anything else, which stays unread."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def document(value: Any) -> Any:
    """What a body or an event says: JSON bytes decoded, anything else as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None
