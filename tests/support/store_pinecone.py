"""Pinecone for the contract suite: its clients over HTTP, asyncio and gRPC, and a fake index on a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from pinecone import ApiError, AsyncPinecone, DenseVectorQuery, Pinecone
from pinecone.grpc import GrpcIndex
from pinecone.index import Index

import pinecone_grpc
from neuronscope.signals import names
from neuronscope.testing import FakePinecone
from neuronscope.testing.fake_pinecone import FORBIDDEN
from store_cases import IDS, QUERY, TEXTS, TITLES, VECTORS, FailingCall, StoreCall, StoreCase

NAMESPACE = "english"
RECORDS: list[dict[str, Any]] = [
    {
        "id": str(number),
        "values": list(vector),
        "metadata": {"title": title, "text": text, "parity": number % 2},
    }
    for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
]


def fill(server: FakePinecone) -> None:
    """The documents, in two namespaces."""
    for namespace in (NAMESPACE, "other"):
        server.upsert(namespace, RECORDS)


@contextmanager
def served() -> Generator[FakePinecone]:
    """A server with the documents."""
    with FakePinecone() as server:
        fill(server)
        yield server


@contextmanager
def http() -> Generator[Index]:
    """An index over HTTP."""
    with served() as server:
        client = Pinecone(api_key="key", host=server.base_url, ssl_verify=False)
        index = client.Index(host=server.base_url)
        yield index  # type: ignore[misc]
        index.close()


@contextmanager
def grpc() -> Generator[GrpcIndex]:
    """An index over gRPC."""
    with served() as server, pinecone_grpc.serve(server) as address:
        index = GrpcIndex(host=address, api_key="key", secure=False, grpc_scheme="http")
        yield index
        index.close()


@asynccontextmanager
async def aio() -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    with served() as server:
        client = AsyncPinecone(api_key="key", host=server.base_url, ssl_verify=False)
        async with client, client.IndexAsyncio(host=server.base_url) as index:
            yield index


def both(method: str, name: str = "", *, part: str = "", arguments: dict[str, Any], **how: Any) -> StoreCall:
    """A method that the clients have in both kinds; every argument is named."""

    def call(index: Any) -> Any:
        return getattr(getattr(index, part) if part else index, method)(**arguments)

    facts = {names.DB_NAMESPACE: NAMESPACE, **how.pop("facts", {})}
    return StoreCall(name=name or method, method=method, call=call, acall=call, facts=facts, **how)


def search(name: str, *, top_k: int = 3, **more: Any) -> StoreCall:
    """A query."""
    how = {key: more.pop(key) for key in tuple(more) if key in ("facts", "fingerprint", "returned", "secret")}
    arguments = {"namespace": NAMESPACE, "top_k": top_k, "include_metadata": True, **more}
    return both("query", name, arguments=arguments, k=top_k, **how)


def other(method: str, *, facts: dict[str, Any] | None = None, part: str = "", **arguments: Any) -> StoreCall:
    """A listing or a write."""
    return both(
        method,
        f"{part}.{method}".lstrip("."),
        part=part,
        arguments={"namespace": NAMESPACE, **arguments},
        search=False,
        secret=False,
        facts=facts or {},
    )


INDEX_CALLS = (
    search("query", vector=list(QUERY), facts={names.RETRIEVAL_FILTERED: False}),
    search(
        "filtered", vector=list(QUERY), filter={"parity": {"$eq": 0}}, facts={names.RETRIEVAL_FILTERED: True}
    ),
    search("empty", vector=list(QUERY), filter={"parity": 7}, returned=0, secret=False),
    search("by id", id="4", fingerprint=False),
    search(
        "hybrid",
        vector=list(QUERY),
        sparse_vector={"indices": [1, 5], "values": [0.5, 0.5]},
        facts={names.RETRIEVAL_STAGES: ["dense", "sparse"]},
    ),
    both(
        "query_namespaces",
        arguments={
            "vector": list(QUERY),
            "namespaces": [NAMESPACE, "empty"],
            "metric": "cosine",
            "top_k": 3,
            "include_metadata": True,
        },
        facts={names.DB_NAMESPACE: f"{NAMESPACE}|empty"},
        metric="cosine",
    ),
    other("fetch", ids=["1", "2"], facts={names.DB_RETURNED_ROWS: 2}),
    other("list_paginated", limit=5, facts={names.DB_RETURNED_ROWS: 5}),
    other("upsert", vectors=RECORDS, facts={names.WRITE_COUNT: 8}),
    other("update", id="1", set_metadata={"parity": 5}, facts={names.WRITE_COUNT: 1}),
    other("delete", ids=["1", "2"], facts={names.WRITE_COUNT: 2}),
)
REST_CALLS = (
    both(
        "search",
        "text search",
        arguments={"namespace": NAMESPACE, "top_k": 3, "inputs": {"text": "title 4"}},
        fingerprint=False,
    ),
    both(
        "search",
        "reranked",
        arguments={
            "namespace": NAMESPACE,
            "top_k": 5,
            "inputs": {"text": "title 4"},
            "rerank": {"model": "ranker", "rank_fields": ["text"], "top_n": 3},
        },
        fingerprint=False,
        metric="rerank",
        facts={names.RETRIEVAL_STAGES: ["dense", "rerank:ranker"], names.RETRIEVAL_STAGES_K: [5, 3]},
    ),
    other("upsert_records", records=[{"_id": "9", "text": TEXTS[0]}], facts={names.WRITE_COUNT: 1}),
)
DOCUMENT_CALLS = (
    both(
        "search",
        "documents by vector",
        part="documents",
        arguments={
            "namespace": NAMESPACE,
            "top_k": 3,
            "score_by": [DenseVectorQuery(field="vector", values=list(QUERY))],
        },
    ),
    both(
        "search",
        "documents by words",
        part="documents",
        arguments={
            "namespace": NAMESPACE,
            "top_k": 3,
            "score_by": [{"type": "text", "query": "title 4", "fields": ["title"]}],
            "filter": {"parity": 0},
        },
        fingerprint=False,
        facts={names.RETRIEVAL_FILTERED: True},
    ),
    other("fetch", part="documents", ids=["1"], facts={names.DB_RETURNED_ROWS: 1}),
    other("upsert", part="documents", documents=[{"_id": "9", "a": [0.5] * 4}], facts={names.WRITE_COUNT: 1}),
)


def _unknown(index: Any) -> Any:
    """A namespace in which everything is refused (`FORBIDDEN` of the fake)."""
    return index.query(top_k=3, vector=list(QUERY), namespace=FORBIDDEN)


CASE = StoreCase(
    name="pinecone",
    adapter="pinecone",
    system="pinecone",
    open=http,
    aopen=aio,
    calls=(*INDEX_CALLS, *REST_CALLS, *DOCUMENT_CALLS),
    failing=(
        FailingCall(
            name="refused",
            call=_unknown,
            acall=_unknown,
            error_type="pinecone.errors.exceptions.ForbiddenError",
            status=403,
        ),
    ),
    errors=(ApiError,),
    watched=(
        "pinecone.index:Index.query",
        "pinecone.async_client.async_index:AsyncIndex.query",
        "pinecone.grpc:GrpcIndex.query",
        "pinecone.client.documents:Documents.search",
        "pinecone.client.inference:Inference.embed",
    ),
    collection=None,
    servers=True,
)
GRPC = replace(
    CASE,
    name="pinecone-grpc",
    open=grpc,
    aopen=None,
    calls=tuple(
        call
        for call in INDEX_CALLS
        if call.method in ("query", "query_namespaces", "fetch", "upsert", "delete")
    ),
)
