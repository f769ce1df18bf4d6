"""The table of Milvus's methods, what is kept of each call, and how its result is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    ErrorFacts,
    Kind,
    Operation,
    Peer,
    Query,
    Request,
    Response,
    Snapshot,
    Stage,
    WrappedMethod,
)
from neuronscope_instrumentation.common.retrieval import kept_vectors, size
from neuronscope_instrumentation.milvus import results
from neuronscope_instrumentation.milvus.clients import METRICS, KnownClient, index_metrics, known_client

Arguments = dict[str, Any]
DEFAULT_LIMIT: Final = 10
_RANKERS: Final = {"RRFRanker": "rrf", "WeightedRanker": "weighted"}
_FUSED: Final = {"rrf": "rrf", "weighted": "hybrid"}


# --- requests and results, read by the worker -------------------------------------------------------------
def read_search(kept: Mapping[str, Any], content: bool) -> Request:
    """Facts of a search by what its snapshot kept."""
    client: KnownClient | None = kept["client"]
    data: Sequence[Any] = kept["data"] if kept["data"] is not None else (None,) * (kept["count"] or 0)
    return Request(
        namespace=client.database if client is not None else None,
        k=kept["k"],
        filtered=kept["filtered"],
        metric=kept["metric"] or (client.metric(kept["collection"], kept["field"]) if client else None),
        stages=kept["stages"],
        queries=[_query(each, content) for each in data] or None,
    )


def _query(data: Any, content: bool) -> Query:
    """Text is embedded by the store, or matched word by word."""
    return Query(text=data if content else None) if isinstance(data, str) else Query(vector=data)


def read_other(kept: Mapping[str, Any], _content: bool) -> Request:
    """Facts of a listing or a write."""
    client: KnownClient | None = kept["client"]
    return Request(namespace=client.database if client is not None else None, filtered=kept["filtered"])


def read_hits(metric: str | None, queries: Sequence[results.Found], content: bool) -> Response:
    """The hits of each query.  Of float vectors Milvus has one metric whose scores grow: it tells itself."""
    found = results.read_hits(queries, content)
    growing = metric is None and any(
        before.score is not None and after.score is not None and before.score < after.score
        for hits in found.hits or ()
        for before, after in pairwise(hits)
    )
    return Response(hits=found.hits, metric="euclid_squared" if growing else None)


def read_error(error: BaseException) -> ErrorFacts:
    """Milvus's errors are of a few classes; their codes are no HTTP statuses."""
    return ErrorFacts(type_name(error))


_endpoint: Final = partial(Endpoint, read_error=read_error)
STORE: Final = _endpoint(operation=Operation.STORE, read_request=read_other, read_response=results.read_rows)
WRITE: Final = _endpoint(
    operation=Operation.STORE, read_request=read_other, read_response=results.read_written
)
_FLOATS: Final = _endpoint(
    operation=Operation.RETRIEVAL, read_request=read_search, read_response=partial(read_hits, None)
)
_TOLD: Final = _endpoint(
    operation=Operation.RETRIEVAL, read_request=read_search, read_response=partial(read_hits, "told")
)


# --- what the hot path keeps of a call --------------------------------------------------------------------
def _collection_of(instance: Any, arguments: Arguments) -> Any:
    """A client is told the collection, the ORM's objects know it."""
    name = arguments.get("collection_name")
    if name is None:
        name = getattr(getattr(instance, "_collection", instance), "_name", None)
    return name if isinstance(name, str) else None


def _filter(arguments: Arguments) -> bool:
    return bool(arguments.get("filter") or arguments.get("expr"))


def _search(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    params = arguments.get("search_params", arguments.get("param"))
    metric = cast("Mapping[str, Any]", params).get("metric_type") if isinstance(params, Mapping) else None
    data, ids = arguments.get("data"), arguments.get("ids")
    kept = {
        "data": kept_vectors(data),
        "count": size(data if data is not None else ids if isinstance(ids, list) else [ids]),
        "k": arguments.get("limit", DEFAULT_LIMIT),
        "filtered": _filter(arguments),
        "metric": METRICS.get(metric) if isinstance(metric, str) else None,
        "field": arguments.get("anns_field"),
        "stages": None,
    }
    return _asked(instance, _collection_of(instance, arguments), kept)


def _asked(
    instance: Any, collection: str | None, kept: dict[str, Any], method: str | None = None
) -> Snapshot:
    client = known_client(instance)
    kept |= {"client": client, "collection": collection}
    data: Any = kept["data"]
    numbers = (bool(data) and isinstance(data[0], list | tuple)) or hasattr(
        data[0] if data else None, "__array__"
    )
    endpoint = _FLOATS if numbers and kept["metric"] is None and kept["stages"] is None else _TOLD
    return Snapshot(endpoint, collection, kept, client.peer, method)


def _hybrid(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    requests: Any = arguments.get("reqs")
    steps = cast("Sequence[Any]", requests) if type(requests) in (list, tuple) else ()
    ranker = _RANKERS.get(type(arguments.get("ranker", arguments.get("rerank"))).__name__, "rerank")
    limit = arguments.get("limit", DEFAULT_LIMIT)
    dense = [step for step in steps if _is_dense(step)]
    kept = {
        "data": kept_vectors(dense[0].data) if len(dense) == 1 else None,
        "count": size(getattr(steps[0], "data", None)) if steps else None,
        "k": limit,
        "filtered": any(getattr(step, "expr", None) for step in steps) or _filter(arguments),
        "metric": _FUSED.get(ranker, "rerank"),
        "field": None,
        "stages": [*(_stage(step) for step in steps), Stage(ranker, None, limit)],
    }
    return _asked(instance, _collection_of(instance, arguments), kept)


def _first(data: Any) -> Any:
    rows: Any = data
    return rows[0] if isinstance(data, list) and data else rows


def _is_dense(step: Any) -> bool:
    data = getattr(step, "data", None)
    first = _first(data)
    return isinstance(first, list | tuple) or type(first).__module__ == "numpy"


def _stage(step: Any) -> Stage:
    data = getattr(step, "data", None)
    first = _first(data)
    kind = "dense" if _is_dense(step) else "text" if isinstance(first, str) else "sparse"
    limit = getattr(step, "limit", None)
    return Stage(kind, getattr(step, "anns_field", None), limit if isinstance(limit, int) else None)


def _page(iterator: Any, _arguments: Arguments, _content: bool) -> Snapshot | None:
    """One page of a search iterator: a search of its own, made when the service asks for it."""
    params: Any = getattr(iterator, "_params", None) or getattr(iterator, "_iterator_params", None)
    if not isinstance(params, Mapping):
        return None
    asked = cast("Mapping[str, Any]", params)
    search: Mapping[str, Any] = asked.get("param") or getattr(iterator, "_param", None) or {}
    kept = {
        "data": kept_vectors(asked.get("data")),
        "count": 1,
        "k": asked.get("limit", asked.get("batch_size")),
        "filtered": bool(asked.get("expression") or getattr(iterator, "_expr", None)),
        "metric": METRICS.get(search.get("metric_type", "")),
        "field": asked.get("anns_field", asked.get("ann_field")),
        "stages": None,
    }
    return _asked(iterator, asked.get("collection_name"), kept, "search_iterator")


def _rows_page(iterator: Any, _arguments: Arguments, _content: bool) -> Snapshot:
    name = getattr(iterator, "_collection_name", None)
    kept = {"client": None, "filtered": bool(getattr(iterator, "_expr", None))}
    return Snapshot(STORE, name if isinstance(name, str) else None, kept, Peer("milvus"), "query_iterator")


def _other(instance: Any, arguments: Arguments, _content: bool, *, endpoint: Endpoint) -> Snapshot:
    client = known_client(instance)
    kept = {"client": client, "filtered": _filter(arguments) or None}
    return Snapshot(endpoint, _collection_of(instance, arguments), kept, client.peer)


# --- calls that tell an index's metric --------------------------------------------------------------------
Learn = Callable[[Arguments, Any], Mapping[str, str] | None]


def _telling(client: Any, arguments: Arguments, _content: bool, *, learn: Learn) -> Snapshot:
    """A call that tells, once it has succeeded, the metrics of a collection's indexes."""
    known, collection = known_client(client), _collection_of(client, arguments)
    read = partial(_learn, known, str(collection), partial(learn, dict(arguments)))
    endpoint = _endpoint(operation=Operation.STORE, read_request=read_other, read_response=read)
    return Snapshot(endpoint, collection, {"client": known, "filtered": None}, known.peer)


def _learn(
    client: KnownClient,
    collection: str,
    learn: Callable[[Any], Mapping[str, str] | None],
    result: tuple[Any],
    _content: bool,
) -> Response:
    metrics = learn(result[0])
    if metrics is None:
        client.learned.pop(collection, None)
    else:
        client.learn(collection, metrics)
    return Response()


def _created(arguments: Arguments, _result: Any) -> Mapping[str, str]:
    if arguments.get("schema") is None:  # quickly: one vector, cosine unless it says otherwise
        return {arguments.get("vector_field_name", "vector"): arguments.get("metric_type", "COSINE")}
    return index_metrics(arguments.get("index_params"))


def _indexed(arguments: Arguments, _result: Any) -> Mapping[str, str]:
    return index_metrics(arguments.get("index_params"))


def _described(_arguments: Arguments, result: Any) -> Mapping[str, str]:
    return index_metrics(result)


def _dropped(_arguments: Arguments, _result: Any) -> None:
    """Nothing is known of it any more."""


def _kept_result(result: Any) -> tuple[Any]:
    return (result,)  # creating something returns None, which is nothing to read


# --- the table --------------------------------------------------------------------------------------------
class _Row(NamedTuple):
    name: str
    snapshot: Callable[[Any, Arguments, bool], Snapshot | None]
    unwrap: Callable[[Any], Any]


_LISTING: Final = partial(_other, endpoint=STORE)
_WRITING: Final = partial(_other, endpoint=WRITE)
_BOTH: Final = (
    _Row("search", _search, results.found),
    _Row("hybrid_search", _hybrid, results.found),
    _Row("query", _LISTING, results.rows),
    _Row("insert", _WRITING, results.written),
    _Row("upsert", _WRITING, results.written),
    _Row("delete", _WRITING, results.written),
)
_CLIENTS: Final = (
    *_BOTH,
    _Row("get", _LISTING, results.rows),
    _Row("create_collection", partial(_telling, learn=_created), _kept_result),
    _Row("drop_collection", partial(_telling, learn=_dropped), _kept_result),
    _Row("create_index", partial(_telling, learn=_indexed), _kept_result),
    _Row("describe_index", partial(_telling, learn=_described), _kept_result),
)
CLIENT: Final = "pymilvus.milvus_client.milvus_client:MilvusClient"
ASYNC_CLIENT: Final = "pymilvus.milvus_client.async_milvus_client:AsyncMilvusClient"
_OWNERS: Final = (
    (CLIENT, _CLIENTS, False),
    (ASYNC_CLIENT, _CLIENTS, True),
    ("pymilvus.orm.collection:Collection", _BOTH, False),
    ("pymilvus.orm.partition:Partition", _BOTH, False),
)
_ITERATORS: Final = (
    ("pymilvus.client.iterator.search_iterator:SearchIterator", _page, results.page),
    ("pymilvus.client.iterator.search_iterator:SearchIteratorV2", _page, results.page),
    ("pymilvus.client.iterator.query_iterator:QueryIterator", _rows_page, results.rows),
    # until 2.6
    ("pymilvus.orm.iterator:SearchIterator", _page, results.page),
    ("pymilvus.client.search_iterator:SearchIteratorV2", _page, results.page),
    ("pymilvus.orm.iterator:QueryIterator", _rows_page, results.rows),
)


def _methods() -> Iterator[WrappedMethod]:
    for owner, rows, optional in _OWNERS:
        for name, snapshot, unwrap in rows:
            yield WrappedMethod(target=f"{owner}.{name}", snapshot=snapshot, unwrap=unwrap, optional=optional)
    for owner, snapshot, unwrap in _ITERATORS:
        yield WrappedMethod(target=f"{owner}.next", snapshot=snapshot, unwrap=unwrap, optional=True)


MILVUS: Final = ClientIntegration(
    name="milvus",
    requires="pymilvus>=2.4",
    kind=Kind.VECTOR_STORE,
    methods=tuple(_methods()),
    copies=(
        f"{CLIENT}.search_iterator",
        f"{CLIENT}.query_iterator",
        "pymilvus.orm.collection:Collection.search_iterator",
        "pymilvus.orm.collection:Collection.query_iterator",
    ),
)
