"""Weaviate for the contract suite: both clients, and a server on sockets that speaks their protocols."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import weaviate
from weaviate.classes.data import DataObject
from weaviate.classes.init import AdditionalConfig, Timeout
from weaviate.classes.query import Filter, GroupBy, MetadataQuery
from weaviate.exceptions import WeaviateQueryError

import weaviate_server
from neuronscope.signals import names
from store_cases import IDS, QUERY, TEXTS, TITLES, VECTORS, FailingCall, StoreCall, StoreCase
from weaviate_server import REFUSED, Stored, WeaviateServer

NAME = "Documents"
ALL = MetadataQuery(distance=True, certainty=False, score=True)
QUICK = AdditionalConfig(timeout=Timeout(init=2, query=5, insert=5))


def identity(number: int) -> str:
    """The id of a document."""
    return str(uuid.UUID(int=number))


def fill(server: WeaviateServer, tenant: str = "") -> None:
    """The documents."""
    stored = server.store.of(NAME, tenant)
    for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True):
        properties = {"title": title, "text": text, "parity": number % 2}
        stored[identity(number)] = Stored(identity(number), list(vector), properties)


def place(server: WeaviateServer) -> dict[str, Any]:
    """How a client reaches the server."""
    port = int(server.rest.base_url.rpartition(":")[2])
    return {
        "host": "127.0.0.1",
        "port": port,
        "grpc_port": server.grpc_port,
        "skip_init_checks": True,
        "additional_config": QUICK,
    }


@contextmanager
def served() -> Generator[WeaviateServer]:
    """A server with the documents."""
    with weaviate_server.serve() as server:
        fill(server)
        yield server


@contextmanager
def collection() -> Generator[Any]:
    """A collection of a connected client."""
    with served() as server, weaviate.connect_to_local(**place(server)) as client:
        yield client.collections.use(NAME)


@asynccontextmanager
async def acollection() -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    with served() as server:
        async with weaviate.use_async_with_local(**place(server)) as client:
            yield client.collections.use(NAME)


def both(path: str, name: str = "", *, arguments: dict[str, Any], **how: Any) -> StoreCall:
    """A method that collections have in both kinds: ``query.near_vector``, say."""
    part, _, method = path.partition(".")

    def call(of: Any) -> Any:
        return getattr(getattr(of, part), method)(**arguments)

    told = path if part in ("generate", "aggregate", "config") else method
    return StoreCall(name=name or path, method=told, call=call, acall=call, **how)


def search(path: str, name: str = "", *, facts: dict[str, Any] | None = None, **arguments: Any) -> StoreCall:
    """A search."""
    how = {key: arguments.pop(key) for key in tuple(arguments) if key in StoreCall.__dataclass_fields__}
    asked = {"limit": 3, "return_metadata": ALL, **arguments}
    return both(path, name, arguments=asked, facts={names.RETRIEVAL_FILTERED: False, **(facts or {})}, **how)


def other(path: str, *, facts: dict[str, Any] | None = None, **arguments: Any) -> StoreCall:
    """A listing or a write."""
    return both(path, arguments=arguments, search=False, secret=False, facts=facts or {})


FILTERED = {names.RETRIEVAL_FILTERED: True}
STAGES = names.RETRIEVAL_STAGES
EVEN = Filter.by_property("parity").equal(0)
NONE = Filter.by_property("parity").equal(7)
ONE = {"properties": {"title": "new", "parity": 1}, "uuid": identity(20), "vector": [1.0, 2.0, 3.0, 4.0]}
NEW = [DataObject({"title": title}, uuid=identity(number)) for number, title in ((31, "a"), (32, "b"))]
CALLS = (
    search("query.near_vector", near_vector=list(QUERY)),
    search(
        "query.near_vector",
        "filtered",
        near_vector=list(QUERY),
        filters=EVEN,
        facts=FILTERED,
    ),
    search(
        "query.near_vector",
        "empty",
        near_vector=list(QUERY),
        filters=NONE,
        returned=0,
        secret=False,
        facts=FILTERED,
    ),
    search("query.near_vector", "without scores", near_vector=list(QUERY), return_metadata=None),
    search(
        "query.near_vector",
        "certainty",
        near_vector=list(QUERY),
        return_metadata=MetadataQuery(certainty=True),
        metric="cosine_certainty",
    ),
    search(
        "query.near_vector",
        "grouped",
        near_vector=list(QUERY),
        group_by=GroupBy(prop="title", objects_per_group=1, number_of_groups=2),
        returned=2,
        ordered=False,
    ),
    search("query.near_object", near_object=identity(4), fingerprint=False),
    search("query.near_text", query="title 4", fingerprint=False),
    search("query.bm25", query="title 4", fingerprint=False, metric="bm25"),
    search(
        "query.hybrid",
        query="title 4",
        vector=list(QUERY),
        metric="hybrid",
        facts={STAGES: ["dense", "bm25", "fusion:relative score"]},
    ),
    search(
        "generate.near_vector",
        near_vector=list(QUERY),
        single_prompt="{title}",
        facts={STAGES: ["dense", "generate"]},
    ),
    other("query.fetch_objects", limit=5, facts={names.DB_RETURNED_ROWS: 5}),
    other("aggregate.over_all", total_count=True),
    other("data.insert", **ONE, facts={names.WRITE_COUNT: 1}),
    other(
        "data.insert_many",
        objects=[
            DataObject({"title": "a"}, uuid=identity(31)),
            DataObject({"title": "b"}, uuid=identity(32)),
        ],
        facts={names.WRITE_COUNT: 2},
    ),
    other("data.update", uuid=identity(1), properties={"parity": 3}, facts={names.WRITE_COUNT: 1}),
    other("data.delete_by_id", uuid=identity(2), facts={names.WRITE_COUNT: 1}),
    other("data.delete_many", where=EVEN),
    other("config.get"),
)


CASE = StoreCase(
    name="weaviate",
    adapter="weaviate",
    system="weaviate",
    open=collection,
    aopen=acollection,
    calls=CALLS,
    failing=(
        FailingCall(
            name="refused",
            call=lambda of: of.with_tenant(REFUSED).query.near_vector(near_vector=list(QUERY)),
            acall=lambda of: of.with_tenant(REFUSED).query.near_vector(near_vector=list(QUERY)),
            error_type="weaviate.exceptions.WeaviateQueryError",
        ),
    ),
    errors=(WeaviateQueryError,),
    watched=(
        "weaviate.collections.query:_QueryCollection.near_vector",
        "weaviate.collections.query:_QueryCollectionAsync.near_vector",
        "weaviate.collections.data.sync:_DataCollection.insert",
    ),
    collection=NAME,
    servers=True,
)
