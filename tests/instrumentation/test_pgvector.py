"""A real PostgreSQL with pgvector, through every driver: what only one of them does, and that it is unharmed.

What all stores have in common is in tests/contract/test_store_contract.py.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import psycopg
import psycopg.rows
import pytest
import sqlalchemy as sa
from opentelemetry.trace import StatusCode
from psycopg import sql
from sqlalchemy.ext.asyncio import create_async_engine

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.instrumentation import Peer
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_instrumentation.pgvector.calls import Server, numbers, server_of
from neuronscope_instrumentation.pgvector.rows import decoded
from observing import canary_free, observe, observe_async, outcome
from postgres import schema

pytestmark = pytest.mark.integration

# these bring no types
asyncpg: Any = importlib.import_module("asyncpg")
psycopg2: Any = importlib.import_module("psycopg2")
extras: Any = importlib.import_module("psycopg2.extras")
extensions: Any = importlib.import_module("psycopg2.extensions")
pgvector: Any = importlib.import_module("pgvector")
pgvector_psycopg: Any = importlib.import_module("pgvector.psycopg")
pgvector_asyncpg: Any = importlib.import_module("pgvector.asyncpg")
pgvector_sqlalchemy: Any = importlib.import_module("pgvector.sqlalchemy")

SECRET = "canary-9c1e"
VECTORS = [[1.0, 0.0, 0.25], [0.0, 1.0, 0.25], [0.5, 0.5, 0.25], [0.75, 0.25, 0.25]]
QUERY = [1.0, 0.0625, 0.25]
TEXT = "[1.0,0.0625,0.25]"
NEAREST = "SELECT id, title, embedding <=> %s AS distance FROM items ORDER BY distance LIMIT 2"


@pytest.fixture
def uri() -> Iterator[str]:
    """A schema with four items, made before anything is observed."""
    with schema() as found:
        with psycopg.connect(found, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE items (id serial PRIMARY KEY, title text, about jsonb, embedding vector(3))"
            )
            connection.cursor().executemany(
                "INSERT INTO items (title, embedding) VALUES (%s, %s)",
                [(f"{SECRET} {i}", str(vector)) for i, vector in enumerate(VECTORS)],
            )
        yield found


@pytest.fixture
def connection(uri: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of psycopg."""
    with psycopg.connect(uri, autocommit=True) as found:
        yield found


def is_nearest(span: SpanRecord, metric: str = "cosine_distance") -> bool:
    """Is this the search for `QUERY`, whole?"""
    facts = query_facts(QUERY)
    assert facts is not None
    told = {
        names.RETRIEVAL_IDS: ["1", "4"],
        names.RETRIEVAL_METRIC: metric,
        names.RETRIEVAL_TOP_K: 2,
        names.DB_COLLECTION: "items",
        names.DB_OPERATION: "SELECT",
        names.DB_NAMESPACE: "postgres",
        names.QUERY_FINGERPRINT: facts.fingerprint,
    }
    scores = span.attributes[names.RETRIEVAL_SCORES]
    assert {key: span.attributes.get(key) for key in told} == told
    assert isinstance(scores, list)
    assert scores == sorted(scores)
    return canary_free([span], SECRET, "0.0625")


# --- psycopg ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "query",
    [
        TEXT,
        f" {TEXT} ",
        pgvector.Vector(QUERY),
        np.array(QUERY, dtype=np.float32),
        pgvector.HalfVector(QUERY),
    ],
    ids=["text", "spaces", "Vector", "array", "HalfVector"],
)
def test_a_vector_has_many_forms(connection: psycopg.Connection[Any], query: Any) -> None:
    """Text, pgvector's own objects, arrays: the same fingerprint."""
    pgvector_psycopg.register_vector(connection)
    kind = "halfvec" if type(query).__name__ == "HalfVector" else "vector"
    statement = NEAREST.replace("embedding", f"embedding::{kind}(3)") if kind == "halfvec" else NEAREST
    _, (span,) = observe("pgvector", lambda: connection.execute(statement, (query,)).fetchall())
    assert is_nearest(span)


@pytest.mark.parametrize("binary", [False, True])
def test_rows_are_read_in_both_formats(connection: psycopg.Connection[Any], binary: bool) -> None:
    """Ids and distances out of the server's own bytes, whatever the service makes of its rows."""
    cursor = connection.cursor(binary=binary, row_factory=psycopg.rows.dict_row)
    rows, (span,) = observe("pgvector", lambda: cursor.execute(NEAREST, (TEXT,)).fetchone())
    assert rows["id"] == 1
    assert is_nearest(span)
    assert span.attributes[names.RETRIEVAL_METADATA_KEYS] == ["title"]


def test_nothing_is_fetched(connection: psycopg.Connection[Any]) -> None:
    """The cursor is where the service left it: at its first row."""
    cursor = connection.cursor()

    def use() -> Any:
        cursor.execute(NEAREST, (TEXT,))
        ENGINE.drain()
        return cursor.rownumber, cursor.fetchone(), cursor.rownumber, cursor.fetchall(), cursor.rowcount

    expected = use()
    observed, _ = observe("pgvector", use)
    assert observed == expected


@pytest.mark.parametrize(
    "statement",
    [
        NEAREST.encode(),
        sql.SQL("SELECT id, title, embedding <=> %s AS distance FROM {} ORDER BY distance LIMIT {}").format(
            sql.Identifier("items"), sql.Literal(2)
        ),
    ],
    ids=["bytes", "composed"],
)
def test_statements_have_many_forms(connection: psycopg.Connection[Any], statement: Any) -> None:
    """Bytes, and `psycopg.sql`'s objects."""
    _, (span,) = observe("pgvector", lambda: connection.execute(statement, (TEXT,)).fetchall())
    assert is_nearest(span)


def test_raw_cursors_number_their_parameters(uri: str) -> None:
    """PostgreSQL's own form of parameters, and parameters that the client fills in."""
    for factory, place in ((psycopg.RawCursor, "$1"), (psycopg.ClientCursor, "%s")):
        with psycopg.connect(uri, cursor_factory=factory) as connection:
            search = partial(connection.execute, NEAREST.replace("%s", place).encode(), [TEXT])
            _, (span,) = observe("pgvector", search)
            assert is_nearest(span)


def test_a_stream_is_counted_as_it_is_read(connection: psycopg.Connection[Any]) -> None:
    """Row by row, ended early or not; rows with names are told apart."""
    cursor = connection.cursor(row_factory=psycopg.rows.dict_row)

    def use() -> None:
        assert len(list(cursor.stream(NEAREST, (TEXT,)))) == 2
        rows: Any = connection.cursor().stream(NEAREST.encode(), (TEXT,))
        assert next(rows)[0] == 1
        rows.close()

    _, (whole, part) = observe("pgvector", use)
    assert is_nearest(whole)
    assert part.attributes[names.RETRIEVAL_RETURNED] == 1
    assert part.attributes[names.STREAM_END] == "client_closed"
    assert names.RETRIEVAL_IDS not in part.attributes


def test_a_pipeline_is_untouched(connection: psycopg.Connection[Any]) -> None:
    """Statements go out without an answer: what is asked is told, what comes back is not known yet."""

    def use() -> Any:
        with connection.pipeline():
            cursors = [connection.execute(NEAREST, (TEXT,)) for _ in range(2)]
            connection.execute("INSERT INTO items (embedding) VALUES (%s)", (TEXT,))
            return [cursor.fetchall() for cursor in cursors]

    rows, spans = observe("pgvector", use)
    assert [[row[0] for row in found] for found in rows] == [[1, 4]] * 2
    assert [span.attributes[names.DB_OPERATION] for span in spans] == ["SELECT", "SELECT", "INSERT"]
    assert all(names.RETRIEVAL_RETURNED not in span.attributes for span in spans)


def test_one_statement_for_many_queries(connection: psycopg.Connection[Any]) -> None:
    """`executemany` with rows: one span, a record for each query."""

    def use() -> Any:
        cursor = connection.cursor()
        cursor.executemany(NEAREST, [(TEXT,), ("[0.0,1.0,0.0]",)], returning=True)
        return (
            [result.fetchall()[0][0] for result in cursor.results()] if hasattr(cursor, "results") else None
        )

    _, (span,) = observe("pgvector", use)
    assert span.attributes[names.DB_BATCH_SIZE] == 2
    assert len(span.events) == 2
    assert names.RETRIEVAL_RETURNED not in span.attributes


def test_copy_is_untouched(connection: psycopg.Connection[Any]) -> None:
    """Rows that are copied in say nothing of vectors in their statement: no span, no difference."""

    def use() -> None:
        with connection.cursor().copy("COPY items (title, embedding) FROM STDIN") as copy:
            copy.write_row(("x", TEXT))

    _, spans = observe("pgvector", use)
    assert spans == []
    assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)


OTHER = [
    ("SELECT 1", ()),
    ("SELECT title FROM items WHERE id < %s", (3,)),
    ("SELECT title <-> %s FROM items ORDER BY 1", ("trigrams",)),
    ("SELECT point(id, 0) <-> point(0, 0) FROM items ORDER BY 1", ()),
    ("INSERT INTO items (title) VALUES (%s)", ("plain",)),
    ("UPDATE items SET about = %s", ('{"a": [1, 2]}',)),
    ("SELECT '<=>'", ()),
    ("DELETE FROM items WHERE id = 99", ()),
]


@pytest.mark.parametrize(("statement", "parameters"), OTHER, ids=[str(i) for i in range(len(OTHER))])
def test_other_statements_have_no_span(uri: str, statement: Any, parameters: Any) -> None:
    """A service sends all sorts of statements; only those about vectors are ours."""
    for connect in (psycopg.connect, psycopg2.connect):
        ns.instrument("pgvector")
        connection = connect(uri)
        _, spans = observe("pgvector", partial(connection.cursor().execute, statement, parameters))
        assert spans == []
        connection.close()


def test_a_lost_connection_is_an_error(connection: psycopg.Connection[Any]) -> None:
    """A closed connection fails as it does without us."""
    connection.close()
    expected = outcome(lambda: connection.execute(NEAREST, (TEXT,)))
    cursor_error, spans = observe("pgvector", lambda: outcome(lambda: connection.execute(NEAREST, (TEXT,))))
    assert cursor_error == expected
    assert cursor_error[0] == "raised"
    assert spans == []  # there was no cursor to send it with


def test_an_unfetched_search_on_the_server_ends_with_its_cursor(connection: psycopg.Connection[Any]) -> None:
    """Closed, or used for something else; a page that fails is an error."""

    def use() -> None:
        with connection.transaction():
            with connection.cursor("first") as cursor:
                cursor.execute(NEAREST, (TEXT,))
                cursor.fetchone()
            cursor = connection.cursor("second")
            cursor.execute(NEAREST, (TEXT,))
            assert [row[0] for row in cursor] == [1, 4]
            cursor.execute("SELECT id FROM items")
            assert len(cursor.fetchall()) == 4
            cursor.close()

    _, (closed, whole) = observe("pgvector", use)
    assert closed.attributes[names.STREAM_END] == "client_closed"
    assert closed.attributes[names.RETRIEVAL_RETURNED] == 1
    assert is_nearest(whole)
    assert whole.attributes[names.STREAM_END] == "complete"


def test_a_page_that_fails_is_an_error(connection: psycopg.Connection[Any]) -> None:
    """The server finds a fault in the second row only when it is fetched."""
    failing: Any = NEAREST.replace("title", "1 / (id - 4) AS broken")

    def use() -> Any:
        with connection.transaction(), connection.cursor("third") as cursor:
            cursor.execute(failing.replace("ORDER BY distance", "WHERE embedding <=> %s < 9"), (TEXT, TEXT))
            return cursor.fetchall()

    failing = failing.replace("LIMIT 2", "")
    with pytest.raises(psycopg.errors.DivisionByZero):
        observe("pgvector", use)


# --- psycopg2 -----------------------------------------------------------------------------------------------
def with_psycopg2(uri: str, use: Any, **how: Any) -> tuple[Any, list[SpanRecord]]:
    """Connect while observed, and use the connection."""

    def run() -> Any:
        connection = psycopg2.connect(uri, **how)
        try:
            return use(connection)
        finally:
            connection.close()

    return observe("pgvector", run)


@pytest.mark.parametrize(
    "factory", [None, extras.DictCursor, extras.RealDictCursor, extras.NamedTupleCursor], ids=str
)
@pytest.mark.parametrize("fetch", ["fetchall", "fetchone", "fetchmany", "iterate", "named"])
def test_psycopg2_rows_are_told_as_they_are_fetched(uri: str, factory: Any, fetch: str) -> None:
    """Whatever cursor, however fetched: the same rows, of the same types, and their ids and scores."""

    def use(connection: Any) -> Any:
        named = {"name": "there"} if fetch == "named" else {}
        cursor = connection.cursor(cursor_factory=factory, **named)
        assert cursor.execute(NEAREST, (TEXT,)) is None
        if fetch == "fetchone":
            return [cursor.fetchone(), cursor.fetchone(), cursor.fetchone()]
        if fetch == "fetchmany":
            return [*cursor.fetchmany(1), *cursor.fetchmany(size=5)]
        return cursor.fetchall() if fetch == "fetchall" else list(cursor)

    plain = psycopg2.connect(uri)
    expected = use(plain)
    plain.close()
    observed, (span,) = with_psycopg2(uri, use)
    assert observed == expected
    assert list(map(repr, map(type, observed))) == list(map(repr, map(type, expected)))
    assert is_nearest(span)
    assert span.attributes[names.STREAM_END] == "complete"


def test_psycopg2_types_are_its_own(uri: str) -> None:
    """Connections and cursors are subclasses that bear their base's names; asked-for classes are kept."""

    class Mine(extensions.connection):  # type: ignore[misc]
        pass

    def use(connection: Any) -> Any:
        cursor = connection.cursor()
        kind = cast("type[object]", type(cursor))
        assert isinstance(cursor, extensions.cursor)
        assert repr(kind) == repr(extensions.cursor)
        assert kind.__name__ == "cursor"
        extras.register_uuid(conn_or_curs=connection)
        with connection, connection.cursor(None, extras.DictCursor) as other:
            other.execute(NEAREST, (TEXT,))
            assert other.fetchone()["id"] == 1
        return isinstance(connection, Mine), cursor.mogrify("%s", (1,)), connection.cursor_factory

    def unfetched(connection: Any) -> None:
        connection.cursor().execute(NEAREST, (TEXT,))

    observed, _ = with_psycopg2(uri, use, connection_factory=Mine)
    assert observed == (True, b"1", None)
    observed, (span,) = with_psycopg2(uri, unfetched, cursor_factory=extras.DictCursor)
    assert span.attributes[names.STREAM_END] in ("client_closed", "abandoned")


def test_psycopg2_writes_are_counted(uri: str) -> None:
    """By the server's own count."""

    def use(connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("UPDATE items SET embedding = %s", (TEXT,))
        cursor.executemany("INSERT INTO items (embedding) VALUES (%s)", [(TEXT,), (TEXT,)])
        extras.execute_values(cursor, "INSERT INTO items (embedding) VALUES %s", [(TEXT,)] * 3)

    _, spans = with_psycopg2(uri, use)
    assert [span.attributes[names.WRITE_COUNT] for span in spans] == [4, 2, 3]


def test_psycopg2_errors_go_through(uri: str) -> None:
    """Told by type, never by their words."""

    def use(connection: Any) -> Any:
        return outcome(lambda: connection.cursor().execute(NEAREST, ("[1,2]",)))

    plain = psycopg2.connect(uri)
    expected = use(plain)
    plain.close()
    observed, (span,) = with_psycopg2(uri, use)
    assert observed == expected
    assert span.status is StatusCode.ERROR
    assert span.attributes[names.ERROR_TYPE] == "psycopg2.errors.DataException"


def test_psycopg2_is_restored(uri: str) -> None:
    """`connect` is the one it was; connections made meanwhile work on, unobserved."""
    before = psycopg2.connect
    ns.instrument("pgvector")
    connection = psycopg2.connect(uri)
    assert psycopg2.connect is not before
    assert not platform.installations()["pgvector"].missing
    platform.uninstrument("pgvector")
    assert psycopg2.connect is before
    with ns.Scope("test") as scope:
        cursor = connection.cursor()
        cursor.execute(NEAREST, (TEXT,))
        assert len(cursor.fetchall()) == 2
    assert len(scope.artifact.telemetry.spans) == 1
    connection.close()


# --- asyncpg ------------------------------------------------------------------------------------------------
def test_asyncpg_is_observed(uri: str) -> None:
    """Each way to fetch, prepared or not, from a pool or not."""
    nearest = NEAREST.replace("%s", "$1::vector")

    async def use() -> Any:
        async with asyncpg.create_pool(uri, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            rows = cast("list[Any]", await connection.fetch(nearest, TEXT))
            prepared = await connection.prepare(nearest)
            again = await prepared.fetch(TEXT)
            row = await connection.fetchrow(nearest, TEXT)
            value = await connection.fetchval(nearest, TEXT)
            assert isinstance(rows, list)
            assert row == rows[0]
            return [tuple(row) for row in [*rows, *again]], value

    expected = asyncio.run(use())
    observed, spans = observe_async("pgvector", use)
    assert observed == expected
    assert is_nearest(spans[0])
    assert is_nearest(spans[1])
    assert [span.attributes[names.RETRIEVAL_RETURNED] for span in spans] == [2, 2, 1, 1]


def test_asyncpg_reads_vectors_as_arrays(uri: str) -> None:
    """With pgvector's codec, vectors go in and out as its own objects."""

    async def use() -> None:
        connection = await asyncpg.connect(uri)
        await pgvector_asyncpg.register_vector(connection)
        await connection.fetch(
            NEAREST.replace("%s", "$1").replace("title", "title, embedding"), pgvector.Vector(QUERY)
        )
        await connection.close()

    _, (span,) = observe_async("pgvector", use)
    assert is_nearest(span)
    assert span.attributes[names.RETRIEVAL_METADATA_KEYS] == ["embedding", "title"]


def test_asyncpg_writes_are_counted(uri: str) -> None:
    """By the server's own count, or by the parameters; an iterator is the driver's."""
    insert = "INSERT INTO items (title, about, embedding) VALUES ($1, NULL, $2)"

    async def use() -> Any:
        connection = await asyncpg.connect(uri)
        await connection.execute("CREATE TABLE more (a int, b int, c int, d int, e int, v vector(3))")
        await connection.execute("INSERT INTO more VALUES ($1, $2, $3, $4, $5, $6)", 1, 2, 3, 4, 5, TEXT)
        await connection.execute("UPDATE items SET embedding = $1", TEXT)
        await connection.executemany(insert, [("a", TEXT), ("b", TEXT)])
        await connection.executemany(insert.replace("$2", "$2::vector"), ((str(i), TEXT) for i in range(3)))
        total = await connection.fetchval("SELECT count(*) FROM items")
        await connection.close()
        return total

    total, spans = observe_async("pgvector", use)
    assert total == 9
    assert [span.attributes.get(names.WRITE_COUNT) for span in spans] == [1, 4, 2, None]


def test_asyncpg_errors_go_through(uri: str) -> None:
    """Told by type."""

    async def use() -> Any:
        connection = await asyncpg.connect(uri)
        try:
            return await connection.fetch(NEAREST.replace("%s", "$1"), "[1,2]")
        except asyncpg.PostgresError as error:
            return type(error), str(error)
        finally:
            await connection.close()

    expected = asyncio.run(use())
    observed, (span,) = observe_async("pgvector", use)
    assert observed == expected
    assert span.attributes[names.ERROR_TYPE] == "asyncpg.exceptions.DataError"


# --- SQLAlchemy ---------------------------------------------------------------------------------------------
ITEMS = sa.Table(
    "items",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("title", sa.Text),
    sa.Column("embedding", pgvector_sqlalchemy.VECTOR(3)),
)


def statement(limit: int = 2) -> Any:
    """The search, as SQLAlchemy builds it."""
    distance = ITEMS.c.embedding.cosine_distance(QUERY)
    return sa.select(ITEMS.c.id, ITEMS.c.title, distance.label("distance")).order_by(distance).limit(limit)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_is_one_span(uri: str, driver: str) -> None:
    """Its statements go through a driver: that one tells, once."""

    def use() -> Any:
        engine = sa.create_engine(uri.replace("postgresql://", f"postgresql+{driver}://"))
        with engine.connect() as connection:
            rows = connection.execute(statement()).all()
            connection.execute(sa.insert(ITEMS), [{"title": "x", "embedding": QUERY}])
            connection.commit()
        engine.dispose()
        return [tuple(row) for row in rows]

    observed, (search, write) = observe("pgvector", use)
    assert [row[0] for row in observed] == [1, 4]
    assert is_nearest(search)
    assert write.attributes[names.WRITE_COUNT] == 1


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_sqlalchemy_asynchronous_is_one_span(uri: str, driver: str) -> None:
    """The same in a loop."""
    host = uri.partition("host=")[2].partition("&")[0]
    path = uri.partition("search_path%3D")[2].partition("%2C")[0]
    url = f"postgresql+{driver}://postgres:@/postgres?host={host}"

    async def use() -> Any:
        engine = create_async_engine(url)
        async with engine.connect() as connection:
            await connection.execute(sa.text(f"SET search_path = {path}, public"))
            rows = (await connection.execute(statement())).all()
        await engine.dispose()
        return [tuple(row) for row in rows]

    observed, (search,) = observe_async("pgvector", use)
    assert [row[0] for row in observed] == [1, 4]
    assert is_nearest(search)


# --- readers ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "kind", "binary", "value"),
    [
        (b"12", 23, False, 12),
        (b"\xff\xff\xff\xfe", 23, True, -2),
        (b"0.5", 701, False, 0.5),
        (b"?\xe0\x00\x00\x00\x00\x00\x00", 701, True, 0.5),
        (b"\x00" * 15 + b"\x01", 2950, True, "00000000-0000-0000-0000-000000000001"),
        (b"t", 16, False, True),
        (b"1.5", 1700, False, 1.5),
        (b"\x01{}", 3802, True, "{}"),
        (b"[1,2]", 99999, False, None),
    ],
)
def test_values_are_read_as_the_server_sends_them(data: bytes, kind: int, binary: bool, value: Any) -> None:
    """By type and format; of types that are not read, nothing."""
    assert decoded(data, kind, binary=binary) == value


def test_vectors_are_read_as_numbers() -> None:
    """In each of their forms; what is none, is none."""
    assert numbers("[1, 2.5,-3e1]") == [1.0, 2.5, -30.0]
    assert numbers("[a]") is None
    assert numbers(pgvector.Vector([1, 2])) == [1.0, 2.0]


def test_a_server_is_asked_for_once() -> None:
    """Host and port of a network, none of a socket in the file system."""

    class Connection:
        pass

    asked: list[int] = []

    def find(_: Any) -> tuple[Any, Any, Any]:
        asked.append(1)
        return "db.example", 5432, "app"

    connection, local = Connection(), Connection()
    assert (
        server_of(connection, find)
        == server_of(connection, find)
        == Server(Peer("postgresql", "db.example", 5432), "app")
    )
    assert asked == [1]
    assert server_of(local, lambda _: ("/run/postgresql", 5432, "app")) == Server(Peer("postgresql"), "app")
