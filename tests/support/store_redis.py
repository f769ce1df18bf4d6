"""Redis for the contract suite: against a server on a socket (redis_server.py)."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np

from neuronscope.signals import names
from redis_server import serve
from store_cases import (
    COLLECTION,
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

redis: Any = importlib.import_module("redis")  # its own types are incomplete
redis_asyncio: Any = importlib.import_module("redis.asyncio")
Query: Any = importlib.import_module("redis.commands.search.query").Query
NEAREST = "=>[KNN 3 @vector $query AS distance]"
FIELD = ["vector", "VECTOR", "FLAT", 6, "TYPE", "FLOAT32", "DIM", 4, "DISTANCE_METRIC", "COSINE"]


def packed(vector: Any) -> bytes:
    """A vector as it travels."""
    return np.array(vector, np.float32).tobytes()


def commands() -> list[tuple[Any, ...]]:
    """What makes an index and the documents."""
    return [
        ("FT.CREATE", COLLECTION, "SCHEMA", *FIELD),
        *(
            (
                "HSET",
                number,
                "vector",
                packed(vector),
                "title",
                title,
                "text",
                text,
                "parity",
                f"p{number % 2}",
            )
            for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
        ),
    ]


@contextmanager
def served() -> Generator[Any]:
    """A client of a server with the documents."""
    with serve() as port, redis.Redis(port=port) as client:
        for command in commands():
            client.execute_command(*command)
        yield client


@asynccontextmanager
async def aserved() -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    with serve() as port:
        async with redis_asyncio.Redis(port=port) as client:
            for command in commands():
                await client.execute_command(*command)
            yield client


def parameters(vector: Any = QUERY) -> dict[str, Any]:
    """The vector, beside the query that names it."""
    return {"query": packed(vector)}


def search(name: str, query: str, **how: Any) -> StoreCall:
    """A search by `ft().search`."""
    asked = Query(query).dialect(2)

    def call(client: Any) -> Any:
        result = client.ft(COLLECTION).search(asked, parameters())
        return [vars(document) for document in result.docs]

    async def acall(client: Any) -> Any:
        result = await client.ft(COLLECTION).search(asked, parameters())
        return [vars(document) for document in result.docs]

    facts = {names.RETRIEVAL_FILTERED: how.pop("filtered", False), names.QUERY_DTYPE: "float32"}
    return StoreCall(
        name=name, method="FT.SEARCH", call=call, acall=acall, facts=facts, metric="distance", **how
    )


def raw(name: str, *words: Any, **how: Any) -> StoreCall:
    """A command word by word."""

    def call(client: Any) -> Any:
        return client.execute_command(*words)

    return StoreCall(name=name, method=str(words[0]), call=call, acall=call, **how)


def batch(client: Any) -> Any:
    """Three searches in one pipeline, and something else."""
    pipe = client.pipeline(transaction=False)
    pipe.get("nothing")
    for query in QUERIES:
        pipe.execute_command(
            "FT.SEARCH", COLLECTION, "*" + NEAREST, "PARAMS", 2, "query", packed(query), "DIALECT", 2
        )
    return pipe.execute()


CALLS = (
    search("search", "*" + NEAREST),
    search("filtered", "(@parity:{p0})" + NEAREST, filtered=True),
    search("empty", "(@parity:{none})" + NEAREST, filtered=True, returned=0, secret=False),
    raw(
        "raw",
        "FT.SEARCH",
        COLLECTION,
        "*=>[KNN $k @vector $query AS distance]",
        "PARAMS",
        4,
        "k",
        3,
        "query",
        packed(QUERY),
        "LIMIT",
        0,
        5,
        metric="distance",
    ),
    StoreCall(name="pipeline", method="FT.SEARCH", call=batch, acall=batch, queries=3, metric="distance"),
    raw(
        "by words",
        "FT.SEARCH",
        COLLECTION,
        "@title:zebra",
        search=False,
        secret=False,
        facts={names.DB_RETURNED_ROWS: 8},
    ),
    raw("FT.DROPINDEX", "FT.DROPINDEX", COLLECTION, search=False, secret=False),
)


CASE = StoreCase(
    name="redis",
    adapter="redis",
    system="redis",
    open=served,
    aopen=aserved,
    calls=CALLS,
    failing=(
        FailingCall(
            name="wrong dimension",
            call=lambda client: client.ft(COLLECTION).search(
                Query("*" + NEAREST).dialect(2), {"query": packed([1, 2])}
            ),
            acall=lambda client: client.ft(COLLECTION).search(
                Query("*" + NEAREST).dialect(2), {"query": packed([1, 2])}
            ),
            error_type="redis.exceptions.ResponseError",
        ),
    ),
    errors=(redis.RedisError,),
    watched=(
        "redis.client:Redis.execute_command",
        "redis.client:Pipeline.execute",
        "redis.asyncio.client:Redis.execute_command",
        "redis.commands.search.commands:SearchCommands.search",
        "redis.commands.search.commands:AsyncSearchCommands.search",
    ),
    servers=True,
)
