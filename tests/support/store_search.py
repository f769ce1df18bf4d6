"""Elasticsearch and OpenSearch for the contract suite: against a server on a socket (search_server.py)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from opentelemetry import trace

from neuronscope.signals import names
from search_server import SearchServer
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

native: Any = importlib.import_module("elasticsearch._otel")
elasticsearch: Any = importlib.import_module("elasticsearch")
opensearch: Any = importlib.import_module("opensearchpy")  # its own types are incomplete
logging.getLogger("opensearch").setLevel(logging.CRITICAL)  # it logs how long a failed request took
ELASTIC, OPEN = "elasticsearch", "opensearch"


def documents() -> list[dict[str, Any]]:
    """The documents."""
    return [
        {"vector": list(vector), "title": title, "text": text, "parity": number % 2}
        for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
    ]


def operations() -> list[dict[str, Any]]:
    """All documents, as a bulk writes them."""
    return [
        line
        for number, document in zip(IDS, documents(), strict=True)
        for line in ({"index": {"_id": str(number)}}, document)
    ]


def forget_provider() -> None:
    """The client keeps the first tracer provider that it sees, and every test has one of its own."""
    native._tracer = trace.get_tracer("elasticsearch-api")


def _write(product: str, client: Any) -> Any:
    bulk = {"operations": operations()} if product == ELASTIC else {"body": operations()}
    return client.bulk(index=COLLECTION, **bulk)


@contextmanager
def served(product: str) -> Generator[Any]:
    """A client of a server with the documents."""
    forget_provider()
    with SearchServer(product) as server:
        if product == ELASTIC:
            client: Any = elasticsearch.Elasticsearch(server.base_url, max_retries=0)
        else:
            client = opensearch.OpenSearch(server.base_url, max_retries=0)
        _write(product, client)
        yield client
        client.close()


@asynccontextmanager
async def aserved(product: str) -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    forget_provider()
    with SearchServer(product) as server:
        if product == ELASTIC:
            client: Any = elasticsearch.AsyncElasticsearch(server.base_url, max_retries=0)
        else:
            client = opensearch.AsyncOpenSearch(server.base_url, max_retries=0)
        await _write(product, client)
        yield client
        await client.close()


def knn(product: str, vector: Any, **more: Any) -> dict[str, Any]:
    """The body of a search."""
    if product == ELASTIC:
        told = {"field": "vector", "query_vector": list(vector), "k": 3, "num_candidates": 8, **more}
        return {"knn": told, "size": 3}
    return {"query": {"knn": {"vector": {"vector": list(vector), "k": 3, **more}}}, "size": 3}


def search(product: str, name: str, body: dict[str, Any], *, filtered: bool = False, **how: Any) -> StoreCall:
    """A search."""

    def call(client: Any) -> Any:
        arguments = body if product == ELASTIC else {"body": body}
        return client.search(index=COLLECTION, **arguments)

    return StoreCall(
        name=name,
        method="search",
        call=partial(_plain, call),
        acall=partial(_aplain, call),
        facts={names.RETRIEVAL_FILTERED: filtered},
        **how,
    )


def hybrid(product: str) -> StoreCall:
    """By a vector and by words, the scores added up."""
    near, words = knn(product, QUERY), {"match": {"title": "zebra"}}
    body = (
        {**near, "query": words}
        if product == ELASTIC
        else {"query": {"hybrid": {"queries": [words, near["query"]]}}, "size": 3}
    )
    call = search(product, "hybrid", body, metric="hybrid")
    stages = {names.RETRIEVAL_STAGES: ["dense:vector", "bm25", "hybrid"], names.RETRIEVAL_STAGES_K: [3, 0, 3]}
    return replace(call, facts={**call.facts, **stages})


def msearch(product: str) -> StoreCall:
    """Several searches in one call."""
    lines = [line for query in QUERIES for line in ({}, knn(product, query))]

    def call(client: Any) -> Any:
        arguments = {"searches": lines} if product == ELASTIC else {"body": lines}
        return client.msearch(index=COLLECTION, **arguments)

    return StoreCall(
        name="msearch", method="msearch", call=partial(_plain, call), acall=partial(_aplain, call), queries=3
    )


def other(name: str, call: Callable[[Any], Any], count: int) -> StoreCall:
    """A write."""
    return StoreCall(
        name=name,
        method=name,
        call=partial(_plain, call),
        acall=partial(_aplain, call),
        search=False,
        secret=False,
        facts={names.WRITE_COUNT: count},
    )


def _plain(call: Callable[[Any], Any], client: Any) -> Any:
    result = call(client)
    return type(result).__name__, getattr(result, "body", result)


async def _aplain(call: Callable[[Any], Any], client: Any) -> Any:
    result = await call(client)
    return type(result).__name__, getattr(result, "body", result)


def _document(product: str) -> dict[str, Any]:
    return {"document" if product == ELASTIC else "body": documents()[0]}


def case(product: str) -> StoreCase:
    """One of the two."""
    even = {"filter": {"term": {"parity": 0}}}
    none = {"filter": {"term": {"parity": 9}}}
    bad = knn(product, QUERY)

    def failing(client: Any) -> Any:
        return client.search(index="nowhere", **(bad if product == ELASTIC else {"body": bad}))

    elastic = product == ELASTIC
    return StoreCase(
        name=product,
        adapter=product,
        system=product,
        open=partial(served, product),
        aopen=partial(aserved, product),
        calls=(
            search(product, "search", knn(product, QUERY)),
            search(product, "filtered", knn(product, QUERY, **even), filtered=True),
            search(product, "empty", knn(product, QUERY, **none), filtered=True, returned=0, secret=False),
            hybrid(product),
            msearch(product),
            other("bulk", partial(_write, product), 8),
            other("index", lambda client: client.index(index=COLLECTION, id="9", **_document(product)), 1),
        ),
        failing=(
            FailingCall(
                name="unknown index",
                call=failing,
                acall=failing,
                error_type=f"{'elasticsearch' if elastic else 'opensearchpy.exceptions'}.NotFoundError",
                status=404,
            ),
        ),
        errors=(elasticsearch.ApiError, opensearch.TransportError),
        watched=(
            (
                "elasticsearch._sync.client._base:BaseClient.perform_request",
                "elasticsearch._async.client._base:BaseClient.perform_request",
                "elasticsearch._otel:OpenTelemetry.span",
            )
            if elastic
            else (
                "opensearchpy.transport:Transport.perform_request",
                "opensearchpy._async.transport:AsyncTransport.perform_request",
            )
        ),
        servers=True,
    )


ELASTICSEARCH, OPENSEARCH = case(ELASTIC), case(OPEN)
