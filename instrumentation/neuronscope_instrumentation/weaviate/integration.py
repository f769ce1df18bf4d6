"""The table of Weaviate's methods, for the synchronous and the asynchronous client.

Both inherit one set of methods, which return a result or an awaitable by the connection they are given:
each is wrapped for the class that the service holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.common.retrieval import nothing, read_rows, size, store_error, whole
from neuronscope_instrumentation.weaviate.collections import learn_metric, peer_of, place_of
from neuronscope_instrumentation.weaviate.searches import objects_of, snapshot_search

Arguments = dict[str, Any]
_SEARCHES: Final = ("near_vector", "near_text", "near_object", "near_image", "near_media", "hybrid", "bm25")


# --- listings and writes ------------------------------------------------------------------------------------
def _store(
    instance: Any,
    arguments: Arguments,
    _content: bool,
    *,
    written: str = "",
    one: bool = False,
    called: str | None = None,
    endpoint: Endpoint | None = None,
) -> Snapshot:
    """A listing or a write.  Of what is written only the number is kept.

    Args:
        written: name of the argument that holds what is written or removed.
        one: it writes one object.
        called: the operation's name, if not the method's.
    """
    place = place_of(instance)
    kept: dict[str, Any] = {"tenant": place.tenant}
    if written or one:
        kept["write_count"] = 1 if one else size(arguments.get(written))
    if "filters" in arguments:
        kept["filtered"] = arguments["filters"] is not None
    return Snapshot(endpoint or STORE, place.collection, kept, place.peer, called)


def _collections(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    """What a client does with its collections."""
    return Snapshot(STORE, text(arguments.get("name")), {}, place_of(instance).peer)


def _batch(_instance: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    """One request of a batch, made in a thread of the library's own; it may write to several collections."""
    connection, sent = arguments.get("connection"), items(arguments.get("objects"))
    if type(connection).__name__ == "ConnectionAsync":
        return None  # of `insert_many`, which has a span: asynchronous batches are streams
    peer = peer_of(getattr(connection, "url", None))
    kept = {"tenant": _only(sent, "tenant"), "write_count": len(sent)}
    return Snapshot(STORE, _only(sent, "collection"), kept, peer, "batch")


def _only(sent: Sequence[Any], name: str) -> str | None:
    told = {field(each, name) for each in sent}
    return text(next(iter(told))) if len(told) == 1 else None


def _configuration(instance: Any, arguments: Arguments, content: bool) -> Snapshot:
    """A collection's configuration tells its distance."""
    place = place_of(instance)
    read = partial(_learn, place.url, place.collection or "")
    return _store(
        instance, arguments, content, called="config.get", endpoint=replace(STORE, read_response=read)
    )


def _learn(url: str, collection: str, result: Any, _content: bool) -> Response:
    indexes = [field(result, "vector_index_config")]
    named = [*(mapping(field(result, "vector_config")) or {}).values()]
    if len(named) == 1:
        indexes.append(field(named[0], "vector_index_config"))
    for index in indexes:
        learn_metric(url, collection, field(index, "distance_metric"))
    return Response()


def read_store(kept: Mapping[str, Any], _content: bool) -> Request:
    """What a listing or a write asks for."""
    return Request(
        namespace=kept.get("tenant"), write_count=kept.get("write_count"), filtered=kept.get("filtered")
    )


STORE: Final = Endpoint(
    operation=Operation.STORE, read_request=read_store, read_response=read_rows, read_error=store_error
)


# --- results ------------------------------------------------------------------------------------------------
def _count(result: Any) -> int:
    return len(result.objects)


def _found(result: Any) -> int:
    return int(result is not None)


# --- the table ----------------------------------------------------------------------------------------------
class _Row(NamedTuple):
    name: str
    snapshot: Callable[[Any, Arguments, bool], Snapshot | None]
    unwrap: Callable[[Any], Any] = nothing
    optional: bool = False


def _searches(*, generates: bool) -> tuple[_Row, ...]:
    listed = partial(_store, called="generate.fetch_objects") if generates else _store
    return (
        *(
            _Row(name, partial(snapshot_search, method=name, generates=generates), objects_of)
            for name in _SEARCHES
        ),
        _Row("fetch_objects", listed, _count),
        _Row("fetch_objects_by_ids", listed, _count),
    )


_DATA: Final = (
    _Row("insert", partial(_store, one=True)),
    _Row("insert_many", partial(_store, written="objects")),
    _Row("replace", partial(_store, one=True)),
    _Row("update", partial(_store, one=True)),
    _Row("delete_by_id", partial(_store, one=True)),
    _Row("delete_many", _store),
    _Row("exists", _store),
    _Row("reference_add", partial(_store, one=True)),
    _Row("reference_add_many", partial(_store, written="refs")),
    _Row("reference_delete", partial(_store, one=True)),
    _Row("reference_replace", partial(_store, one=True)),
    _Row("ingest", partial(_store, written="objs"), optional=True),  # an iterator is the client's to read
)
_AGGREGATIONS: Final = tuple(
    _Row(name, partial(_store, called=f"aggregate.{name}"))
    for name in ("over_all", "near_vector", "near_text", "near_object", "near_image", "hybrid")
)
_ROWS: Final = {
    "weaviate.collections.query:_QueryCollection": (
        *_searches(generates=False),
        _Row("fetch_object_by_id", _store, _found),
    ),
    "weaviate.collections.generate:_GenerateCollection": _searches(generates=True),
    "weaviate.collections.data.sync:_DataCollection": _DATA,
    "weaviate.collections.aggregate:_AggregateCollection": _AGGREGATIONS,
    "weaviate.collections.config.sync:_ConfigCollection": (_Row("get", _configuration, whole),),
    "weaviate.collections.collections.sync:_Collections": (
        _Row("create", _collections),
        _Row("delete", _collections),
        _Row("delete_all", _collections),
        _Row("exists", _collections),
        _Row("list_all", _collections, len),
    ),
}


def _asynchronous(owner: str) -> str:
    return f"{owner.replace('.sync:', '.async_:')}Async"


def _methods(owner: str, rows: Iterable[_Row], *, awaitable: bool) -> Iterator[WrappedMethod]:
    for name, snapshot, unwrap, optional in rows:
        yield WrappedMethod(
            target=f"{owner}.{name}",
            snapshot=snapshot,
            unwrap=unwrap,
            optional=optional,
            inherited=True,
            awaitable=awaitable,
        )


def _all() -> Iterator[WrappedMethod]:
    for owner, rows in _ROWS.items():
        yield from _methods(owner, rows, awaitable=False)
        yield from _methods(_asynchronous(owner), rows, awaitable=True)
    yield WrappedMethod(
        target="weaviate.collections.batch.grpc_batch:_BatchGRPC.objects", snapshot=_batch, unwrap=nothing
    )


def members(obj: Any) -> Iterator[Any]:
    """What acts for a client (its collections) or for a collection (its query, data, generate and so on)."""
    own: dict[str, Any] = getattr(obj, "__dict__", {})
    for name in ("collections", "query", "generate", "data", "aggregate", "config"):
        if name in own:
            yield own[name]


WEAVIATE: Final = ClientIntegration(
    name="weaviate",
    requires="weaviate-client>=4.16",
    kind=Kind.VECTOR_STORE,
    methods=tuple(_all()),
    copies=(
        "weaviate.collections.collections.base:_CollectionsBase.get",
        "weaviate.collections.collections.sync:_Collections.use",
        "weaviate.collections.collections.sync:_Collections.create",
        "weaviate.collections.collections.async_:_CollectionsAsync.use",
    ),
    members=members,
)
