"""psycopg2's connections and cursors as subclasses whose methods can be observed.

They are types of C: their methods cannot be replaced.  So while we observe, `psycopg2.connect` makes
connections of a subclass that bears its base's name, and these make cursors of such subclasses.  Whatever class
the service asks for comes first in the order of resolution; ours stand just above psycopg2's own.

This module imports psycopg2: it is loaded when the service has done so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

import psycopg2
from psycopg2 import extensions

from neuronscope_instrumentation.pgvector.fetching import failed, fetched, leave

_CursorType: Final[Any] = extensions.cursor
_ConnectionType: Final[Any] = extensions.connection


class ObservedCursor(_CursorType):  # type: ignore[misc] - psycopg2 brings no types
    """A cursor whose statements can be observed: the engine wraps `send` and `send_many`."""

    def execute(self, query: Any, vars: Any = None) -> None:
        self.send(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
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
        try:
            row = super().fetchone()
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, () if row is None else (row,), last=row is None)
        return row

    def fetchmany(self, *args: Any, **kwargs: Any) -> Any:
        try:
            rows = super().fetchmany(*args, **kwargs)
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, rows, last=not rows)
        return rows

    def fetchall(self) -> Any:
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
        leave(self)
        return super().close()


class ObservedConnection(_ConnectionType):  # type: ignore[misc] - psycopg2 brings no types
    """A connection whose cursors are of an observed kind."""

    def cursor(self, name: Any = None, cursor_factory: Any = None, *args: Any, **kwargs: Any) -> Any:
        factory = cursor_factory or self.cursor_factory or _CursorType
        return super().cursor(name, observed(factory, _CursorType, ObservedCursor), *args, **kwargs)


def observed(kind: Any, base: type[Any], ours: type[Any]) -> Any:
    """The observed subclass of a cursor's or connection's class; what is no such class stays as it is."""
    if kind is base or not isinstance(kind, type) or not issubclass(kind, base) or issubclass(kind, ours):
        return ours if kind is base else kind
    return _subclass(kind, ours)


@functools.lru_cache(256)
def _subclass(kind: type[Any], ours: type[Any]) -> type[Any]:
    return type(kind.__name__, (kind, ours), _named_like(kind))


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
    module = cast("Any", psycopg2)
    original = module.connect

    @functools.wraps(original)
    def connect(dsn: Any = None, connection_factory: Any = None, *args: Any, **kwargs: Any) -> Any:
        factory = observed(connection_factory or _ConnectionType, _ConnectionType, ObservedConnection)
        return original(dsn, factory, *args, **kwargs)

    module.connect = connect

    def undo() -> None:
        if module.connect is connect:
            module.connect = original

    return undo
