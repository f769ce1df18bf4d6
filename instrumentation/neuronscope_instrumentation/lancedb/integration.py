"""The table of LanceDB's methods, what is kept of each call, and how its result is read.

However a result is asked for (`to_list`, `to_pandas`, …), it comes through `to_arrow`.  A synchronous query
runs as an asynchronous one on a loop of LanceDB's own, in the caller's context: one call, one span.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.context import propagate
from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.common.retrieval import size, store_error
from neuronscope_instrumentation.lancedb import results
from neuronscope_instrumentation.lancedb.queries import Asked, of_async, of_builder, read_search

if TYPE_CHECKING:
    from neuronscope.engine import Engine

Arguments = dict[str, Any]
HERE: Final = Peer("lancedb")


# --- requests, read by the worker -------------------------------------------------------------------------
def read_listing(kept: Mapping[str, Any], _content: bool) -> Request:
    """Facts of a listing."""
    asked: Asked = kept["asked"]
    return Request(filtered=asked.filtered)


def read_write(kept: Mapping[str, Any], _content: bool) -> Request:
    """How many rows a call brings."""
    return Request(write_count=kept["count"])


_endpoint: Final = partial(Endpoint, read_error=store_error)
SEARCH: Final = _endpoint(
    operation=Operation.RETRIEVAL,
    read_request=read_search,
    read_response=results.read_hits,
    size=results.nbytes,
)
LISTING: Final = _endpoint(
    operation=Operation.STORE,
    read_request=read_listing,
    read_response=results.read_rows,
    size=results.nbytes,
)
WRITE: Final = _endpoint(
    operation=Operation.STORE, read_request=read_write, read_response=results.read_written
)


# --- what the hot path keeps of a call --------------------------------------------------------------------
def _query(query: Any, _arguments: Arguments, _content: bool, *, of: Callable[[Any], Asked]) -> Snapshot:
    asked = of(query)
    endpoint, method = (SEARCH, "search") if asked.searches else (LISTING, "query")
    return Snapshot(endpoint, _name(getattr(query, "_table", None)), {"asked": asked}, HERE, method)


def _write(
    table: Any, arguments: Arguments, _content: bool, *, data: str = "", method: str | None = None
) -> Snapshot:
    kept = {"count": size(arguments.get(data)) if data else None}
    return Snapshot(WRITE, _name(table), kept, HERE, method)


def _create(_connection: Any, arguments: Arguments, _content: bool) -> Snapshot:
    name = arguments.get("name")
    kept = {"count": size(arguments.get("data"))}
    return Snapshot(WRITE, name if isinstance(name, str) else None, kept, HERE)


def _name(table: Any) -> str | None:
    name = getattr(table, "name", None)
    return name if isinstance(name, str) else None


def _table(result: Any) -> Any:
    """A table of Arrow is as it is: its owner cannot change it before the worker reads it."""
    return result


def _nothing(_result: Any) -> None:
    """Batches are the service's to read, one by one; of a table that was made nothing is read."""


def install(_engine: Engine, module: str) -> Callable[[], None]:
    """Carry the context into the two threads in which a synchronous hybrid search runs its halves."""
    queries: Any = sys.modules[module]
    original: Any = getattr(queries, "ThreadPoolExecutor", None)
    if original is not ThreadPoolExecutor:
        return lambda: None
    queries.ThreadPoolExecutor = _InContext

    def undo() -> None:
        if queries.ThreadPoolExecutor is _InContext:
            queries.ThreadPoolExecutor = original

    return undo


class _InContext(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(propagate(fn), *args, **kwargs)


# --- the table --------------------------------------------------------------------------------------------
QUERIES: Final = "lancedb.query"
TABLES: Final = ("lancedb.table:LanceTable", "lancedb.table:AsyncTable", "lancedb.remote.table:RemoteTable")
CONNECTIONS: Final = ("lancedb.db:LanceDBConnection", "lancedb.db:AsyncConnection")


def _methods() -> Iterator[WrappedMethod]:
    for owner, of in (("LanceQueryBuilder", of_builder), ("AsyncQueryBase", of_async)):
        snapshot = partial(_query, of=of)
        yield WrappedMethod(
            target=f"{QUERIES}:{owner}.to_arrow", snapshot=snapshot, unwrap=_table, subclasses=True
        )
        yield WrappedMethod(
            target=f"{QUERIES}:{owner}.to_batches", snapshot=snapshot, unwrap=_nothing, subclasses=True
        )
    for owner in TABLES:
        optional = "remote" in owner
        yield WrappedMethod(target=f"{owner}.add", snapshot=partial(_write, data="data"), optional=optional)
        yield WrappedMethod(target=f"{owner}.delete", snapshot=_write, optional=optional)
        yield WrappedMethod(target=f"{owner}.update", snapshot=_write, optional=optional)
        yield WrappedMethod(
            target=f"{owner}._do_merge",
            snapshot=partial(_write, data="new_data", method="merge_insert"),
            optional=optional,
        )
    for owner in CONNECTIONS:
        yield WrappedMethod(target=f"{owner}.create_table", snapshot=_create, unwrap=_nothing)


LANCEDB: Final = ClientIntegration(
    name="lancedb",
    requires="lancedb>=0.17",
    kind=Kind.VECTOR_STORE,
    modules=(QUERIES,),
    methods=tuple(_methods()),
    install=install,
    copies=(
        *(f"{owner}.{name}" for owner in CONNECTIONS for name in ("create_table", "open_table")),
        "lancedb.table:LanceTable.search",
        "lancedb.remote.table:RemoteTable.search",
        *(f"lancedb.table:AsyncTable.{name}" for name in ("query", "search", "vector_search")),
        *(
            f"{QUERIES}:{owner}.{name}"
            for owner in ("AsyncQuery", "AsyncVectorQuery", "AsyncFTSQuery")
            for name in ("nearest_to", "nearest_to_text")
        ),
    ),
)
