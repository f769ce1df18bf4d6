"""The table of Qdrant's methods, what is kept of each call, and how its result is read.

Only a similarity search is a retrieval.  A query-less `query_points` lists points in the order of their
ids and gives each the score 1.0, which would read as a perfect hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Hit,
    Kind,
    Operation,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.common.retrieval import kept_vector, nothing, size, store_error
from neuronscope_instrumentation.qdrant.clients import KnownClient, known_client, local_vectors
from neuronscope_instrumentation.qdrant.queries import (
    DEFAULT_LIMIT,
    DISCOVERY,
    STORED_POINTS,
    AskedQuery,
    read_request,
)

OWNERS: Final = (
    "qdrant_client.qdrant_client:QdrantClient",
    "qdrant_client.async_qdrant_client:AsyncQdrantClient",
)
DEFAULT_GROUP_SIZE: Final = 3
Arguments = dict[str, Any]


# --- results, read by the worker --------------------------------------------------------------------------
def read_hits(queries: Sequence[Sequence[Any]], _content: bool) -> Response:
    """The hits of each query."""
    hits = [[Hit(str(point.id), point.score, point.payload) for point in points] for points in queries]
    return Response(hits=hits)


def read_rows(rows: int | Sequence[Sequence[Any]], _content: bool) -> Response:
    """How many points a listing returned."""
    return Response(returned=rows if isinstance(rows, int) else sum(map(len, rows)))


_endpoint = partial(Endpoint, read_request=read_request, read_error=store_error)
SEARCH: Final = _endpoint(operation=Operation.RETRIEVAL, read_response=read_hits)
STORE: Final = _endpoint(operation=Operation.STORE, read_response=read_rows)


# --- searches: what the hot path keeps of a call ----------------------------------------------------------
def _search(instance: Any, collection: Any, queries: Sequence[AskedQuery], *, scored: bool) -> Snapshot:
    client = known_client(instance)
    kept = {
        "queries": queries,
        "collection": collection,
        "vectors": None if client.local is None else local_vectors(client.local, collection),
        "client": client,
    }
    return Snapshot(SEARCH if scored else STORE, collection, kept, client.peer)


def _query(instance: Any, arguments: Arguments, _content: bool) -> Snapshot:
    get = arguments.get
    limit = get("limit") or DEFAULT_LIMIT
    if "group_by" in arguments:
        limit *= get("group_size", DEFAULT_GROUP_SIZE)
    prefetch = get("prefetch")
    asked = AskedQuery(
        kept_vector(get("query")),
        get("using"),
        limit,
        get("query_filter"),
        None if prefetch is None else kept_vector(prefetch),
    )
    return _search(instance, get("collection_name"), (asked,), scored=asked.scored)


def _batch(instance: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    requests: Any = arguments.get("requests")
    if type(requests) not in (list, tuple):
        return None  # an iterator is the client's to read
    queries = [
        AskedQuery(
            kept_vector(request.query if hasattr(request, "query") else _legacy_query(request)),
            getattr(request, "using", None),
            request.limit or DEFAULT_LIMIT,
            request.filter,
            getattr(request, "prefetch", None),
        )
        for request in requests
    ]
    scored = any(asked.scored for asked in queries)
    return _search(instance, arguments.get("collection_name"), queries, scored=scored)


def _legacy_query(request: Any) -> Any:
    return getattr(request, "vector", DISCOVERY if hasattr(request, "target") else STORED_POINTS)


def _legacy(instance: Any, arguments: Arguments, content: bool, *, default: str = STORED_POINTS) -> Snapshot:
    """`search`, `recommend`, `discover` and their groups: gone since qdrant-client 1.16."""
    query: Any = arguments.get("query_vector", default)
    using = arguments.get("using")
    if type(query) is tuple:
        using, query = cast(tuple[str, Any], query)
    elif hasattr(query, "vector"):  # NamedVector, NamedSparseVector
        using, query = getattr(query, "name", None), query.vector
    return _query(instance, {**arguments, "query": query, "using": using}, content)


# --- everything else --------------------------------------------------------------------------------------
def _store(
    instance: Any, arguments: Arguments, _content: bool, *, points: str = "", filter_name: str = ""
) -> Snapshot:
    """A listing or a write.  Of what is written only the number is kept.

    Args:
        points: name of the argument that holds the points written or removed.
        filter_name: name of the argument that holds a filter.
    """
    kept: dict[str, Any] = {}
    if points:
        kept["write_count"] = _count(arguments.get(points))
    if filter_name:
        kept["filtered"] = arguments.get(filter_name) is not None
    return Snapshot(STORE, arguments.get("collection_name"), kept, known_client(instance).peer)


def _count(points: Any) -> int | None:
    return size(getattr(points, "ids", None) or getattr(points, "points", points))  # Batch, PointIdsList


Vectors = Callable[[Any, Any], Any]


def _collection(instance: Any, arguments: Arguments, _content: bool, *, vectors: Vectors) -> Snapshot:
    """A call that tells, once it has succeeded, the distances of a collection's vectors.

    Args:
        vectors: ``(vectors_config, result) -> vector parameters``, or None to forget them.
    """
    client, collection = known_client(instance), arguments.get("collection_name")
    read = partial(_learn, client, str(collection), partial(vectors, arguments.get("vectors_config")))
    return Snapshot(_endpoint(operation=Operation.STORE, read_response=read), collection, {}, client.peer)


def _learn(
    client: KnownClient, collection: str, vectors: Callable[[Any], Any], result: Any, _content: bool
) -> Response:
    client.learn(collection, vectors(result))
    return Response()


# --- results: their owner may sort or empty the lists before the worker reads them ------------------------
def _points(result: Any) -> Any:
    return (tuple(result.points),)


def _point_lists(result: Any) -> Any:
    return [tuple(response.points) for response in result]


def _groups(result: Any) -> Any:
    return (tuple(hit for group in result.groups for hit in group.hits),)


def _legacy_points(result: Any) -> Any:
    return (tuple(result),)


def _legacy_lists(result: Any) -> Any:
    return [tuple(points) for points in result]


def _page(result: Any) -> int:
    return len(result[0])


# --- the table --------------------------------------------------------------------------------------------
class _Row(NamedTuple):
    name: str
    snapshot: Callable[[Any, Arguments, bool], Snapshot | None] = _store
    unwrap: Callable[[Any], Any] | None = nothing
    optional: bool = False


_ROWS: Final = (
    _Row("query_points", _query, _points),
    _Row("query_points_groups", _query, _groups),
    _Row("query_batch_points", _batch, _point_lists),
    _Row("search", _legacy, _legacy_points, optional=True),
    _Row("search_groups", _legacy, _groups, optional=True),
    _Row("search_batch", _batch, _legacy_lists, optional=True),
    _Row("recommend", _legacy, _legacy_points, optional=True),
    _Row("recommend_groups", _legacy, _groups, optional=True),
    _Row("recommend_batch", _batch, _legacy_lists, optional=True),
    _Row("discover", partial(_legacy, default=DISCOVERY), _legacy_points, optional=True),
    _Row("discover_batch", _batch, _legacy_lists, optional=True),
    _Row("search_matrix_pairs", partial(_store, filter_name="query_filter"), optional=True),
    _Row("search_matrix_offsets", partial(_store, filter_name="query_filter"), optional=True),
    _Row("scroll", partial(_store, filter_name="scroll_filter"), _page),
    _Row("retrieve", _store, len),
    _Row("count", partial(_store, filter_name="count_filter")),
    _Row("facet", partial(_store, filter_name="facet_filter"), optional=True),
    _Row("upsert", partial(_store, points="points")),
    _Row("upload_points", partial(_store, points="points")),
    _Row("upload_collection", partial(_store, points="vectors")),
    _Row("upload_records", partial(_store, points="records"), optional=True),
    _Row("update_vectors", partial(_store, points="points")),
    _Row("delete_vectors", partial(_store, points="points")),
    _Row("delete", partial(_store, points="points_selector")),
    _Row("set_payload", partial(_store, points="points")),
    _Row("overwrite_payload", partial(_store, points="points")),
    _Row("delete_payload", partial(_store, points="points")),
    _Row("clear_payload", partial(_store, points="points_selector")),
    _Row("batch_update_points"),
    _Row("create_collection", partial(_collection, vectors=lambda config, _: config), None),
    _Row("recreate_collection", partial(_collection, vectors=lambda config, _: config), None),
    _Row("get_collection", partial(_collection, vectors=lambda _, info: info.config.params.vectors), None),
    _Row("delete_collection", partial(_collection, vectors=lambda _, __: None), None),
    _Row("update_collection"),
    _Row("migrate", optional=True),  # reads and writes by public methods: one span stands for all
    _Row("collection_exists", optional=True),
    _Row("create_payload_index"),
    _Row("delete_payload_index"),
)


def _methods() -> Iterator[WrappedMethod]:
    for owner in OWNERS:
        for name, snapshot, unwrap, optional in _ROWS:
            target = f"{owner}.{name}"
            yield WrappedMethod(target=target, snapshot=snapshot, unwrap=unwrap, optional=optional)


QDRANT: Final = ClientIntegration(
    name="qdrant", requires="qdrant-client>=1.10", kind=Kind.VECTOR_STORE, methods=tuple(_methods())
)
