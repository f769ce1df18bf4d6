"""Reading foreign values: parsed SDK objects, plain dictionaries and JSON bytes look the same from here.

Each function lets one type through and turns everything else (`NotGiven`, `Omit`, None, a server's odd
answer) into None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

_NOTHING: Final[Mapping[str, Any]] = {}
_NUMBERS: Final = (int, float)
_SEQUENCES: Final = (list, tuple)


def field(value: Any, name: str) -> Any:
    """A field of a parsed object or a dictionary; None if it is absent."""
    if value is None:
        return None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    own: Mapping[str, Any] = getattr(value, "__dict__", _NOTHING)
    if name in own:
        return own[name]
    kind = value.__class__
    if _has_fields(kind) and not hasattr(kind, name):
        # To be asked for what it does not have costs such an object a microsecond or two.
        extra = value.__pydantic_extra__
        return extra.get(name) if extra else None
    return getattr(value, name, None)


def fields(value: Any) -> Mapping[str, Any]:
    """The fields of a parsed object or a dictionary: for who reads many of them, with `get`."""
    if value.__class__ is dict:
        return cast("dict[str, Any]", value)
    if value is None:
        return _NOTHING
    if _has_fields(value.__class__):
        own, extra = cast("dict[str, Any]", value.__dict__), value.__pydantic_extra__
        return {**own, **extra} if extra else own
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else _Attributes(value)


class _Attributes(Mapping[str, Any]):
    """The attributes of any object, asked for by name."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(getattr(self._owner, "__dict__", _NOTHING))

    def __len__(self) -> int:
        return len(getattr(self._owner, "__dict__", _NOTHING))


@lru_cache(maxsize=1024)
def _has_fields(kind: type) -> bool:
    """Is this a class of pydantic's, whose objects keep fields in their dictionary, and others in `extra`?"""
    return hasattr(kind, "__pydantic_fields__") and hasattr(kind, "__pydantic_extra__")


# The exact types come first: a look at the class is a third of `isinstance`, and each call is read so.
def mapping(value: Any) -> Mapping[str, Any] | None:
    """A mapping, such as a request's body or its headers."""
    if value.__class__ is dict:
        return cast("Mapping[str, Any]", value)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def text(value: Any) -> str | None:
    """A string that is not empty."""
    if value is None:
        return None
    return value if isinstance(value, str) and value else None


def number(value: Any) -> float | None:
    """An int or a float; booleans are neither."""
    kind = value.__class__
    if kind is float or kind is int:
        return cast("float", value)
    return value if isinstance(value, _NUMBERS) and not isinstance(value, bool) else None


def count(value: Any) -> int | None:
    """An int; booleans are none."""
    if value is None or value.__class__ is int:
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def items(value: Any) -> Sequence[Any]:
    """The elements of a list or tuple; nothing of anything else, which stays unread."""
    if value is None:
        return ()
    return cast("Sequence[Any]", value) if isinstance(value, _SEQUENCES) else ()


def document(value: Any) -> Any:
    """What a body or an event says: JSON bytes decoded, anything else as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None
