"""LanceDB's results, read by the worker: tables of Arrow, which nobody can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronscope.instrumentation import Hit, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.retrieval import hits, identity_column

# Columns that LanceDB adds, the last step's first.
_SCORES: Final = ("_relevance_score", "_distance", "_score")
_QUERY: Final = "query_index"  # of a search by several vectors
_OWN: Final = frozenset({*_SCORES, _QUERY, "_rowid", "_rowaddr"})
_COUNTS: Final = ("num_deleted_rows", "rows_updated", "num_inserted_rows", "num_updated_rows")


def read_hits(table: Any, content: bool) -> Response:
    """The hits of each query."""
    columns: list[str] = table.column_names
    identity = identity_column(columns)
    id_column = columns[identity] if identity is not None else "_rowid"
    score = next((name for name in _SCORES if name in columns), None)
    others = [name for name in columns if name not in _OWN and name != id_column]
    about: list[Any] = (
        [_plain(row) for row in table.select(others).to_pylist()]
        if content
        else [dict.fromkeys(others)] * table.num_rows
    )
    found = hits(
        table[id_column].to_pylist() if id_column in columns else [""] * table.num_rows,
        table[score].to_pylist() if score is not None else None,
        about,
    )
    if _QUERY not in columns:
        return Response(hits=[found])
    positions: list[int] = table[_QUERY].to_pylist()
    return Response(hits=_by_query(found, positions))


def _by_query(found: list[Hit], positions: list[int]) -> list[list[Hit]]:
    queries: list[list[Hit]] = [[] for _ in range(max(positions, default=-1) + 1)]
    for hit, position in zip(found, positions, strict=True):
        queries[position].append(hit)
    return queries


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values that can be told; of vectors and structures only that they are there."""
    return {
        name: value if isinstance(value, str | int | float | bool) else None for name, value in row.items()
    }


def read_rows(table: Any, _content: bool) -> Response:
    """How many rows a listing returned."""
    return Response(returned=int(table.num_rows))


def read_written(result: Any, _content: bool) -> Response:
    """How many rows were changed, where LanceDB tells."""
    told: list[Any] = [getattr(result, name, None) for name in _COUNTS]
    counts = [count for count in told if isinstance(count, int)]
    return Response(extra={names.WRITE_COUNT: sum(counts)} if counts else {})


def nbytes(table: Any) -> int:
    """What a table holds in memory."""
    return int(table.nbytes)
