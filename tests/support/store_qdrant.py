"""Qdrant for the contract suite: local mode, whose engine is the client's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
from qdrant_client import AsyncQdrantClient, QdrantClient
from qdrant_client import models as m

from neuronscope.signals import names
from store_cases import (
    COLLECTION,
    DIMENSION,
    IDS,
    QUERIES,
    QUERY,
    TEXTS,
    TITLES,
    VECTORS,
    FailingCall,
    StoreCall,
    StoreCase,
)


def points() -> list[m.PointStruct]:
    """The documents."""
    return [
        m.PointStruct(
            id=number, vector=list(vector), payload={"title": title, "text": text, "parity": number % 2}
        )
        for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
    ]


PARAMS = m.VectorParams(size=DIMENSION, distance=m.Distance.COSINE)
EVEN = m.Filter(must=[m.FieldCondition(key="parity", match=m.MatchValue(value=0))])
NOTHING = m.Filter(must=[m.FieldCondition(key="title", match=m.MatchValue(value="none such"))])
BATCH = [m.QueryRequest(query=list(query), limit=3, with_payload=True) for query in QUERIES]
FUSED = [m.Prefetch(query=list(query), limit=5) for query in QUERIES[:2]]


@contextmanager
def local() -> Generator[QdrantClient]:
    """A store in this process."""
    client = QdrantClient(":memory:")
    client.create_collection(COLLECTION, PARAMS)
    client.upsert(COLLECTION, points())
    yield client
    client.close()


@asynccontextmanager
async def alocal() -> AsyncGenerator[AsyncQdrantClient]:
    """Its asynchronous twin."""
    client = AsyncQdrantClient(":memory:")
    await client.create_collection(COLLECTION, PARAMS)
    await client.upsert(COLLECTION, points())
    yield client
    await client.close()


def upload_points(client: QdrantClient, documents: Iterator[tuple[int, list[float]]]) -> int:
    """From a generator of points."""
    client.upload_points(COLLECTION, (m.PointStruct(id=i, vector=vector) for i, vector in documents))
    return client.count(COLLECTION).count


def upload_collection(client: QdrantClient, documents: Iterator[tuple[int, list[float]]]) -> int:
    """From generators of vectors and ids."""
    ids: list[int] = []

    def vectors() -> Iterator[list[float]]:
        for i, vector in documents:
            ids.append(i)
            yield vector

    client.upload_collection(COLLECTION, vectors=vectors(), ids=iter(range(101, 111)))
    return client.count(COLLECTION).count


def both(method: str, arguments: dict[str, Any], name: str = "", **how: Any) -> StoreCall:
    """A method that the clients have in both kinds."""

    def call(client: Any) -> Any:
        return getattr(client, method)(COLLECTION, **arguments)

    return StoreCall(name=name or method, method=method, call=call, acall=call, **how)


def nearest(name: str, query: Any, *, limit: int = 3, **how: Any) -> StoreCall:
    """A search."""
    facts = {names.RETRIEVAL_FILTERED: False, **how.pop("facts", {})}
    return both(
        "query_points", {"query": query, "limit": limit, **how.pop("more", {})}, name, facts=facts, **how
    )


def other(method: str, **arguments: Any) -> StoreCall:
    """A listing or a write."""
    facts = arguments.pop("facts", {})
    return both(method, arguments, search=False, secret=False, facts=facts)


FILTERED = {names.RETRIEVAL_FILTERED: True}
CALLS = (
    nearest("query_points", list(QUERY), metric="cosine"),
    nearest(
        "filtered",
        np.array(QUERY, dtype=np.float32),
        metric="cosine",
        more={"query_filter": EVEN},
        facts={**FILTERED, names.QUERY_DTYPE: "float32"},
    ),
    nearest(
        "empty",
        list(QUERY),
        metric="cosine",
        more={"query_filter": NOTHING},
        facts=FILTERED,
        returned=0,
        secret=False,
    ),
    nearest("by id", 4, metric="cosine", fingerprint=False),
    nearest(
        "fused",
        m.FusionQuery(fusion=m.Fusion.RRF),
        metric="rrf",
        more={"prefetch": FUSED},
        fingerprint=False,
        facts={names.RETRIEVAL_STAGES: ["dense", "dense", "rrf"], names.RETRIEVAL_STAGES_K: [5, 5, 3]},
    ),
    both("query_batch_points", {"requests": BATCH}, metric="cosine", queries=3),
    both(
        "query_points_groups",
        {"query": list(QUERY), "group_by": "parity", "limit": 2, "group_size": 2},
        metric="cosine",
        k=4,
        returned=4,
        ordered=False,
    ),
    both("query_points", {"limit": 3}, "listing", search=False, secret=False),
    other("scroll", limit=3, facts={names.DB_RETURNED_ROWS: 3}),
    other("retrieve", ids=[1, 2], facts={names.DB_RETURNED_ROWS: 2}),
    other("count"),
    other("upsert", points=points(), facts={names.WRITE_COUNT: 8}),
    other("delete", points_selector=[1, 2], facts={names.WRITE_COUNT: 2}),
)


async def _unknown(client: AsyncQdrantClient) -> Any:
    return await client.query_points("nowhere", query=list(QUERY))


CASE = StoreCase(
    name="qdrant-local",
    adapter="qdrant",
    system="qdrant",
    open=local,
    aopen=alocal,
    calls=CALLS,
    failing=(
        FailingCall(
            name="unknown collection",
            call=lambda client: client.query_points("nowhere", query=list(QUERY)),
            acall=_unknown,
            error_type="ValueError",
        ),
    ),
    errors=(ValueError,),
    uploads=(upload_points, upload_collection),
    watched=(
        "qdrant_client.qdrant_client:QdrantClient.query_points",
        "qdrant_client.qdrant_client:QdrantClient.upload_points",
        "qdrant_client.async_qdrant_client:AsyncQdrantClient.query_points",
    ),
)
