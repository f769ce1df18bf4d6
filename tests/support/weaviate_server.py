"""A Weaviate server on sockets: gRPC by the client's own protobufs, and the REST routes that it needs beside.

No package holds the server.  It stores objects, filters by equality, and ranks by cosine or by common words.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import grpc
from weaviate.proto.v1 import (
    aggregate_pb2,
    batch_delete_pb2,
    batch_pb2,
    properties_pb2,
    search_get_pb2,
    weaviate_pb2_grpc,
)

from neuronscope.testing.fake_pinecone import overlap, similarity
from neuronscope.testing.fake_provider import FakeProvider, Received, Reply

VERSION: Final = "1.33.0"
REFUSED: Final = "nobody"  # the tenant that does not exist


@dataclass
class Stored:
    """One object."""

    id: str
    vector: list[float]
    properties: dict[str, Any]


@dataclass
class Store:
    """Objects by id, by collection and tenant."""

    objects: dict[tuple[str, str], dict[str, Stored]] = field(
        default_factory=dict[tuple[str, str], dict[str, Stored]]
    )

    def of(self, collection: str, tenant: str) -> dict[str, Stored]:
        """The objects of a collection."""
        return self.objects.setdefault((collection, tenant), {})


# --- gRPC ----------------------------------------------------------------------------------------------
def floats(packed: bytes) -> list[float]:
    """A vector as it is sent."""
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def passes(filters: Any, properties: dict[str, Any]) -> bool:
    """Does an object pass a filter on one property?"""
    if not filters.target.property:
        return True
    return bool(properties.get(filters.target.property) == filters.value_int)


def rank(store: Store, request: Any) -> list[tuple[Stored, dict[str, float]]]:
    """Objects of a search, best first, with the scores that it has."""
    stored = store.of(request.collection, request.tenant)
    found = [each for each in stored.values() if passes(request.filters, each.properties)]
    if request.HasField("near_vector"):
        scored = _near(found, floats(_sent(request.near_vector)))
    elif request.HasField("near_object"):
        scored = _near(found, stored[request.near_object.id].vector)
    elif request.HasField("near_text"):
        scored = _by_words(found, request.near_text.query[0], "certainty")
    elif request.HasField("bm25_search"):
        scored = _by_words(found, request.bm25_search.query, "score")
    elif request.HasField("hybrid_search"):
        scored = _by_words(found, request.hybrid_search.query, "score")
    else:
        scored = [(each, dict[str, float]()) for each in found]
    return scored[: request.limit or 10]


def _sent(near: Any) -> bytes:
    told = near.vector_for_targets[0] if near.vector_for_targets else near
    return bytes(told.vector_bytes or told.vectors[0].vector_bytes)


def _near(found: list[Stored], vector: list[float]) -> list[tuple[Stored, dict[str, float]]]:
    scored = [(each, similarity("cosine", vector, each.vector)) for each in found]
    scored.sort(key=lambda pair: -pair[1])
    return [(each, {"distance": 1 - score, "certainty": (1 + score) / 2}) for each, score in scored]


def _by_words(found: list[Stored], text: str, name: str) -> list[tuple[Stored, dict[str, float]]]:
    def score(each: Stored) -> float:
        return max(overlap(text, str(value)) for value in each.properties.values())

    ranked = sorted(found, key=lambda each: (-score(each), each.id))
    return [(each, {name: score(each)}) for each in ranked]


def _value(value: Any) -> Any:
    if isinstance(value, int):
        return properties_pb2.Value(int_value=value)
    return properties_pb2.Value(text_value=str(value))


def _result(each: Stored, scores: dict[str, float], wanted: Any) -> Any:
    metadata = search_get_pb2.MetadataResult(id=each.id, id_as_bytes=uuid.UUID(each.id).bytes)
    for name, score in scores.items():
        if getattr(wanted, name):
            setattr(metadata, name, score)
            setattr(metadata, f"{name}_present", True)
    fields = {name: _value(value) for name, value in each.properties.items()}
    properties = properties_pb2.Properties(fields=fields)
    return search_get_pb2.SearchResult(
        metadata=metadata, properties=search_get_pb2.PropertiesResult(non_ref_props=properties)
    )


@dataclass(frozen=True)
class Service(weaviate_pb2_grpc.WeaviateServicer):
    """Weaviate's gRPC service."""

    store: Store

    def Search(self, request: Any, context: Any) -> Any:
        """Every way to search, and listings."""
        if request.tenant == REFUSED:
            context.abort(grpc.StatusCode.UNKNOWN, f"tenant not found: {REFUSED}")
        found = rank(self.store, request)
        reply = search_get_pb2.SearchReply(took=0.25)
        if request.HasField("group_by"):
            for number, (each, scores) in enumerate(found[:2]):
                result = _result(each, scores, request.metadata)
                reply.group_by_results.append(
                    search_get_pb2.GroupByResult(name=str(number), objects=[result], number_of_objects=1)
                )
            return reply
        reply.results.extend(_result(each, scores, request.metadata) for each, scores in found)
        if request.HasField("generative"):
            for result in reply.results:
                result.metadata.generative = "generated text"
                result.metadata.generative_present = True
        return reply

    def BatchObjects(self, request: Any, context: Any) -> Any:
        """Write objects."""
        for each in request.objects:
            properties = dict(each.properties.non_ref_properties)
            packed = each.vector_bytes or (each.vectors[0].vector_bytes if each.vectors else b"")
            stored = self.store.of(each.collection, each.tenant)
            stored[each.uuid] = Stored(each.uuid, floats(packed), properties)
        return batch_pb2.BatchObjectsReply(took=0.25)

    def BatchDelete(self, request: Any, context: Any) -> Any:
        """Remove what a filter finds."""
        stored = self.store.of(request.collection, request.tenant)
        gone = [each.id for each in stored.values() if passes(request.filters, each.properties)]
        for identity in gone:
            del stored[identity]
        return batch_delete_pb2.BatchDeleteReply(took=0.25, matches=len(gone), successful=len(gone))

    def Aggregate(self, request: Any, context: Any) -> Any:
        """Count."""
        counted = len(self.store.of(request.collection, request.tenant))
        single = aggregate_pb2.AggregateReply.Single(objects_count=counted)
        return aggregate_pb2.AggregateReply(took=0.25, single_result=single)


# --- REST ----------------------------------------------------------------------------------------------
class Rest(FakeProvider):
    """What the client asks over HTTP."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def unscripted(self, request: Received) -> Reply:
        """What the server would answer."""
        path = urlsplit(request.path).path
        if path == "/v1/meta":
            return Reply(body={"hostname": "http://[::]:8080", "version": VERSION, "modules": {}})
        if path.startswith("/v1/schema"):
            return self._schema(path, request)
        if path.startswith("/v1/objects"):
            return self._objects(path, request)
        return Reply(status=404, body={})

    def _schema(self, path: str, request: Received) -> Reply:
        if request.method == "DELETE":
            return Reply(body={})
        if request.method == "POST":
            return Reply(body=request.json)
        return Reply(body={"classes": []} if path == "/v1/schema" else schema(path.rpartition("/")[2]))

    def _objects(self, path: str, request: Received) -> Reply:
        if request.method == "POST":
            body = request.json
            stored = self._store.of(body["class"], body.get("tenant", ""))
            stored[body["id"]] = Stored(body["id"], _vector(body), body["properties"])
            return Reply(body=body)
        _, _, _, collection, identity = path.split("/")
        stored = self._store.of(collection, "")
        if request.method == "DELETE":
            return Reply(status=204 if stored.pop(identity, None) else 404, body=b"")
        if request.method == "PATCH":
            stored[identity].properties.update(request.json["properties"])
        return Reply(status=204, body=b"")


def _vector(body: dict[str, Any]) -> list[float]:
    named: dict[str, list[float]] = body.get("vectors") or {}
    return body.get("vector") or next(iter(named.values()), list[float]())


def schema(name: str) -> dict[str, Any]:
    """A collection's configuration, as the server tells it."""
    return {
        "class": name,
        "invertedIndexConfig": {
            "bm25": {"b": 0.75, "k1": 1.2},
            "cleanupIntervalSeconds": 60,
            "stopwords": {"additions": None, "preset": "en", "removals": None},
        },
        "multiTenancyConfig": {"enabled": False, "autoTenantCreation": False, "autoTenantActivation": False},
        "properties": [],
        "replicationConfig": {
            "factor": 1,
            "asyncEnabled": False,
            "deletionStrategy": "NoAutomatedResolution",
        },
        "shardingConfig": {
            "actualCount": 1,
            "actualVirtualCount": 128,
            "desiredCount": 1,
            "desiredVirtualCount": 128,
            "function": "murmur3",
            "key": "_id",
            "strategy": "hash",
            "virtualPerPhysical": 128,
        },
        "vectorIndexConfig": {
            "skip": False,
            "cleanupIntervalSeconds": 300,
            "maxConnections": 32,
            "efConstruction": 128,
            "ef": -1,
            "dynamicEfMin": 100,
            "dynamicEfMax": 500,
            "dynamicEfFactor": 8,
            "vectorCacheMaxObjects": 1000000000000,
            "flatSearchCutoff": 40000,
            "distance": "cosine",
            "filterStrategy": "sweeping",
            "pq": {"enabled": False},
            "bq": {"enabled": False},
            "sq": {"enabled": False},
        },
        "vectorIndexType": "hnsw",
        "vectorizer": "none",
        "moduleConfig": {},
    }


@dataclass(frozen=True)
class WeaviateServer:
    """Where the server listens, and what it stores."""

    store: Store
    rest: Rest
    grpc_port: int


@contextmanager
def serve() -> Generator[WeaviateServer]:
    """A server without objects."""
    store = Store()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    cast("Any", weaviate_pb2_grpc).add_WeaviateServicer_to_server(Service(store), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Rest(store) as rest:
            yield WeaviateServer(store, rest, port)
    finally:
        server.stop(None)
