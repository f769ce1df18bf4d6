"""psycopg2's connections and cursors as subclasses whose methods can be observed.

They are types of C: their methods cannot be replaced.  So while we observe, `psycopg2.connect` makes
connections of a subclass that bears its base's name, and these make cursors of such subclasses.  Whatever
class the service asks for comes first in the order of resolution; ours stand just above psycopg2's own.

This module imports psycopg2: it is loaded when the service has done so.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope_instrumentation.pgvector.fetching import failed, fetched, leave

psycopg2: Final[Any] = importlib.import_module("psycopg2")  # it brings no types
extensions: Final[Any] = importlib.import_module("psycopg2.extensions")

if TYPE_CHECKING:

    class _Cursor:
        execute: Callable[..., Any]
        executemany: Callable[..., Any]
        fetchone: Callable[..., Any]
        fetchmany: Callable[..., Any]
        fetchall: Callable[..., Any]
        close: Callable[..., Any]

        def __next__(self) -> Any: ...

    class _Connection:
        cursor_factory: Any
        cursor: Callable[..., Any]

else:
    _Cursor, _Connection = extensions.cursor, extensions.connection


class ObservedCursor(_Cursor):
    """A cursor whose statements can be observed: the engine wraps `send` and `send_many`."""

    def execute(self, query: Any, vars: Any = None) -> None:
        """Execute a statement."""
        self.send(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Execute a statement for each set of parameters."""
        self.send_many(query, vars_list)

    def send(self, query: Any, parameters: Any) -> Any:
        """Execute a statement; returns the cursor."""
        super().execute(query, parameters)
        return self

    def send_many(self, query: Any, parameters: Any) -> Any:
        """Execute a statement for each set of parameters; returns the cursor."""
        super().executemany(query, parameters)
        return self

    def fetchone(self) -> Any:
        """The next row, told on its way."""
        try:
            row = super().fetchone()
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, () if row is None else (row,), last=row is None)
        return row

    def fetchmany(self, *args: Any, **kwargs: Any) -> Any:
        """The next rows, told on their way."""
        try:
            rows = super().fetchmany(*args, **kwargs)
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, rows, last=not rows)
        return rows

    def fetchall(self) -> Any:
        """All further rows, told on their way."""
        try:
            rows = super().fetchall()
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, rows, last=True)
        return rows

    def __next__(self) -> Any:
        try:
            row = super().__next__()
        except StopIteration:
            fetched(self, (), last=True)
            raise
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, (row,), last=False)
        return row

    def close(self) -> Any:
        """Close the cursor; rows that were not fetched never will be."""
        leave(self)
        return super().close()


class ObservedConnection(_Connection):
    """A connection whose cursors are of an observed kind."""

    def cursor(self, name: Any = None, cursor_factory: Any = None, *args: Any, **kwargs: Any) -> Any:
        """A cursor of the observed subclass of whatever class is asked for."""
        factory = cursor_factory or self.cursor_factory or _Cursor
        return super().cursor(name, observed(factory, _Cursor, ObservedCursor), *args, **kwargs)


def observed(kind: Any, base: type[Any], ours: type[Any]) -> Any:
    """The observed subclass of a cursor's or connection's class; what is no such class stays as it is."""
    if kind is base or not isinstance(kind, type) or not issubclass(kind, base) or issubclass(kind, ours):
        return ours if kind is base else kind
    return _subclass(cast("Hashable", kind), cast("Hashable", ours))


@functools.lru_cache(256)
def _subclass(kind: Hashable, ours: Hashable) -> type[Any]:
    base = cast("type[Any]", kind)
    return type(base.__name__, (base, cast("type[Any]", ours)), _named_like(base))


def _named_like(kind: type[Any]) -> dict[str, str]:
    return {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__ or ""}


for _ours in (ObservedCursor, ObservedConnection):
    _base = _ours.__mro__[1]
    _ours.__name__, _ours.__qualname__, _ours.__module__ = (
        _base.__name__,
        _base.__qualname__,
        _base.__module__,
    )


def install() -> Callable[[], None]:
    """Let `psycopg2.connect` make observed connections; the function returned undoes it."""
    original = psycopg2.connect

    @functools.wraps(original)
    def connect(dsn: Any = None, connection_factory: Any = None, *args: Any, **kwargs: Any) -> Any:
        factory = observed(connection_factory or _Connection, _Connection, ObservedConnection)
        return original(dsn, factory, *args, **kwargs)

    psycopg2.connect = connect

    def undo() -> None:
        if psycopg2.connect is connect:
            psycopg2.connect = original

    return undo
