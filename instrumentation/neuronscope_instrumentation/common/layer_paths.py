"""Paths of layers: what a pattern names, and what to say where nothing has a path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from neuronscope.exceptions import LayerNotFoundError

_CLOSE_NAMES: Final = 3
_PARTS: Final = {"**.": r"(?:.+\.)?", ".**": r"(?:\..+)?", "**": ".*", "*": r"[^.]*"}
_TOKENS: Final = re.compile(r"\*\*\.|\.\*\*$|\*\*|\*|[^*.]+|\.")


@lru_cache(maxsize=256)
def expression(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression: ``*`` within one part of a path, ``**`` for any number of parts."""
    tokens: list[str] = _TOKENS.findall(pattern)
    return re.compile("".join(_PARTS.get(token, re.escape(token)) for token in tokens), re.DOTALL)


def names(pattern: str, path: str) -> bool:
    """Does a path or a pattern name this path?"""
    return pattern == path or ("*" in pattern and expression(pattern).fullmatch(path) is not None)


def match(kind: str, paths: Sequence[str], pattern: str) -> list[str]:
    """The paths that a path or a pattern names, in their order; ``""`` names the model itself.

    Args:
        kind: what has these paths, for the message.

    Raises:
        LayerNotFoundError: there are none; the message names what is close.
    """
    if not pattern:
        return [""]
    found = [path for path in paths if names(pattern, path)]
    if not found:
        raise not_found(kind, paths, pattern)
    return found


def not_found(kind: str, paths: Sequence[str], wanted: str) -> LayerNotFoundError:
    """The error that names what is close to a path or pattern that names nothing."""
    close = difflib.get_close_matches(wanted, paths, _CLOSE_NAMES) or paths[:_CLOSE_NAMES]
    if not close:
        return LayerNotFoundError(
            f'{kind} has no layer {wanted!r}: it has no layers inside; "" watches it whole'
        )
    return LayerNotFoundError(f"{kind} has no layer {wanted!r}. Close to it: {', '.join(close)}")
