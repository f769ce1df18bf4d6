"""Numbers, ids and addresses on the command line: one way to read them, one way to refuse what is none."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    _Floats = click.ParamType[float]
    _Integers = click.ParamType[int]
    _Texts = click.ParamType[str]
else:  # click 8.1's has no parameters
    _Floats = _Integers = _Texts = click.ParamType


class Number(_Floats):
    """A finite number in a range.

    Args:
        low, high: both belong to the range.
        above: `low` does not.
        what: of what, for the message.
    """

    name = "number"

    def __init__(self, low: float, high: float, *, above: bool = False, what: str = "a number") -> None:
        self._low, self._high, self._above = low, high, above
        beginning = f"more than {low:g} and at most" if above else f"between {low:g} and"
        self._words = f"{what}, {beginning} {high:,g}"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Wrong usage where it is no such number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self._low <= number <= self._high or (self._above and number == self._low):
            self.fail(f"{str(value)!r} is not {self._words}", param, ctx)
        return number


class Count(_Integers):
    """A whole number in a range, both ends in it."""

    name = "count"

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low, self._high = low, high

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Wrong usage where it is no such number."""
        text = str(value)
        number = int(text) if re.fullmatch("[0-9]{1,18}", text) else -1
        if number < self._low or (self._high is not None and number > self._high):
            range_ = f"of at least {self._low}" if self._high is None else f"from {self._low} to {self._high}"
            self.fail(f"{text!r} is no whole number {range_}", param, ctx)
        return number


class Id(_Integers):
    """A hexadecimal id of so many digits at most."""

    name = "id"

    def __init__(self, digits: int) -> None:
        self._digits = digits

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Wrong usage where it is no id."""
        if isinstance(value, int):
            return value
        if not re.fullmatch(f"[0-9a-fA-F]{{1,{self._digits}}}", value):
            self.fail(f"{value!r} is no hexadecimal id of {self._digits} digits", param, ctx)
        return int(value, 16)


class Url(_Texts):
    """The address of a server that speaks HTTP."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Wrong usage where it is none; "" stays: nothing was said."""
        try:
            parts = urlsplit(value)
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none, half an IPv6 address
            sound = False
        if value and (not sound or re.search(r"\s", value)):
            self.fail(f"{value!r} is no address; it must be like http://localhost:9090", param, ctx)
        return value


_DAY_S: Final = 86_400
SECONDS: Final = Number(0, _DAY_S, what="a number of seconds")
SOME_SECONDS: Final = Number(0, _DAY_S, above=True, what="a number of seconds")
SPAN_ID: Final = Id(16)
TRACE_ID: Final = Id(32)
URL: Final = Url()
