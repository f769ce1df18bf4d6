"""Content as JSON that fits: cut before it is written, so that it stays JSON and costs no more than that.

A prompt can hold a 20 MB image and three hundred messages of 100 KB.  Lengths are read, never the texts:
each text keeps the same share of the room, short ones are whole, and what is cut says so with an ellipsis.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

MAX_DEPTH: Final = 32
MAX_NODES: Final = 20_000
SHORTEST: Final = 64  # a text cut below this tells nothing: rather leave messages out
ELLIPSIS: Final = "…"
_DATA_URL: Final = 256  # longer ones become their type, size and hash


def fit_json(items: Any, limit: int) -> tuple[str, bool]:
    """`items` as JSON of at most `limit` characters, and whether something had to go.

    Of too many items the first (the system prompt) and the last ones stay.
    """
    value: Any = items if type(items) in (dict, list, tuple) else list(items)
    shape = _Shape(value)
    whole = True
    while shape.cap(limit) < SHORTEST and not isinstance(value, Mapping) and len(value) > 2:
        keep = max(1, len(value) // 2)
        value = [value[0], *islice(value, len(value) - keep + 1, None)]
        shape, whole = _Shape(value), False
    cap = shape.cap(limit)
    for _ in range(8):  # quotes and control characters take more room than they seem to
        copy = _Copy(cap)
        plain: Any = copy.of(cast(object, value))
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= limit:
            return text, not (whole and copy.whole)
        cap = min(cap, shape.longest) // 2
    return "[]", True


class _Shape:
    """How many characters the texts of a value have, and how many everything around them takes."""

    def __init__(self, value: object) -> None:
        self._lengths: list[int] = []
        self._around = 0
        for node in islice(_nodes(value), MAX_NODES):
            if isinstance(node, str):
                self._lengths.append(min(len(node), _DATA_URL) if _is_data_url(node) else len(node))
            self._around += 8
        self._lengths.sort()
        self.longest = self._lengths[-1] if self._lengths else 0

    def cap(self, limit: int) -> int:
        """The longest a text may be so that all fit into `limit`; shorter ones leave room to longer ones."""
        room, left = limit - self._around, len(self._lengths)
        for length in self._lengths:
            if length * left > room:
                return max(0, room // left)
            room, left = room - length, left - 1
        return limit


def _nodes(value: object, depth: int = 0) -> Iterator[object]:
    yield value
    if depth >= MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            yield key
            yield from _nodes(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[object]", value):
            yield from _nodes(item, depth + 1)


class _Copy:
    """A copy of plain JSON types with texts cut.  `whole` tells whether nothing was."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._nodes = 0
        self.whole = True

    def of(self, value: object, depth: int = 0) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            self.whole = False
            return ELLIPSIS
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if abs(value) < float("inf") else str(value)  # JSON knows neither NaN nor Infinity
        if isinstance(value, Mapping):
            pairs = cast("Mapping[object, object]", value).items()
            return {self._text(str(key)): self.of(item, depth + 1) for key, item in pairs}
        if isinstance(value, bytes | bytearray):
            self.whole = False
            return f"[{len(value)} bytes sha256:{hashlib.sha256(value).hexdigest()[:16]}]"
        if isinstance(value, list | tuple):
            return self._list(cast("Iterable[object]", value), depth)
        return self._text(str(value))

    def _list(self, value: Iterable[object], depth: int) -> list[Any]:
        items: list[Any] = []
        for item in value:
            items.append(self.of(item, depth + 1))
            if self._nodes > MAX_NODES:
                break
        return items

    def _text(self, text: str) -> str:
        if _is_data_url(text):
            self.whole = False
            head = text[: text.index(",") + 1] if "," in text[:_DATA_URL] else "data:,"
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
            return f"{head}[{len(text)} characters sha256:{digest}]"
        if len(text) <= self._cap:
            return text
        self.whole = False
        return cut(text, self._cap)


def _is_data_url(text: str) -> bool:
    return len(text) > _DATA_URL and text.startswith("data:")


def cut(text: str, limit: int) -> str:
    """The beginning of a text, ending with a whole word where there are words.

    Half a word could be half a secret, which a redactor does not recognise.
    """
    end = max(0, limit - 1)
    space = text.rfind(" ", end - min(end, 256), end + 1)
    return text[: space if space > 0 else end] + ELLIPSIS
