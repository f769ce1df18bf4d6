"""Rows as the drivers hold them, read by the worker: identity, score and names of columns.

Nothing is fetched: psycopg keeps what the server sent as long as its result object lives, asyncpg returns all
rows at once.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol, cast

from neuronscope.instrumentation import Hit, Response
from neuronscope_instrumentation.common.retrieval import identity_column
from neuronscope_instrumentation.pgvector.fetching import FetchedRow
from neuronscope_instrumentation.pgvector.sql import Score

_WHOLE: Final = frozenset({20, 21, 23})  # int8, int2, int4: object ids of PostgreSQL's types
_TEXTS: Final = frozenset({18, 19, 25, 114, 1042, 1043})  # char, name, text, json, bpchar, varchar
_FLOATS: Final = {700: ">f", 701: ">d"}
_BOOL, _UUID, _NUMERIC, _JSONB = 16, 2950, 1700, 3802


class Rows(Protocol):
    """A result; made in the caller's thread, read by the worker."""

    @property
    def names(self) -> Sequence[str]:
        """Names of its columns."""
        ...

    @property
    def count(self) -> int:
        """How many rows it has."""
        ...

    @property
    def affected(self) -> int | None:
        """Rows that were written, None if unknown."""
        ...

    def value(self, row: int, column: int) -> Any:
        """A value, None if it is of a type that is not read."""
        ...


class LibpqRows:
    """What psycopg has from the server: read byte by byte, no matter what the service fetches of it."""

    __slots__ = ("_affected", "_result")

    def __init__(self, result: Any, affected: int) -> None:
        self._result = result
        self._affected = affected

    @property
    def names(self) -> Sequence[str]:
        """Names of its columns."""
        return [self._result.fname(column).decode() for column in range(self._result.nfields)]

    @property
    def count(self) -> int:
        """How many rows it has."""
        return int(self._result.ntuples)

    @property
    def affected(self) -> int | None:
        """Rows that were written, None if unknown."""
        return self._affected if self._affected >= 0 else None

    def value(self, row: int, column: int) -> Any:
        """A value, None if it is of a type that is not read."""
        data = self._result.get_value(row, column)
        if data is None:
            return None
        return decoded(bytes(data), self._result.ftype(column), binary=self._result.fformat(column) == 1)


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Rows as Python objects, with the names of their columns or knowing them (asyncpg's `Record`)."""

    rows: Sequence[Any]
    columns: Sequence[str] | None = None
    affected: int | None = None

    @property
    def names(self) -> Sequence[str]:
        """Names of its columns."""
        if self.columns is not None:
            return self.columns
        return list(self.rows[0].keys()) if self.rows and hasattr(self.rows[0], "keys") else []

    @property
    def count(self) -> int:
        """How many rows it has."""
        return len(self.rows)

    def value(self, row: int, column: int) -> Any:
        """A value, None if it is of a type that is not read."""
        value = self.rows[row][column]
        return value if isinstance(value, str | int | float | uuid.UUID | Decimal) else None


@dataclass(frozen=True, slots=True)
class CountedRows:
    """A result of which only numbers are known: psycopg2 keeps its rows to itself."""

    count: int
    affected: int | None = None
    names: Sequence[str] = ()

    def value(self, _row: int, _column: int) -> Any:
        """Nothing is known of values."""
        return None


def decoded(data: bytes, kind: int, *, binary: bool) -> Any:
    """A value out of PostgreSQL's text or binary format."""
    if kind in _TEXTS:
        return data.decode("utf-8", "replace")
    if kind in _WHOLE:
        return int.from_bytes(data, "big", signed=True) if binary else int(data)
    if kind in _FLOATS:
        return struct.unpack(_FLOATS[kind], data)[0] if binary else float(data)
    if kind == _UUID:
        return str(uuid.UUID(bytes=data)) if binary else data.decode()
    if kind == _BOOL:
        return data in (b"t", b"\x01")
    if kind == _JSONB:
        return data[1:].decode() if binary else data.decode()
    return float(data) if kind == _NUMERIC and not binary else None


def read_rows(score: Score | None, rows: Rows, content: bool) -> Response:
    """The hits of a search."""
    columns = rows.names
    identity, scored = identity_column(columns), score_column(columns, score)
    others = {i: name for i, name in enumerate(columns) if i not in (identity, scored)}

    def value(row: int, column: int | None) -> Any:
        return None if column is None else rows.value(row, column)

    hits = [
        Hit(
            _text(value(row, identity)),
            _number(value(row, scored)),
            {name: value(row, i) if content else None for i, name in others.items()},
        )
        for row in range(rows.count)
    ]
    return Response(hits=[hits])


def fold_row(score: Score | None, so_far: Response, chunk: Any, content: bool) -> Response:
    """A search whose rows come one by one: told apart if their columns are known, else counted."""
    response = so_far if so_far.hits is not None else Response(hits=[[]])
    columns, row = chunk if isinstance(chunk, FetchedRow) else ((), chunk)
    if isinstance(row, Mapping):
        named = cast("Mapping[str, Any]", row)
        columns, row = list(named), list(named.values())
    found = read_rows(score, ListedRows((row,), columns), content)
    cast("list[list[Hit]]", response.hits)[0].extend(*(found.hits or ()))
    return response


def score_column(names: Sequence[str], score: Score | None) -> int | None:
    """Position of the column of scores; None if there is none, or several of that name."""
    return names.index(score.column) if score is not None and list(names).count(score.column) == 1 else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | Decimal) else None
