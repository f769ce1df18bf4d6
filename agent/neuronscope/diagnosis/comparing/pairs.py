"""The same question asked on both sides, found without its words.

A query vector's SimHash is the same for the same vector, and often for one very near it, which its text then
tells apart; a text's checksum of 12 bits and its length are the same for the same text, and for one in some
hundred thousand others.  Twice on one side tells how much
answers differ by themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import numpy as np

from neuronscope.diagnosis.comparing.columns import Columns
from neuronscope.diagnosis.comparing.result import Pairing

MAX_PAIRS: Final = 5_000
CHECKSUMS: Final = 4_096  # different ones that a text can have
MAX_CHANCE: Final = 0.25  # of the pairs, those that may be none
Rows: TypeAlias = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of both sides that belong together.

    Attributes:
        vectors: searches with the same query vector.
        texts: searches whose question was the same text, whatever its vector.
        calls: model calls with the same prompt.
        repeated: searches of the one side with the same vector, as (earlier, later): before, after.
        vector_keys, call_keys: what the pairs are equal in, a row each of both sides; None: not known.
    """

    vectors: Rows = field(default_factory=list[tuple[int, int]])
    texts: Rows = field(default_factory=list[tuple[int, int]])
    calls: Rows = field(default_factory=list[tuple[int, int]])
    repeated: tuple[Rows, Rows] = field(default_factory=lambda: ([], []))
    vector_keys: tuple[list[Hashable], list[Hashable]] = ([], [])
    call_keys: tuple[list[Hashable], list[Hashable]] = ([], [])


def find_pairs(before: Columns, after: Columns) -> tuple[Pairs, Pairing]:
    """Pair what can be paired, each row once."""
    texts = _text_keys(before), _text_keys(after)
    vectors = _vector_keys(before), _vector_keys(after)
    if all(any(each) for each in texts):
        vectors = _with_texts(vectors[0], texts[0]), _with_texts(vectors[1], texts[1])
    calls = _call_keys(before), _call_keys(after)
    pairs = Pairs(
        _matched(*vectors),
        _trusted(_matched(*texts), texts),
        _trusted(_matched(*calls), calls),
        (_repeats(vectors[0]), _repeats(vectors[1])),
        vectors,
        calls,
    )
    counts = {"query": len(pairs.vectors), "question": len(pairs.texts), "request": len(pairs.calls)}
    return pairs, Pairing(
        {name: count for name, count in counts.items() if count},
        max(_rate(pairs.vectors, vectors), _rate(pairs.texts, texts), _rate(pairs.calls, calls)),
    )


def _rate(rows: Rows, keys: tuple[list[Hashable], list[Hashable]]) -> float:
    least = min(len({key for key in side if key is not None}) for side in keys)
    return min(1.0, len(rows) / least) if least else 0.0


def _vector_keys(side: Columns) -> list[Hashable]:
    table = side.searches
    columns = (table.labels(name) for name in ("fingerprint", "filtered", "error", "route"))
    return [
        (fingerprint, filtered, route) if fingerprint and not error else None
        for fingerprint, filtered, error, route in zip(*columns, strict=True)
    ]


def _with_texts(vectors: list[Hashable], texts: list[Hashable]) -> list[Hashable]:
    """Vectors of which it is known that they are the same text's: two near each other have one SimHash."""
    return [None if vector is None else (vector, text) for vector, text in zip(vectors, texts, strict=True)]


def _text_keys(side: Columns) -> list[Hashable]:
    """Of searches: what the trace embedded, if that was one text."""
    table = side.calls
    asked: dict[str, Any] = {}
    rows = zip(
        *(table.columns[name] for name in ("trace", "operation", "checksum", "characters", "inputs")),
        strict=True,
    )
    for trace, operation, checksum, characters, inputs in rows:
        if operation == "embeddings" and math.isfinite(checksum):
            known = trace in asked or inputs != 1.0
            asked[trace] = None if known else (checksum, characters)
    searches = side.searches
    columns = (searches.labels(name) for name in ("trace", "error", "fingerprint"))
    return [
        asked.get(trace) if not error and fingerprint else None
        for trace, error, fingerprint in zip(*columns, strict=True)
    ]


def _call_keys(side: Columns) -> list[Hashable]:
    table = side.calls
    columns = (table.columns[name] for name in ("operation", "checksum", "characters", "route", "error"))
    return [
        (operation, checksum, characters, route) if math.isfinite(checksum) and not error else None
        for operation, checksum, characters, route, error in zip(*columns, strict=True)
    ]


def _matched(before: list[Hashable], after: list[Hashable]) -> Rows:
    """One pair for each key: the first row that each side has of it."""
    first = _first(before)
    return [(first[key], row) for key, row in _first(after).items() if key in first][:MAX_PAIRS]


def _trusted(rows: Rows, keys: tuple[list[Hashable], list[Hashable]]) -> Rows:
    """The pairs, unless too many may be so by chance: other texts with the same length and checksum."""
    sizes = [Counter(_size(key) for key in {*side} if key is not None) for side in keys]
    chance = sum(count * sizes[1][size] for size, count in sizes[0].items()) / CHECKSUMS
    return rows if chance <= MAX_CHANCE * len(rows) else []


def _size(key: Hashable) -> Hashable:
    """All of a text's key but its checksum."""
    parts = cast("tuple[Any, ...]", key)
    if len(parts) == 2:  # a search: checksum and length
        return cast("Hashable", parts[1])
    return (parts[0], *parts[2:])  # a call: its kind, checksum, length and route


def _first(keys: Iterable[Hashable]) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    for row, key in enumerate(keys):
        if key is not None:
            found.setdefault(key, row)
    return found


def _repeats(keys: list[Hashable]) -> Rows:
    """(first, last) row of keys that came more than once."""
    first, last = _first(keys), {key: row for row, key in enumerate(keys) if key is not None}
    return [(row, last[key]) for key, row in first.items() if last[key] != row][:MAX_PAIRS]


def hamming(left: str, right: str) -> float:
    """Share of a SimHash's bits that differ: the angle between two vectors over π, roughly."""
    try:
        return (int(left, 16) ^ int(right, 16)).bit_count() / 64
    except ValueError:
        return float("nan")


def cosine_of(share: float) -> float:
    """The cosine of vectors whose SimHashes differ in this share of their bits (Charikar, 2002)."""
    return float(np.cos(np.pi * share))
