"""What a command of the search module says: its query, its vector, its parameters; and what an index is like.

Vectors travel as bytes without a type.  Who made the index in this process has told it; else they are taken
for FLOAT32 if that gives plausible numbers, for FLOAT64 if that does, and for nothing if neither does.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Peer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_LEARNED: Final = 4096  # indexes that are remembered, per server
DEFAULT_LIMIT: Final = 10
# All are distances: Redis has no similarities.
METRICS: Final = {"COSINE": "cosine_distance", "IP": "dot_distance", "L2": "euclid_squared"}
_TYPES: Final = {"FLOAT32": "<f4", "FLOAT64": "<f8", "FLOAT16": "<f2"}
_PLAUSIBLE: Final = 1e4  # elements of embeddings are far smaller
_SMALLEST: Final = 1e-30

_KNN: Final = re.compile(
    r"\[\s*KNN\s+(?P<k>\$?\w+)\s+@(?P<field>[\w.]+)\s+\$(?P<vector>\w+)(?P<rest>[^\]]*)\]", re.IGNORECASE
)
_RANGE: Final = re.compile(
    r"@(?P<field>[\w.]+):\[\s*VECTOR_RANGE\s+\S+\s+\$(?P<vector>\w+)\s*\]", re.IGNORECASE
)
_ALIAS: Final = re.compile(r"\bAS\s+([\w.]+)|YIELD_DISTANCE_AS\s*:\s*([\w.]+)", re.IGNORECASE)


class VectorField(NamedTuple):
    """How an index holds a field's vectors, in Redis's words."""

    metric: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class KnownServer:
    """One connection pool's peer and database, and the indexes that were made through it.

    Attributes:
        learned: vector fields by name, by index.
    """

    peer: Peer
    database: str | None = None
    learned: dict[str, dict[str, VectorField]] = field(default_factory=dict[str, dict[str, VectorField]])

    def learn(self, index: str, fields: Mapping[str, VectorField]) -> None:
        """Remember an index."""
        if len(self.learned) >= MAX_LEARNED:
            self.learned.clear()
        self.learned[index] = dict(fields)


_known: Final[weakref.WeakKeyDictionary[Any, KnownServer]] = weakref.WeakKeyDictionary()


def known_server(client: Any) -> KnownServer:
    """What is known of the server that a client talks to; its pool is held weakly."""
    system = type(client).__module__.partition(".")[0]
    pool = getattr(client, "connection_pool", None) or client
    known = _known.get(pool)
    if known is None:
        told: Any = getattr(pool, "connection_kwargs", None) or {}
        host, port, database = told.get("host"), told.get("port"), told.get("db")
        peer = (
            Peer(system, host, port if isinstance(port, int) else None)
            if isinstance(host, str)
            else Peer(system)
        )
        known = _known[pool] = KnownServer(peer, str(database) if database is not None else None)
    return known


class Knn(NamedTuple):
    """What a query string says of its vector search.

    Attributes:
        k: a number, or ``$`` and the name of a parameter; None for a search in a range.
        vector: name of the parameter that holds the vector.
        score: the field that holds the distance of a hit.
    """

    k: str | None
    field: str
    vector: str
    score: str
    filtered: bool


def knn(query: str) -> Knn | None:
    """The vector search of a query string; None if there is none."""
    found = _KNN.search(query)
    if found is not None:
        before = query[: found.start()].rpartition("=>")[0].strip(" ()")
        alias = _ALIAS.search(found["rest"]) or _ALIAS.search(query[found.end() :])
        score = (alias[1] or alias[2]) if alias else f"__{found['field']}_score"
        return Knn(found["k"], found["field"], found["vector"], score, before not in ("", "*"))
    found = _RANGE.search(query)
    if found is None:
        return None
    alias = _ALIAS.search(query)
    score = (alias[1] or alias[2]) if alias else f"__{found['field']}_score"
    return Knn(None, found["field"], found["vector"], score, True)


def is_vector_search(query: str) -> bool:
    """Does a query string search by a vector?  Cheap: asked in the caller's thread."""
    return "$" in query and (_KNN.search(query) is not None or _RANGE.search(query) is not None)


def text(value: Any) -> str:
    """A word of a command."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Options(NamedTuple):
    """Options of FT.SEARCH that tell something."""

    parameters: Mapping[str, Any]
    limit: int


def options(words: Sequence[Any]) -> Options:
    """Of the words after the query string; vectors among them are skipped unread."""
    parameters: dict[str, Any] = {}
    limit, position = DEFAULT_LIMIT, 0
    while position < len(words):
        word = _short(words[position])
        if word == "PARAMS":
            count = int(words[position + 1])
            pairs = words[position + 2 : position + 2 + count]
            parameters = {text(name): value for name, value in zip(pairs[::2], pairs[1::2], strict=False)}
            position += 2 + count
        elif word == "LIMIT":
            limit = int(words[position + 2])
            position += 3
        else:
            position += 1
    return Options(parameters, limit)


def vector_fields(words: Sequence[Any]) -> dict[str, VectorField]:
    """The vector fields of an FT.CREATE."""
    found: dict[str, VectorField] = {}
    for position, word in enumerate(words):
        if _short(word) != "VECTOR" or position + 2 >= len(words):
            continue
        try:
            count = int(words[position + 2])
        except ValueError:
            continue  # a field of that name
        pairs = [_short(each) for each in islice(words, position + 3, position + 3 + count)]
        told = dict(zip(pairs[::2], pairs[1::2], strict=False))
        found[text(words[position - 1])] = VectorField(told.get("DISTANCE_METRIC"), told.get("TYPE"))
    return found


def _short(word: Any) -> str:
    return text(word).upper() if isinstance(word, str | bytes | int) and len(str(word)) < 32 else ""


def numbers(data: Any, kind: str | None) -> NDArray[np.floating[Any]] | None:
    """A vector out of its bytes; None if it cannot be read."""
    import numpy as np

    if not isinstance(data, bytes | bytearray | memoryview):
        return None
    raw = bytes(cast("bytes", data))
    if kind is not None:
        code = _TYPES.get(kind)
        return np.frombuffer(raw, code) if code is not None and len(raw) % int(code[2]) == 0 else None
    for code in ("<f4", "<f8"):
        if raw and len(raw) % int(code[2]) == 0:
            values = np.frombuffer(raw, code)
            size = np.abs(values[values != 0])
            if np.isfinite(size).all() and (size < _PLAUSIBLE).all() and (size > _SMALLEST).all():
                return values
    return None
