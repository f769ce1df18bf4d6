"""What the text of a setting may say: parsers, each with its words for an error message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field
from typing import Any, TypeVar

from neuronscope.exceptions import ConfigError

T = TypeVar("T")
Parse = Callable[[str], Any]  # raises ValueError; its docstring ends "… must be"


def number(low: float, high: float) -> Callable[[str], float]:
    """A number in a range, both ends in it."""

    def parse(said: str) -> float:
        value = float(said)
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__doc__ = f"a number between {low:g} and {high:g}"
    return parse


def integer(low: int, high: int = 2**63 - 1) -> Callable[[str], int]:
    """A whole number in a range, both ends in it."""

    def parse(said: str) -> int:
        value = int(said.replace("_", ""))
        if not low <= value <= high:
            raise ValueError
        return value

    parse.__doc__ = f"a whole number of at least {low}"
    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """One of some words, in capitals or not."""

    def parse(said: str) -> str:
        value = said.strip().lower()
        if value not in allowed:
            raise ValueError
        return value

    parse.__doc__ = "one of " + ", ".join(allowed)
    return parse


def level(said: str) -> str:
    """notset, debug, info, warning, error or critical"""
    value = said.strip().lower()
    value = {"warn": "warning", "fatal": "critical"}.get(value, value)
    if value not in {"notset", "debug", "info", "warning", "error", "critical"}:
        raise ValueError
    return value


def boolean(said: str) -> bool:
    """true or false"""
    value = said.strip().lower()
    if value in {"true", "1", "yes", "on"}:
        return True
    if value in {"false", "0", "no", "off"}:
        return False
    raise ValueError


def text(said: str) -> str:
    """text"""
    return said


def names(said: str) -> tuple[str, ...]:
    """names, separated by commas"""
    return tuple(part.strip() for part in said.split(",") if part.strip())


def pairs(said: str) -> tuple[tuple[str, str], ...]:
    """key=value pairs, separated by commas"""
    from urllib.parse import unquote

    found: list[tuple[str, str]] = []
    for part in names(said):
        key, separator, value = part.partition("=")
        if not separator:
            raise ValueError
        found.append((unquote(key.strip()), unquote(value.strip())))
    return tuple(found)


def counts(said: str) -> tuple[tuple[str, int], ...]:
    """key=number pairs, separated by commas"""
    found = tuple((key, int(value)) for key, value in pairs(said))
    if any(count < 1 for _, count in found):
        raise ValueError
    return found


def address(said: str) -> str:
    """HOST:PORT, or a port"""
    host, _, port = said.rpartition(":")
    if not 0 <= int(port) <= 65535:
        raise ValueError
    return f"{host or '127.0.0.1'}:{port}"


def setting(default: T, env: str, help_: str, parse: Parse, *, also: tuple[str, ...] = ()) -> T:
    """A field of `Settings`; `also` are further variables that are read when `env` is not set."""
    return field(default=default, metadata={"env": (env, *also), "help": help_, "parse": parse})


def parsed(source: str, said: str, parse: Parse) -> Any:
    """What was said there.

    Raises:
        ConfigError: it cannot be used; the message names the source, and what would be right.
    """
    try:
        return parse(said)
    except (ValueError, TypeError):
        raise ConfigError(f"`{source}` must be {parse.__doc__}; got {said!r}.") from None


def check(item: Field[Any], value: object) -> None:
    """Numbers and choices given as values are held to the same rules as text."""
    parse = item.metadata["parse"]
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value == "":
        return
    if parse not in (text, names, pairs):
        parsed(item.name, str(value), parse)
