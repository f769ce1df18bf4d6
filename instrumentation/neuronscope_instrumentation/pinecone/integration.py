"""The table of Pinecone's methods: listings, writes, and where everything is wrapped.

`Index` puts its bound methods into each instance when it is made.  One that was made before us therefore
calls past our wrappers: for it the HTTP client below is wrapped as well, which sees nothing but requests and
stays silent within a call that is already observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    HandOff,
    Kind,
    Operation,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.common.fields import document, field, items, mapping
from neuronscope_instrumentation.common.retrieval import nothing, read_rows, size, store_error, whole
from neuronscope_instrumentation.pinecone.indexes import known_index, learn_metric
from neuronscope_instrumentation.pinecone.inference import snapshot_embed, snapshot_rerank
from neuronscope_instrumentation.pinecone.searches import (
    hits_of,
    matches_of,
    snapshot_documents,
    snapshot_query,
    snapshot_search,
)

Arguments = dict[str, Any]
INDEXES: Final = (
    "pinecone.index:Index",
    "pinecone.async_client.async_index:AsyncIndex",
    "pinecone.grpc:GrpcIndex",
)
# Where they were before release 8.
OLD_INDEXES: Final = (
    "pinecone.db_data.index:Index",
    "pinecone.db_data.index_asyncio:_IndexAsyncio",
    "pinecone.grpc.index_grpc:GRPCIndex",
)
DOCUMENTS: Final = (
    "pinecone.client.documents:Documents",
    "pinecone.async_client.documents:AsyncDocuments",
)
INFERENCE: Final = (
    "pinecone.client.inference:Inference",
    "pinecone.async_client.inference:AsyncInference",
)


# --- listings and writes ------------------------------------------------------------------------------------
def _store(
    instance: Any,
    arguments: Arguments,
    _content: bool,
    *,
    written: str = "",
    endpoint: Endpoint | None = None,
) -> Snapshot:
    """A listing or a write.  Of what is written only the number is kept.

    Args:
        written: name of the argument that holds what is written or removed.
    """
    index = known_index(instance)
    kept: dict[str, Any] = {"namespace": arguments.get("namespace"), "host": index.host}
    if written:
        value = arguments.get(written)
        kept["write_count"] = 1 if isinstance(value, str) else size(value)
    if "filter" in arguments:
        kept["filtered"] = arguments["filter"] is not None
    return Snapshot(endpoint or STORE, index.name, kept, index.peer)


def read_store(kept: Mapping[str, Any], _content: bool) -> Request:
    """What a listing or a write asks for."""
    namespace = kept.get("namespace")
    return Request(
        namespace=namespace if isinstance(namespace, str) and namespace else None,
        write_count=kept.get("write_count"),
        filtered=kept.get("filtered"),
    )


STORE: Final = Endpoint(
    operation=Operation.STORE, read_request=read_store, read_response=read_rows, read_error=store_error
)


def _statistics(instance: Any, arguments: Arguments, content: bool) -> Snapshot:
    """Statistics tell how the index scores."""
    endpoint = replace(STORE, read_response=partial(_learn, known_index(instance).host))
    return _store(instance, arguments, content, endpoint=endpoint)


def _learn(host: str, result: Any, _content: bool) -> Response:
    learn_metric(host, field(document(result), "metric"))
    return Response()


def _vectors(result: Any) -> int:
    return len(result.vectors)


def _documents(result: Any) -> int:
    return len(result.documents)


# --- requests of indexes that were made before us -----------------------------------------------------------
def _listed(body: Any, _content: bool) -> Response:
    return Response(returned=len(items(field(document(body), "vectors"))))


# Arguments of `query`, and what they are called in its request.
_ASKED: Final = (
    ("vector", "vector"),
    ("sparse_vector", "sparseVector"),
    ("top_k", "topK"),
    ("filter", "filter"),
    ("namespace", "namespace"),
)
_WRITE: Final = replace(STORE, read_response=None)
_LIST: Final = replace(STORE, read_response=_listed)


def _called(method: str, kept: Snapshot) -> Snapshot:
    return Snapshot(kept.endpoint, kept.target, kept.arguments, kept.peer, method)


def _posted(instance: Any, arguments: Arguments, content: bool) -> Snapshot | None:
    """A request of the HTTP client: only of the methods that an older `Index` calls past us."""
    path, body = arguments.get("path"), mapping(arguments.get("json"))
    if body is None:
        return None
    if path == "/query":
        asked = {name: body.get(key) for name, key in _ASKED}
        return _called("query", snapshot_query(instance, asked, content))
    if path == "/vectors/upsert":
        asked = {"namespace": body.get("namespace"), "vectors": body.get("vectors")}
        return _called("upsert", _store(instance, asked, content, written="vectors", endpoint=_WRITE))
    if path == "/describe_index_stats":
        return _called("describe_index_stats", _statistics(instance, {}, content))
    return None


def _got(instance: Any, arguments: Arguments, content: bool) -> Snapshot | None:
    if arguments.get("path") != "/vectors/list":
        return None
    namespace = field(mapping(arguments.get("params")), "namespace")
    return _called("list_paginated", _store(instance, {"namespace": namespace}, content, endpoint=_LIST))


def _body(response: Any) -> Any:
    content = getattr(response, "content", None)
    return content if isinstance(content, bytes) else None


# --- the table ----------------------------------------------------------------------------------------------
class _Row(NamedTuple):
    name: str
    snapshot: Callable[[Any, Arguments, bool], Snapshot | None] = _store
    unwrap: Callable[[Any], Any] = nothing
    optional: bool = False


_INDEX_ROWS: Final = (
    _Row("query", snapshot_query, matches_of),
    _Row("query_namespaces", snapshot_query, matches_of),
    _Row("search", snapshot_search, hits_of),
    _Row("search_records", snapshot_search, hits_of),
    _Row("fetch", _store, _vectors),
    _Row("fetch_by_metadata", _store, _vectors),
    _Row("list_paginated", _store, _vectors),
    _Row("describe_index_stats", _statistics, whole),
    _Row("upsert", partial(_store, written="vectors")),
    _Row("upsert_from_dataframe", partial(_store, written="df")),
    _Row("upsert_records", partial(_store, written="records")),
    _Row("update", partial(_store, written="id")),
    _Row("delete", partial(_store, written="ids")),
)
_DOCUMENT_ROWS: Final = (
    _Row("search", snapshot_documents, matches_of),
    _Row("fetch", _store, _documents),
    _Row("upsert", partial(_store, written="documents")),
    _Row("batch_upsert", partial(_store, written="documents")),
    _Row("update", partial(_store, written="documents")),
    _Row("delete", partial(_store, written="ids")),
)
_INFERENCE_ROWS: Final = (
    _Row("embed", snapshot_embed, whole),
    _Row("rerank", snapshot_rerank, whole),
)


def _methods(
    owners: Iterable[str], rows: Iterable[_Row], *, optional: bool = False
) -> Iterator[WrappedMethod]:
    for owner in owners:
        for row in rows:
            yield WrappedMethod(
                target=f"{owner}.{row.name}",
                snapshot=row.snapshot,
                unwrap=row.unwrap,
                optional=row.optional or optional,
            )


def members(obj: Any) -> Iterator[Any]:
    """What acts for a client or an index, as far as it is made: HTTP client, documents, inference."""
    for name in ("_http", "_documents", "_inference"):
        member = getattr(obj, name, None)
        if member is not None:
            yield member


_HTTP: Final = "pinecone._internal.http_client:HTTPClient"
PINECONE: Final = ClientIntegration(
    name="pinecone",
    requires="pinecone>=7",
    kind=Kind.VECTOR_STORE,
    methods=(
        *_methods(INDEXES, _INDEX_ROWS),
        *_methods(DOCUMENTS, _DOCUMENT_ROWS),
        *_methods(INFERENCE, _INFERENCE_ROWS),
        *_methods(OLD_INDEXES, _INDEX_ROWS, optional=True),
        WrappedMethod(target=f"{_HTTP}.post", snapshot=_posted, unwrap=_body),
        WrappedMethod(target=f"{_HTTP}.get", snapshot=_got, unwrap=_body),
    ),
    handoffs=(
        HandOff("concurrent.futures.thread:ThreadPoolExecutor.submit", "fn", package="pinecone"),
        HandOff("pinecone._legacy.async_req:_LegacyAsyncPool.submit", "func"),
    ),
    copies=(
        "pinecone._client:Pinecone.index",
        "pinecone._client:Pinecone.Index",
        "pinecone.async_client.pinecone:AsyncPinecone.index",
        "pinecone.async_client.pinecone:AsyncPinecone.IndexAsyncio",
    ),
    members=members,
)
