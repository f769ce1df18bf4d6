"""The table of Chroma's methods: those of collections, and those of clients that make and drop them.

Chroma can trace itself; its spans are those of its own engine, inside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Request,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.chroma.collections import namespace_of, peer_of
from neuronscope_instrumentation.chroma.searches import (
    columns_of,
    found_columns,
    snapshot_query,
    snapshot_search,
)
from neuronscope_instrumentation.common.retrieval import nothing, read_rows, size, store_error

Arguments = dict[str, Any]
COLLECTIONS: Final = (
    "chromadb.api.models.Collection:Collection",
    "chromadb.api.models.AsyncCollection:AsyncCollection",
)
CLIENTS: Final = ("chromadb.api.client:Client", "chromadb.api.async_client:AsyncClient")


def _collection(instance: Any, arguments: Arguments, _content: bool, *, written: str = "") -> Snapshot:
    """A listing of a collection or a write to it.  Of what is written only the number is kept.

    Args:
        written: name of the argument that holds the ids written or removed.
    """
    model = instance._model
    kept: dict[str, Any] = {"place": model, "filtered": None}
    if written:
        ids = arguments.get(written)
        kept["write_count"] = 1 if isinstance(ids, str) else size(ids)
    if "where" in arguments or "where_document" in arguments:
        kept["filtered"] = any(arguments.get(name) is not None for name in ("where", "where_document"))
    return Snapshot(STORE, model.name, kept, peer_of(instance))


def _client(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """What a client does with its collections."""
    return Snapshot(STORE, arguments.get("name"), {"place": instance}, peer_of(instance))


def read_store(kept: Mapping[str, Any], _content: bool) -> Request:
    """What a listing or a write asks for."""
    return Request(
        namespace=namespace_of(kept["place"]),
        write_count=kept.get("write_count"),
        filtered=kept.get("filtered"),
    )


STORE: Final = Endpoint(
    operation=Operation.STORE, read_request=read_store, read_response=read_rows, read_error=store_error
)


def _ids(result: Any) -> int:
    return len(result["ids"])


class _Row(NamedTuple):
    name: str
    snapshot: Callable[[Any, Arguments, bool], Snapshot | None] = _collection
    unwrap: Callable[[Any], Any] = nothing
    optional: bool = False


_COLLECTION_ROWS: Final = (
    _Row("query", snapshot_query, columns_of),
    _Row("search", snapshot_search, found_columns, optional=True),
    _Row("get", _collection, _ids),
    _Row("peek", _collection, _ids),
    _Row("count"),
    _Row("add", partial(_collection, written="ids")),
    _Row("upsert", partial(_collection, written="ids")),
    _Row("update", partial(_collection, written="ids")),
    _Row("delete", partial(_collection, written="ids")),
    _Row("modify"),
    _Row("fork", optional=True),
)
_CLIENT_ROWS: Final = (
    _Row("create_collection", _client),
    _Row("get_collection", _client),
    _Row("get_or_create_collection", _client),
    _Row("delete_collection", _client),
    _Row("list_collections", _client, len),
)
_MAKERS: Final = ("create_collection", "get_collection", "get_or_create_collection")


def _methods() -> Iterator[WrappedMethod]:
    for owners, rows in ((COLLECTIONS, _COLLECTION_ROWS), (CLIENTS, _CLIENT_ROWS)):
        for owner in owners:
            for name, snapshot, unwrap, optional in rows:
                yield WrappedMethod(
                    target=f"{owner}.{name}", snapshot=snapshot, unwrap=unwrap, optional=optional
                )


CHROMA: Final = ClientIntegration(
    name="chroma",
    requires="chromadb>=1.0",
    kind=Kind.VECTOR_STORE,
    methods=tuple(_methods()),
    copies=tuple(f"{owner}.{name}" for owner in CLIENTS for name in _MAKERS),
)
