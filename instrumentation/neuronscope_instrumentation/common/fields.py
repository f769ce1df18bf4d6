"""Reading foreign values: parsed SDK objects, plain dictionaries and JSON bytes look the same from here.

Each function lets one type through and turns everything else (`NotGiven`, `Omit`, None, a server's odd
answer) into None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Final

import msgspec

from neuronscope import compiled
from neuronscope.instrumentation import Tell

_NOTHING: Final[Mapping[str, Any]] = {}
_NUMBERS: Final = (int, float)
_SEQUENCES: Final = (list, tuple)


# These run for each fact of each call: no `cast`, which is a call, and exact types first, since a look at the
# class is a third of `isinstance`.
def field(value: Any, name: str) -> Any:
    """A field of a parsed object or a dictionary; None if it is absent."""
    if value is None:
        return None
    kind = value.__class__
    if kind is dict:
        return value.get(name)
    own: Mapping[str, Any] = getattr(value, "__dict__", _NOTHING)
    if name in own:
        return own[name]
    if issubclass(kind, dict):
        return value.get(name)
    if _has_fields(kind) and not hasattr(kind, name):
        # To be asked for what it does not have costs such an object a microsecond or two.
        extra = value.__pydantic_extra__
        return extra.get(name) if extra else None
    return getattr(value, name, None)


def fields_in_python(value: Any) -> Mapping[str, Any]:
    """The fields of a parsed object or a dictionary: for who reads many of them, with `get`."""
    if value is None:
        return _NOTHING
    own: Mapping[str, Any]
    kind = value.__class__
    if kind is dict:
        own = value
    elif _has_fields(kind):
        extra = value.__pydantic_extra__
        own = {**value.__dict__, **extra} if extra else value.__dict__
    else:
        own = value if issubclass(kind, Mapping) else _Attributes(value)
    return own


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


def mapping(value: Any) -> Mapping[str, Any] | None:
    """A mapping, such as a request's body or its headers."""
    found: Mapping[str, Any] | None = value
    return found if value.__class__ is dict or isinstance(value, Mapping) else None


def text_in_python(value: Any) -> str | None:
    """A string that is not empty."""
    if value is None:
        return None
    return value if isinstance(value, str) and value else None


def number_in_python(value: Any) -> float | None:
    """An int or a float; booleans are neither."""
    kind = value.__class__
    found: float | None = value
    if kind is float or kind is int:
        return found
    return found if isinstance(value, _NUMBERS) and kind is not bool else None


def count_in_python(value: Any) -> int | None:
    """An int; booleans are none."""
    found: int | None = value
    if value is None or value.__class__ is int:
        return found
    return found if isinstance(value, int) and value.__class__ is not bool else None


def items_in_python(value: Any) -> Sequence[Any]:
    """The elements of a list or tuple; nothing of anything else, which stays unread."""
    found: Sequence[Any] = value
    return found if isinstance(value, _SEQUENCES) else ()


# What a fact may be: of any kind; a count that is not zero; true; an object, of which some fields are facts.
ANY, TEXT, COUNT, NUMBER, SOME, TRUTH, INTO = range(7)
# For `teller` alone.  `ONE`: a list of one such object, or none; `TEXTS`: a text, told as a list of it;
# `FLAG`: the value True; `CONSTANT`: told in any case; `ODD`: if true, nothing that a table has a place for;
# `RARE`: the same unless it is None.
ONE, TEXTS, FLAG, CONSTANT, ODD, RARE = range(7, 13)
_KINDS: Final[tuple[Callable[[Any], Any], ...]] = (
    lambda value: value,
    text_in_python,
    count_in_python,
    number_in_python,
    lambda value: count_in_python(value) or None,
    lambda value: True if value else None,
)


def pick_in_python(told: Mapping[str, Any], table: Sequence[Any]) -> dict[str, Any]:
    """Those facts that are told, and of the kind that they should be.

    Args:
        table: a fact's name, what we call it, its kind, name, …  Of the kind `INTO`, a table of its fields
            is in the place of what we call it.
    """
    found: dict[str, Any] = {}
    cells = iter(table)
    kind: int
    for name, called, kind in zip(cells, cells, cells):  # noqa: B905 - triples of the same iterator
        value = told.get(name)
        if kind == INTO:
            if value is not None:
                found.update(pick_in_python(fields_in_python(value), called))
            continue
        value = _KINDS[kind](value)
        if value is not None:
            found[called] = value
    return found


def tell_in_python(attributes: dict[str, Any], told: Mapping[str, Any], table: Sequence[Any]) -> bool:
    """`pick` into attributes; False as soon as something odd is met."""
    cells = iter(table)
    kind: int
    for name, called, kind in zip(cells, cells, cells):  # noqa: B905 - triples of the same iterator
        if kind == CONSTANT:
            attributes[called] = name
            continue
        value = told.get(name)
        if kind in (ODD, RARE):
            if value is not None and (value or kind == RARE):
                return False
        elif kind in (INTO, ONE):
            inner = items_in_python(value) if kind == ONE else () if value is None else (value,)
            if len(inner) > 1:
                return False
            if inner and not tell_in_python(attributes, fields_in_python(inner[0]), called):
                return False
        elif kind == FLAG:
            if value is True:
                attributes[called] = value
        else:
            value = _KINDS[TEXT if kind == TEXTS else kind](value)
            if value is not None:
                attributes[called] = [value] if kind == TEXTS else value
    return True


def subset_in_python(told: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """Those of these names that are told."""
    return {name: value for name, value in told.items() if name in names}


# All of these but `field` have compiled twins.
_make_fields: Final = compiled.find("make_fields")
_make_pick: Final = compiled.find("make_pick")
fields: Final = fields_in_python if _make_fields is None else _make_fields(fields_in_python)
pick: Final = pick_in_python if _make_pick is None else _make_pick(fields_in_python)
_make_teller: Final = compiled.find("make_teller")
subset: Final = compiled.choose("subset", subset_in_python)
text: Final = compiled.choose("text", text_in_python)
number: Final = compiled.choose("number", number_in_python)
count: Final = compiled.choose("count", count_in_python)
items: Final = compiled.choose("items", items_in_python)


def teller(table: tuple[Any, ...]) -> Tell:
    """What tells the facts of a value as attributes, in one go, unless something odd is among them.

    Args:
        table: as `pick` takes it; facts are called as attributes are.  The odd ones stand first, so that
            nothing has been told when one is met.
    """
    if _make_teller is not None:
        compiled_one: Tell = _make_teller(fields_in_python, table)
        return compiled_one
    return lambda attributes, value: tell_in_python(attributes, fields_in_python(value), table)


def document(value: Any) -> Any:
    """What a body or an event says: JSON bytes decoded, anything else as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None
