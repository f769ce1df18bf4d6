"""Milvus for the contract suite: `milvus-lite`, which serves a local file by Milvus's own protocol."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np

from milvus import CONNECTED_S, store
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

pymilvus: Any = importlib.import_module("pymilvus")  # it brings no types
COSINE = {"metric_type": "COSINE"}


def documents() -> list[dict[str, Any]]:
    """The documents."""
    return [
        {"id": number, "vector": list(vector), "title": title, "text": text}
        for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
    ]


@contextmanager
def local() -> Generator[Any]:
    """A client of a local file."""
    with store() as path:
        client = pymilvus.MilvusClient(path, timeout=CONNECTED_S)
        if client.has_collection(
            COLLECTION
        ):  # emptying one takes milliseconds, loading a new one half a second
            client.delete(COLLECTION, filter="id >= 0")
        else:
            client.create_collection(COLLECTION, DIMENSION, metric_type="COSINE")
        client.insert(COLLECTION, documents())
        yield client
        client.close()


@asynccontextmanager
async def alocal() -> AsyncGenerator[Any]:
    """Its asynchronous twin, beside a client that has made the collection."""
    with local() as client:
        address = client._config.uri  # where it serves the file
        # Connected before it is given away: what is cancelled or refused then is a call, not the way to it.
        async with pymilvus.AsyncMilvusClient(address, timeout=CONNECTED_S) as twin:
            yield twin


def both(method: str, arguments: dict[str, Any], name: str = "", **how: Any) -> StoreCall:
    """A method that the clients have in both kinds."""

    def call(client: Any) -> Any:
        return getattr(client, method)(COLLECTION, **arguments)

    return StoreCall(name=name or method, method=method, call=call, acall=call, **how)


def nearest(name: str, data: Sequence[Any], more: dict[str, Any] | None = None, **how: Any) -> StoreCall:
    """A search; the collection was made before, so that only the call tells its metric."""
    facts = {names.RETRIEVAL_FILTERED: False, **how.pop("facts", {})}
    arguments = {"data": data, "limit": 3, "output_fields": ["text"], "search_params": COSINE, **(more or {})}
    return both("search", arguments, name, metric=how.pop("metric", "cosine"), facts=facts, **how)


def other(method: str, facts: dict[str, Any], **arguments: Any) -> StoreCall:
    """A listing or a write."""
    return both(method, arguments, search=False, secret=False, facts=facts)


def step(position: int) -> Any:
    """One half of a hybrid search."""
    return pymilvus.AnnSearchRequest([list(QUERIES[position])], "vector", COSINE, 5)


HYBRID = {"reqs": [step(0), step(1)], "ranker": pymilvus.RRFRanker(), "limit": 3, "output_fields": ["text"]}
FILTERED = {names.RETRIEVAL_FILTERED: True}
CALLS = (
    nearest("search", [list(QUERY)]),
    nearest("filtered", [np.array(QUERY, dtype=np.float32)], {"filter": "id > 2"}, facts=FILTERED),
    nearest("empty", [list(QUERY)], {"filter": "id > 99"}, facts=FILTERED, returned=0, secret=False),
    nearest("unknown metric", [list(QUERY)], {"search_params": None}, metric=None),
    nearest("batch", [list(query) for query in QUERIES], queries=3),
    both(
        "hybrid_search",
        HYBRID,
        metric="rrf",
        fingerprint=False,
        facts={
            names.RETRIEVAL_STAGES: ["dense:vector", "dense:vector", "rrf"],
            names.RETRIEVAL_STAGES_K: [5, 5, 3],
        },
    ),
    other("query", {names.DB_RETURNED_ROWS: 2, names.RETRIEVAL_FILTERED: True}, filter="id < 3"),
    other("get", {names.DB_RETURNED_ROWS: 2}, ids=[1, 2]),
    other("insert", {names.WRITE_COUNT: 8}, data=[{**each, "id": each["id"] + 20} for each in documents()]),
    other("upsert", {names.WRITE_COUNT: 8}, data=documents()),
    other("delete", {names.WRITE_COUNT: 2}, ids=[1, 2]),
)


def _failing(collection: str, vector: Sequence[float]) -> Callable[[Any], Any]:
    return lambda client: client.search(collection, data=[list(vector)], limit=3)


CASE = StoreCase(
    name="milvus",
    adapter="milvus",
    system="milvus",
    open=local,
    aopen=alocal,
    calls=CALLS,
    failing=(
        FailingCall(
            name="wrong dimension",
            call=_failing(COLLECTION, (1.0, 2.0)),
            acall=_failing(COLLECTION, (1.0, 2.0)),
            error_type="pymilvus.exceptions.MilvusException",
        ),
    ),
    errors=(pymilvus.MilvusException,),
    watched=(
        "pymilvus.milvus_client.milvus_client:MilvusClient.search",
        "pymilvus.milvus_client.async_milvus_client:AsyncMilvusClient.search",
        "pymilvus.orm.collection:Collection.search",
        "pymilvus.client.iterator.search_iterator:SearchIteratorV2.next",
    ),
    servers=True,
)
