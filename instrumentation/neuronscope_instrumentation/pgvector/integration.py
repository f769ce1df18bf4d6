"""The table of drivers' methods, and what each of them calls statement, parameters and result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope.instrumentation import ClientIntegration, Kind, Snapshot, Stream, WrappedMethod
from neuronscope_instrumentation.pgvector.calls import (
    UNKNOWN,
    Server,
    server_of,
    snapshot,
    snapshot_of_many,
)
from neuronscope_instrumentation.pgvector.fetching import FETCHED, leave, observe_server_cursors
from neuronscope_instrumentation.pgvector.rows import CountedRows, LibpqRows, ListedRows

if TYPE_CHECKING:
    from neuronscope.engine import Engine

Arguments = dict[str, Any]
CURSORS2: Final = "neuronscope_instrumentation.pgvector.psycopg2_cursors"


# --- psycopg and psycopg2 ---------------------------------------------------------------------------------
def _of_libpq(cursor: Any) -> Server:
    connection = cursor.connection
    return UNKNOWN if connection is None or connection.closed else server_of(connection, _libpq_info)


def _libpq_info(connection: Any) -> tuple[Any, Any, Any]:
    return connection.info.host, connection.info.port, connection.info.dbname


def _text(query: Any, cursor: Any) -> str | None:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode("utf-8", "replace")
    as_string = getattr(query, "as_string", None)  # psycopg's `sql.SQL` and the like
    return as_string(cursor) if as_string is not None else None


def _statement(cursor: Any, arguments: Arguments, _content: bool, *, parameters: str) -> Snapshot | None:
    leave(cursor)
    text = _text(arguments.get("query"), cursor)
    return snapshot(text, arguments.get(parameters), partial(_of_libpq, cursor)) if text else None


def _statements(cursor: Any, arguments: Arguments, _content: bool, *, parameters: str) -> Snapshot | None:
    leave(cursor)
    text = _text(arguments.get("query"), cursor)
    return snapshot_of_many(text, arguments.get(parameters), partial(_of_libpq, cursor)) if text else None


def _libpq_rows(cursor: Any) -> LibpqRows | None:
    """None in a pipeline: there the server has not answered yet."""
    result = cursor.pgresult
    return LibpqRows(result, cursor.rowcount) if result is not None else None


def _counted(cursor: Any) -> CountedRows | None:
    """How many rows a write of psycopg2 changed; None while an asynchronous connection waits."""
    return CountedRows(0, cursor.rowcount) if cursor.rowcount >= 0 else None


def _nothing(_result: Any) -> None:
    """Nothing is known yet, or ever."""


# --- asyncpg ----------------------------------------------------------------------------------------------
def _asyncpg_info(connection: Any) -> tuple[Any, Any, Any]:
    address: Any = getattr(connection, "_addr", None)
    host: Any = None
    port: Any = None
    if isinstance(address, tuple):  # else the path of a socket
        host, port = cast("tuple[Any, Any]", address)
    return host, port, getattr(getattr(connection, "_params", None), "database", None)


def _on_connection(connection: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    parameters = [value for name, value in arguments.items() if name.startswith("*")]
    return snapshot(arguments.get("query", ""), parameters, partial(server_of, connection, _asyncpg_info))


def _many_on_connection(connection: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    text = arguments.get("query") or arguments.get("command") or ""
    return snapshot_of_many(text, arguments.get("args"), partial(server_of, connection, _asyncpg_info))


def _prepared(prepared: Any, arguments: Arguments, content: bool) -> Snapshot | None:
    query = {"query": prepared._query}
    return _on_connection(prepared._connection, {**arguments, **query}, content)


def _many_prepared(prepared: Any, arguments: Arguments, content: bool) -> Snapshot | None:
    query = {"query": prepared._query}
    return _many_on_connection(prepared._connection, {**arguments, **query}, content)


def _records(result: Any) -> ListedRows:
    return ListedRows(tuple(result))


def _record(result: Any) -> ListedRows:
    return ListedRows(() if result is None else (result,))


def _value(result: Any) -> CountedRows:
    return CountedRows(0 if result is None else 1)


def _status(result: Any) -> ListedRows | None:
    """`execute` answers with the server's own count: ``INSERT 0 3``."""
    words = result.split() if isinstance(result, str) else ()
    return ListedRows((), affected=int(words[-1])) if words and words[-1].isdigit() else None


# --- the table --------------------------------------------------------------------------------------------
Take = Callable[[Any, Arguments, bool], Snapshot | None]
_GENERATOR: Final = Stream(is_stream=lambda _: True)


def _methods() -> Iterator[WrappedMethod]:
    one, many = partial(_statement, parameters="params"), partial(_statements, parameters="params_seq")
    for kind in ("Cursor", "AsyncCursor"):
        yield WrappedMethod(target=f"psycopg:{kind}.execute", snapshot=one, unwrap=_libpq_rows)
        yield WrappedMethod(target=f"psycopg:{kind}.executemany", snapshot=many, unwrap=_nothing)
        yield WrappedMethod(target=f"psycopg:{kind}.stream", snapshot=one, stream=_GENERATOR)
    for kind in ("ServerCursor", "AsyncServerCursor"):
        yield WrappedMethod(target=f"psycopg:{kind}.execute", snapshot=one, unwrap=_nothing, stream=FETCHED)
    one, many = (partial(take, parameters="parameters") for take in (_statement, _statements))
    yield WrappedMethod(
        target=f"{CURSORS2}:ObservedCursor.send", snapshot=one, unwrap=_counted, stream=FETCHED
    )
    yield WrappedMethod(target=f"{CURSORS2}:ObservedCursor.send_many", snapshot=many, unwrap=_counted)
    for owner, take, take_many in (
        ("asyncpg.connection:Connection", _on_connection, _many_on_connection),
        ("asyncpg.prepared_stmt:PreparedStatement", _prepared, _many_prepared),
    ):
        method = partial(WrappedMethod, awaitable=take is _prepared)  # those check the connection first
        yield method(target=f"{owner}.fetch", snapshot=take, unwrap=_records)
        yield method(target=f"{owner}.fetchrow", snapshot=take, unwrap=_record)
        yield method(target=f"{owner}.fetchval", snapshot=take, unwrap=_value)
        yield method(target=f"{owner}.fetchmany", snapshot=take_many, unwrap=_nothing, optional=True)
        yield method(target=f"{owner}.executemany", snapshot=take_many, unwrap=_nothing)
    yield WrappedMethod(
        target="asyncpg.connection:Connection.execute", snapshot=_on_connection, unwrap=_status
    )


def install(_engine: Engine, module: str) -> Callable[[], None]:
    """A driver is there that keeps rows to itself until they are fetched: let it tell."""
    if module == "psycopg":
        return observe_server_cursors(sys.modules[module])
    from neuronscope_instrumentation.pgvector import psycopg2_cursors

    return psycopg2_cursors.install()


PGVECTOR: Final = ClientIntegration(
    name="pgvector",
    requires="psycopg>=3.1",
    kind=Kind.VECTOR_STORE,
    modules=("psycopg", "psycopg2"),
    methods=tuple(_methods()),
    copies=(
        "psycopg:Connection.cursor",
        "psycopg:AsyncConnection.cursor",
        f"{CURSORS2}:ObservedConnection.cursor",
    ),
    install=install,
)
