"""Text from a recording, made fit to look at.

A recording may come from a stranger: names, ids and attributes can hold anything.
"""

from __future__ import annotations

import math
import re
from typing import Final

# C0 and C1 controls but tab and newline; marks that turn or hide text; line separators; lone surrogates.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str, limit: int | None = None) -> str:
    """The text with what a terminal would obey, or a reader not see, written as an escape.

    Args:
        limit: longer text is cut, and its length told.
    """
    shown = text if limit is None or len(text) <= limit else text[:limit]
    shown = _HIDDEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", shown)
    return shown if len(shown) >= len(text) else f"{shown}… ({len(text):,} characters)"


def number(value: object) -> float | None:
    """The value as a finite number, or None: attributes of a strange file can be of any type."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
