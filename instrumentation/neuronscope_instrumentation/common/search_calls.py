"""Which requests to Elasticsearch or OpenSearch are about vectors, and what is kept of them.

Both clients send everything through one method.  Searches by vectors are retrievals; writes are told for
indexes that are known to hold vectors: made, searched or written with some by this client.  All else passes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Endpoint, Operation, Peer, Request, Response, Snapshot
from neuronscope_instrumentation.common.retrieval import store_error
from neuronscope_instrumentation.common.search_api import (
    Asked,
    KnownIndexes,
    asked_of,
    is_vector,
    read_hits,
    read_written,
    request_of,
    searches_of,
    vector_fields,
)

WRITES: Final = frozenset(
    {"bulk", "index", "create", "update", "delete", "delete_by_query", "update_by_query"}
)
MAX_DOCUMENT: Final = 1 << 18  # characters of one that is decoded for that
MAX_FIELDS: Final = 64  # of a document, looked at for a vector
_BY_PATH: Final = {"_doc": "index", "_search": "search", "_msearch": "msearch", "_bulk": "bulk"}


class Sent(NamedTuple):
    """One request.

    Attributes:
        operation: by Elasticsearch's word for it: ``search``, ``bulk`` and so on.
        size: hits asked for, if that is in the address.
    """

    operation: str
    collection: str | None
    body: Any
    size: Any = None


def operation_of(method: str, path: str) -> tuple[str, str | None]:
    """What a request does, by its address: the operation, and the index."""
    parts = [part for part in path.partition("?")[0].split("/") if part]
    index = parts[0] if parts and not parts[0].startswith("_") else None
    named = next((part for part in parts if part.startswith("_")), None)
    if named is None:
        return ("indices.create" if method == "PUT" and len(parts) == 1 else ""), index
    if named == "_doc" and method == "DELETE":
        return "delete", index
    return _BY_PATH.get(named, named[1:]), index


def snapshot_of(sent: Sent, known: KnownIndexes, peer: Peer) -> Snapshot | None:
    """What is kept of a request; None if it is not about vectors."""
    if sent.operation == "search":
        asked = asked_of(sent.body, sent.size)
        return _search(sent, (asked,), known, peer) if asked is not None else None
    if sent.operation == "msearch":
        searches = searches_of(sent.body)
        return _search(sent, searches, known, peer) if searches is not None else None
    if sent.operation == "indices.create":
        fields = vector_fields(sent.body)
        if not fields or sent.collection is None:
            return None
        read = partial(_learn, known, sent.collection, fields)
        endpoint = Endpoint(
            operation=Operation.STORE, read_request=_nothing, read_response=read, read_error=store_error
        )
        return Snapshot(endpoint, sent.collection, {}, peer, sent.operation)
    if sent.operation in WRITES and (sent.collection in known.fields or _has_vector(sent.body)):
        if sent.collection is not None and sent.collection not in known.fields:
            known.learn(sent.collection, {})
        return Snapshot(WRITE, sent.collection, {}, peer, sent.operation)
    return None


def _search(sent: Sent, asked: Sequence[Asked | None], known: KnownIndexes, peer: Peer) -> Snapshot:
    if sent.collection is not None and sent.collection not in known.fields:
        known.learn(sent.collection, {})
    kept = {"asked": asked, "index": sent.collection, "known": known}
    return Snapshot(SEARCH, sent.collection, kept, peer, sent.operation)


def _has_vector(body: Any) -> bool:
    """Does a document, or the first one of several, hold a vector?"""
    documents: Sequence[Any] = (body,)
    if isinstance(body, list | tuple):
        documents = cast("Sequence[Any]", body)
    elif isinstance(body, str | bytes):
        documents = body.split("\n", 2) if isinstance(body, str) else body.split(b"\n", 2)
    for each in islice(documents, 2):  # the first may be an action of a bulk
        document = _decoded(each) if isinstance(each, str | bytes) else each
        if isinstance(document, Mapping):
            told = cast("Mapping[str, Any]", document)
            inner: Any = told.get("doc", told)
            fields = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else told
            if any(map(is_vector, islice(fields.values(), MAX_FIELDS))):
                return True
    return False


def _decoded(line: str | bytes) -> Any:
    """A document that was encoded before it came here."""
    try:
        return json.loads(line) if len(line) < MAX_DOCUMENT else None
    except ValueError:
        return None


# --- in the worker ------------------------------------------------------------------------------------------
def read_search(kept: Mapping[str, Any], content: bool) -> Request:
    """Facts of a search by what its snapshot kept."""
    return request_of(kept["asked"], kept["index"], kept["known"], content)


def _nothing(_kept: Mapping[str, Any], _content: bool) -> Request:
    return Request()


def _learn(
    known: KnownIndexes, index: str, fields: Mapping[str, str | None], _count: Any, _content: bool
) -> Response:
    known.learn(index, fields)
    return Response()


SEARCH: Final = Endpoint(
    operation=Operation.RETRIEVAL, read_request=read_search, read_response=read_hits, read_error=store_error
)
WRITE: Final = Endpoint(
    operation=Operation.STORE, read_request=_nothing, read_response=read_written, read_error=store_error
)
