"""Paths of layers: what a pattern names, and what to say where nothing has a path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from neuronscope.exceptions import LayerNotFoundError

_CLOSE_NAMES: Final = 3


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression: ``*`` within one part of a path, ``**`` for any number of parts."""
    parts = {"**.": r"(?:.+\.)?", ".**": r"(?:\..+)?", "**": ".*", "*": r"[^.]*"}
    tokens: list[str] = re.findall(r"\*\*\.|\.\*\*$|\*\*|\*|[^*.]+|\.", pattern)
    return re.compile("".join(parts.get(token, re.escape(token)) for token in tokens), re.DOTALL)


def not_found(kind: str, paths: Sequence[str], wanted: str) -> LayerNotFoundError:
    """The error that names what is close to a path or pattern that names nothing."""
    close = difflib.get_close_matches(wanted, paths, _CLOSE_NAMES) or paths[:_CLOSE_NAMES]
    if not close:
        return LayerNotFoundError(
            f'{kind} has no layer {wanted!r}: it has no layers inside; "" watches it whole'
        )
    return LayerNotFoundError(f"{kind} has no layer {wanted!r}. Close to it: {', '.join(close)}")
