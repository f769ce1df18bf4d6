"""pgvector for the contract suite: a real server, by psycopg.

psycopg2's connections cannot be observed if they were made before the agent looked, and asyncpg's serve one
task at a time: both are in tests/instrumentation/test_pgvector.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg

from neuronscope.signals import names
from postgres import schema
from store_cases import (
    COLLECTION,
    DIMENSION,
    IDS,
    QUERY,
    TEXTS,
    TITLES,
    VECTORS,
    FailingCall,
    StoreCall,
    StoreCase,
)

TABLE = (
    f"CREATE TABLE {COLLECTION} (id int PRIMARY KEY, title text, text text, embedding vector({DIMENSION}))"
)
INSERT = f"INSERT INTO {COLLECTION} (id, title, text, embedding) VALUES (%s, %s, %s, %s)"


def written(vector: Any) -> str:
    """A vector as pgvector reads it."""
    return "[" + ",".join(map(str, vector)) + "]"


DOCUMENTS = [
    (number, title, text, written(vector))
    for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
]
SEARCH = f"SELECT id, text, embedding <=> %s AS distance FROM {COLLECTION} {{}} ORDER BY distance LIMIT {{}}"


def filled() -> Generator[str]:
    """A schema with the documents."""
    with schema() as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(TABLE.encode())
            connection.cursor().executemany(INSERT.encode(), DOCUMENTS)
        yield uri


@contextmanager
def connected() -> Generator[Any]:
    """A connection of psycopg."""
    with contextmanager(filled)() as uri, psycopg.connect(uri, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def aconnected() -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    with contextmanager(filled)() as uri:
        async with await psycopg.AsyncConnection.connect(uri, autocommit=True) as connection:
            yield connection


def both(name: str, sql: str, parameters: Any = None, method: str = "SELECT", **how: Any) -> StoreCall:
    """A statement, whose rows are fetched if it has any."""

    def call(connection: Any) -> Any:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else cursor.rowcount

    async def acall(connection: Any) -> Any:
        cursor = await connection.execute(sql, parameters)
        return await cursor.fetchall() if cursor.description else cursor.rowcount

    return StoreCall(name=name, method=method, call=call, acall=acall, **how)


def nearest(name: str, where: str = "", *, more: tuple[Any, ...] = (), **how: Any) -> StoreCall:
    """A search for the three nearest documents."""
    facts = {names.RETRIEVAL_FILTERED: bool(where), names.DB_QUERY_SUMMARY: f"SELECT {COLLECTION}"}
    return both(
        name, SEARCH.format(where, "3"), (written(QUERY), *more), metric="cosine_distance", facts=facts, **how
    )


def other(name: str, sql: str, parameters: Any, method: str, count: int) -> StoreCall:
    """A write."""
    return both(name, sql, parameters, method, search=False, secret=False, facts={names.WRITE_COUNT: count})


def many(connection: Any) -> Any:
    """Writes in one go."""
    cursor = connection.cursor()
    cursor.executemany(INSERT, [(number + 100, *rest) for number, *rest in DOCUMENTS])
    return cursor.rowcount


async def amany(connection: Any) -> Any:
    """Its asynchronous twin."""
    cursor = connection.cursor()
    await cursor.executemany(INSERT, [(number + 100, *rest) for number, *rest in DOCUMENTS])
    return cursor.rowcount


def on_server(connection: Any) -> Any:
    """By a cursor on the server, in pages."""
    with connection.cursor("named", withhold=True) as cursor:
        cursor.execute(SEARCH.format("", "3"), (written(QUERY),))
        return [cursor.fetchmany(2), cursor.fetchone(), cursor.fetchone()]


async def aon_server(connection: Any) -> Any:
    """Its asynchronous twin."""
    async with connection.cursor("named", withhold=True) as cursor:
        await cursor.execute(SEARCH.format("", "3"), (written(QUERY),))
        return [await cursor.fetchmany(2), await cursor.fetchone(), await cursor.fetchone()]


def uploads(connection: Any, documents: Any) -> int:
    """From a generator of parameters."""
    rows = ((i, "", "", written(vector)) for i, vector in documents)
    connection.cursor().executemany(INSERT.replace("%s)", "%s::vector)"), rows)
    return int(connection.execute(f"SELECT count(*) FROM {COLLECTION}").fetchone()[0])


async def _failing(connection: Any) -> Any:
    return await connection.execute(SEARCH.format("", "3"), ("[1,2]",))


WRITES = (
    other("insert", INSERT, (50, "", "", written(QUERY)), "INSERT", 1),
    other("update", f"UPDATE {COLLECTION} SET embedding = %s WHERE id < 4", (written(QUERY),), "UPDATE", 3),
)
PSYCOPG = StoreCase(
    name="pgvector-psycopg",
    adapter="pgvector",
    system="postgresql",
    open=connected,
    aopen=aconnected,
    calls=(
        nearest("search"),
        nearest("filtered", "WHERE id > 2"),
        nearest("empty", "WHERE id > 99", returned=0, secret=False),
        both(
            "similarity",
            f"SELECT id, text, 1 - (embedding <=> %(q)s) AS s FROM {COLLECTION} ORDER BY s DESC LIMIT %(k)s",
            {"q": written(QUERY), "k": 3},
            metric="cosine",
        ),
        both(
            "literal",
            f"SELECT id, text, embedding <-> '{written(QUERY)}' AS d FROM {COLLECTION} ORDER BY d LIMIT 3",
            metric="euclid",
        ),
        both(
            "by id",
            f"SELECT id, text, embedding <+> (SELECT embedding FROM {COLLECTION} WHERE id = 4) AS d"
            f" FROM {COLLECTION} ORDER BY d LIMIT 3",
            metric="manhattan",
            fingerprint=False,
        ),
        StoreCall(
            name="on the server", method="SELECT", call=on_server, acall=aon_server, metric="cosine_distance"
        ),
        *WRITES,
        StoreCall(
            name="many",
            method="INSERT",
            call=many,
            acall=amany,
            search=False,
            secret=False,
            facts={names.WRITE_COUNT: 8},
        ),
    ),
    failing=(
        FailingCall(
            name="wrong dimension",
            call=lambda connection: connection.execute(SEARCH.format("", "3"), ("[1,2]",)),
            acall=_failing,
            error_type="psycopg.errors.DataException",
        ),
    ),
    errors=(psycopg.Error,),
    uploads=(uploads,),
    watched=(
        "psycopg:Cursor.execute",
        "psycopg:Cursor.stream",
        "psycopg:AsyncCursor.execute",
        "psycopg:ServerCursor.execute",
        "psycopg._server_cursor_base:ServerCursorMixin._fetch_gen",
    ),
    servers=True,
)
