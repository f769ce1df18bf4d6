"""What is kept of a statement that is sent, and what the worker reads of it.

The statement's text is content: of it only the operation and the table are told.  Parameters are looked at
just to find the vector that is searched with, and to tell statements about vectors from others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import (
    Endpoint,
    ErrorFacts,
    Operation,
    Peer,
    Query,
    Request,
    Response,
    Snapshot,
)
from neuronscope.signals import names
from neuronscope_instrumentation.common.retrieval import MAX_KEPT, kept_vector, size, store_error
from neuronscope_instrumentation.pgvector.rows import Rows, fold_row, read_rows
from neuronscope_instrumentation.pgvector.sql import Place, Score, Statement, read

MAX_PARAMETERS: Final = 64  # of one statement that are looked at
_VECTOR_CLASSES: Final = frozenset({"Vector", "HalfVector", "SparseVector"})
_NUMBER: Final = frozenset("0123456789+-. ")


class Server(NamedTuple):
    """Whom a connection talks to."""

    peer: Peer
    database: str | None


UNKNOWN: Final = Server(Peer("postgresql"), None)
_servers: Final[weakref.WeakKeyDictionary[Any, Server]] = weakref.WeakKeyDictionary()


def server_of(connection: Any, find: Callable[[Any], tuple[Any, Any, Any]]) -> Server:
    """Host, port and database of a connection, asked for once; a socket in the file system has no host."""
    known = _servers.get(connection)
    if known is None:
        host, port, database = find(connection)
        remote = isinstance(host, str) and bool(host) and not host.startswith("/")
        peer = Peer("postgresql", host, port if isinstance(port, int) else None) if remote else UNKNOWN.peer
        known = _servers[connection] = Server(peer, database if isinstance(database, str) else None)
    return known


# --- in the caller's thread -------------------------------------------------------------------------------
def snapshot(text: str, parameters: Any, server: Callable[[], Server]) -> Snapshot | None:
    """What is kept of one statement; None if it is not about vectors."""
    statement = read(text)
    if statement is None or not (statement.certain or _has_vector(statement, parameters)):
        return None
    vectors = [kept_vector(_value(statement.query, parameters))] if statement.query is not None else None
    return _kept(statement, server(), vectors, k=_value(statement.limit, parameters))


def snapshot_of_many(text: str, parameter_sets: Any, server: Callable[[], Server]) -> Snapshot | None:
    """What is kept of a statement that is sent once for each set of parameters.

    An iterator is the driver's to read: the statement alone then has to tell what it is about.
    """
    statement = read(text)
    sets: Sequence[Any] = parameter_sets if type(parameter_sets) in (list, tuple) else ()
    if statement is None or not (statement.certain or (sets and _has_vector(statement, sets[0]))):
        return None
    vectors = None
    if statement.query is not None and sets:
        vectors = [kept_vector(_value(statement.query, each)) for each in islice(sets, MAX_KEPT)]
    k = _value(statement.limit, sets[0]) if sets else None
    return _kept(statement, server(), vectors, k=k, count=size(parameter_sets))


def _kept(
    statement: Statement,
    server: Server,
    vectors: Sequence[Any] | None,
    *,
    k: Any = None,
    count: int | None = None,
) -> Snapshot:
    kept = {
        "statement": statement,
        "database": server.database,
        "vectors": vectors,
        "k": k,
        "count": count,
    }
    if statement.search:
        endpoint = search_endpoint(statement.score)
    else:
        endpoint = WRITE if statement.metric is None else LISTING
    return Snapshot(endpoint, statement.table, kept, server.peer, statement.operation)


def _has_vector(statement: Statement, parameters: Any) -> bool:
    """Do the parameters tell that vectors are searched or written?"""
    if statement.query is not None:
        value = _value(statement.query, parameters)
        return _is_vector(value) or _is_numbers(value)
    values: Iterable[Any] = ()
    if isinstance(parameters, Mapping):
        values = cast("Mapping[str, Any]", parameters).values()
    elif isinstance(parameters, list | tuple):
        values = cast("Sequence[Any]", parameters)
    return any(map(_is_vector, islice(values, MAX_PARAMETERS)))


def _is_vector(value: Any) -> bool:
    """Is this written as pgvector reads it, an array, or one of its own objects?"""
    kind = cast("type[object]", type(value))
    if isinstance(value, str):
        return value[:1] == "[" and value[-1:] == "]" and value[1:2] in _NUMBER
    return kind.__name__ in _VECTOR_CLASSES or (kind.__module__ == "numpy" and getattr(value, "ndim", 0) == 1)


def _is_numbers(value: Any) -> bool:
    return type(value) in (list, tuple) and bool(value) and isinstance(value[0], int | float)


def _value(place: Place | None, parameters: Any) -> Any:
    """The value at a place; None if it cannot be had without consuming something."""
    if place is None:
        return None
    if place.literal is not None:
        return place.literal
    if place.name is not None:
        return (
            cast("Mapping[str, Any]", parameters).get(place.name) if isinstance(parameters, Mapping) else None
        )
    if isinstance(parameters, list | tuple) and place.position is not None:
        values = cast("Sequence[Any]", parameters)
        return values[place.position] if place.position < len(values) else None
    return None


# --- in the worker ----------------------------------------------------------------------------------------
def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """Facts of a statement by what its snapshot kept."""
    statement: Statement = kept["statement"]
    summary = f"{statement.operation} {statement.table}" if statement.table else statement.operation
    extra = {names.DB_QUERY_SUMMARY: summary}
    if not statement.search:
        return Request(namespace=kept["database"], write_count=kept["count"], extra=extra)
    vectors: Sequence[Any] | None = kept["vectors"]
    return Request(
        namespace=kept["database"],
        k=_whole(kept["k"]),
        filtered=statement.filtered,
        metric=statement.score.metric if statement.score is not None else statement.metric,
        queries=[Query(vector=numbers(vector)) for vector in vectors or (None,)],
        extra=extra,
    )


def numbers(vector: Any) -> Any:
    """A vector in one of its forms as numbers; None if it has none that can be read."""
    if isinstance(vector, str):
        parts = vector.strip().removeprefix("[").removesuffix("]").split(",")
        try:
            return [float(part) for part in parts]
        except ValueError:
            return None
    if type(vector).__name__ in ("Vector", "HalfVector"):
        return vector.to_list()
    return vector


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isdigit() else None
    return value if isinstance(value, int) else None


def read_listing(rows: Rows, _content: bool) -> Response:
    """How many rows came back."""
    return Response(returned=rows.count)


def fold_listing(so_far: Response, _row: Any, _content: bool) -> Response:
    """Rows that come one by one, counted."""
    return Response(returned=(so_far.returned or 0) + 1)


def read_written(rows: Rows, _content: bool) -> Response:
    """How many rows were written, as the server counts them."""
    written = {} if rows.affected is None else {names.WRITE_COUNT: rows.affected}
    return Response(returned=rows.count or None, extra=written)


def read_error(error: BaseException) -> ErrorFacts:
    """PostgreSQL's drivers have a class for each SQLSTATE; its name says more than a status."""
    return ErrorFacts(store_error(error).type)


_endpoint: Final = partial(Endpoint, read_request=read_request, read_error=read_error)
LISTING: Final = _endpoint(operation=Operation.STORE, read_response=read_listing, fold_chunk=fold_listing)
WRITE: Final = _endpoint(operation=Operation.STORE, read_response=read_written, fold_chunk=fold_listing)


@lru_cache(1024)
def search_endpoint(score: Score | None) -> Endpoint:
    """A search whose scores are in that column."""
    return _endpoint(
        operation=Operation.RETRIEVAL,
        read_response=partial(read_rows, score),
        fold_chunk=partial(fold_row, score),
    )
