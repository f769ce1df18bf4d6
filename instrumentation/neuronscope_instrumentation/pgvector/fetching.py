"""Rows that the service fetches bit by bit: told to the search that found them, never fetched by us.

Where a driver keeps its rows to itself, a search ends when its last row has been fetched, its cursor has been
closed, or the next statement is sent.  To the engine such a result is a stream, whose chunks are rows.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import Stream

SITE: Final = "neuronscope.pgvector.fetching"


class FetchedRow(NamedTuple):
    """A row, and the names of its columns."""

    columns: Sequence[str]
    row: Any


class _Feeder:
    """An iterator over what it is given, one thing at a time; None is its end."""

    def __init__(self) -> None:
        self.given: FetchedRow | BaseException | None = None

    def __iter__(self) -> _Feeder:
        return self

    def __next__(self) -> FetchedRow:
        if self.given is None:
            raise StopIteration
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


class _Search:
    """A search whose rows are being fetched."""

    def __init__(self, feeder: _Feeder, observed: Any) -> None:
        self._feeder = feeder
        self._observed = observed
        self._fetched = 0

    def take(self, cursor: Any, rows: Iterable[Any], last: bool) -> None:
        columns = tuple(column[0] for column in cursor.description or ())
        for row in rows:
            self._give(_kept(columns, row))
            self._fetched += 1
        # A cursor with a name knows the rows of its last fetch only.
        whole = getattr(cursor, "name", None) is None and 0 <= cursor.rowcount <= self._fetched
        if last or whole:
            del _searches[cursor]
            self._give(None)

    def fail(self, error: BaseException) -> None:
        with suppress(
            type(error)
        ):  # raised by the iterator, to whom it was given: it is the service's to see
            self._give(error)

    def leave(self) -> None:
        self._observed.close()

    def _give(self, what: FetchedRow | BaseException | None) -> None:
        self._feeder.given = what
        next(self._observed, None)


def _kept(columns: Sequence[str], row: Any) -> FetchedRow:
    """A row that its owner cannot change any more; of a class of the service's own, only that it is there."""
    if isinstance(row, Mapping):
        named = cast("Mapping[str, Any]", row)
        return FetchedRow(tuple(named), tuple(named.values()))
    if isinstance(row, tuple | list):
        return FetchedRow(columns, tuple(cast("Sequence[Any]", row)))
    return FetchedRow((), ())


_searches: Final[weakref.WeakKeyDictionary[Any, _Search]] = weakref.WeakKeyDictionary()


def fetched(cursor: Any, rows: Iterable[Any], *, last: bool) -> None:
    """The service fetched these rows.

    Args:
        last: there are no more.
    """
    if _searches and (search := _searches.get(cursor)) is not None:
        GUARD.call(SITE, search.take, cursor, rows, last)


def failed(cursor: Any, error: BaseException) -> None:
    """Fetching rows failed."""
    if _searches and (search := _searches.pop(cursor, None)) is not None:
        GUARD.call(SITE, search.fail, error)


def leave(cursor: Any) -> None:
    """The cursor is closed or used for something else: rows that were not fetched never will be."""
    if _searches and (search := _searches.pop(cursor, None)) is not None:
        GUARD.call(SITE, search.leave)


def _watch(cursor: Any, observed: Any) -> None:
    _searches[cursor] = _Search(observed._inner, observed)


def observe_server_cursors(psycopg: Any) -> Callable[[], None]:
    """Let psycopg's cursors on the server tell what is fetched from them; the function returned undoes it.

    All of their ways to fetch, synchronous or not, pass one generator, and all ways to close another.
    """
    owner: Any = next((kind for kind in psycopg.ServerCursor.__mro__ if "_fetch_gen" in vars(kind)), None)
    if owner is None:
        return lambda: None
    own = cast("Mapping[str, Any]", vars(owner))
    fetch, close = own["_fetch_gen"], own.get("_close_gen")

    @functools.wraps(fetch)
    def fetch_and_tell(self: Any, num: int | None) -> Generator[Any, Any, Any]:
        try:
            rows: list[Any] = cast("list[Any]", (yield from fetch(self, num)))
        except BaseException as error:
            failed(self, error)
            raise
        fetched(self, rows, last=num is None or len(rows) < num)
        return rows

    owner._fetch_gen = fetch_and_tell
    changed: list[tuple[str, Any, Any]] = [("_fetch_gen", fetch, fetch_and_tell)]
    if close is not None:

        @functools.wraps(close)
        def leave_and_close(self: Any) -> Generator[Any, Any, Any]:
            leave(self)
            return cast("Any", (yield from close(self)))

        owner._close_gen = leave_and_close
        changed.append(("_close_gen", close, leave_and_close))

    def undo() -> None:
        for name, original, ours in changed:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)

    return undo


def _has_rows_to_fetch(cursor: Any) -> bool:
    """Does a search wait behind this cursor?  What a write returns is counted by the server at once."""
    if getattr(cursor, "name", None) is not None:
        return True  # its rows are on the server
    return cursor.description is not None and (cursor.statusmessage or "").startswith("SELECT")


FETCHED: Final = Stream(is_stream=_has_rows_to_fetch, get_iterator=lambda _: _Feeder(), set_iterator=_watch)
