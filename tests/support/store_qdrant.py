"""Qdrant for the contract suite: local mode, whose engine is the client's own."""

from __future__ import annotations

import atexit
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
from qdrant_client import AsyncQdrantClient, QdrantClient
from qdrant_client import models as m
from qdrant_client.http.exceptions import UnexpectedResponse

import qdrant_server
from neuronscope.signals import names
from neuronscope_instrumentation.qdrant.clients import known_client
from qdrant_server import QdrantServer
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
# Both rank alike: a fusion has no order among equals.
FUSED = [m.Prefetch(query=list(QUERY), limit=limit) for limit in (5, 4)]


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


@functools.cache
def running() -> QdrantServer:
    """One server for all tests of a process: the engine's files take longer to make than a test runs."""
    stack = ExitStack()
    server = stack.enter_context(qdrant_server.serve())
    server.engine.create(COLLECTION, DIMENSION, "Cosine")
    atexit.register(stack.close)
    return server


def served() -> QdrantServer:
    """The server with the documents and nothing else."""
    server = running()
    engine = server.engine
    engine.delete(COLLECTION, [record.id for record in engine.scroll(COLLECTION, 100)])
    engine.upsert(COLLECTION, points())
    return server


def _address(server: QdrantServer, grpc: bool) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": server.rest.port,
        "grpc_port": server.grpc_port,
        "prefer_grpc": grpc,
        "check_compatibility": False,
        "timeout": 5,
        "verify": False,  # reading the machine's certificates takes longer than the test
    }


def remote(*, grpc: bool) -> Callable[[], AbstractContextManager[QdrantClient]]:
    """A client of a server, over REST or gRPC."""

    @contextmanager
    def open_remote() -> Generator[QdrantClient]:
        client = QdrantClient(**_address(served(), grpc))
        # What a service does when it starts tells the distance; the server here has no such route.
        known_client(client).learn(COLLECTION, PARAMS)
        yield client
        client.close()

    return open_remote


def aremote(*, grpc: bool) -> Callable[[], AbstractAsyncContextManager[AsyncQdrantClient]]:
    """Its asynchronous twin."""

    @asynccontextmanager
    async def open_remote() -> AsyncGenerator[AsyncQdrantClient]:
        client = AsyncQdrantClient(**_address(served(), grpc))
        known_client(client).learn(COLLECTION, PARAMS)
        yield client
        await client.close()

    return open_remote


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
        facts={names.RETRIEVAL_STAGES: ["dense", "dense", "rrf"], names.RETRIEVAL_STAGES_K: [5, 4, 3]},
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


def _remote_case(
    name: str, *, grpc: bool, error: type[BaseException], told: str, status: int | None
) -> StoreCase:
    refused = replace(CASE.failing[0], error_type=told, status=status)
    return replace(
        CASE,
        name=name,
        open=remote(grpc=grpc),
        aopen=aremote(grpc=grpc),
        failing=(refused,),
        errors=(error,),
        servers=True,
    )


REST = _remote_case(
    "qdrant-rest",
    grpc=False,
    error=UnexpectedResponse,
    told="qdrant_client.http.exceptions.UnexpectedResponse",
    status=404,
)
GRPC = _remote_case("qdrant-grpc", grpc=True, error=grpc.RpcError, told="NOT_FOUND", status=None)
