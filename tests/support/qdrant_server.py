"""A Qdrant server on sockets, REST and gRPC, whose searches are made by Qdrant's own engine (`qdrant-edge`).

No package holds the server itself.  What it would add to its engine is done here with the client's own models
and protobufs: routes, by-id queries, groups.  Only what the tests use is here.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import grpc
import qdrant_edge as edge
from qdrant_client import grpc as q
from qdrant_client import models as m
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc, payload_to_grpc
from qdrant_client.grpc import points_service_pb2_grpc

from neuronscope.testing.fake_provider import FakeProvider, Received, Reply
from neuronscope_instrumentation.common.fields import items

VERSION = "1.20.0"


class NotFoundError(LookupError):
    """There is no such collection."""


class Engine:
    """Collections, each one shard of the engine.  Thread-safe by one lock."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._shards: dict[str, edge.EdgeShard] = {}

    def create(self, name: str, size: int, distance: str) -> None:
        """A collection with one kind of vector."""
        params = edge.EdgeVectorParams(size=size, distance=getattr(edge.Distance, distance))
        with self._lock:
            self._shards[name] = edge.EdgeShard.create(
                f"{self._folder}/{name}", edge.EdgeConfig(vectors=params, wal_enabled=False)
            )

    def close(self) -> None:
        """Release the engine's files."""
        for shard in self._shards.values():
            shard.close()

    def _shard(self, name: str) -> edge.EdgeShard:
        if name not in self._shards:
            raise NotFoundError(name)
        return self._shards[name]

    def upsert(self, name: str, points: Iterable[m.PointStruct]) -> None:
        """Write points."""
        rows = [edge.Point(point.id, point.vector, point.payload) for point in points]  # type: ignore[arg-type]
        with self._lock:
            self._shard(name).update(edge.UpdateOperation.upsert_points(rows))

    def delete(self, name: str, ids: list[Any]) -> None:
        """Remove points."""
        with self._lock:
            self._shard(name).update(edge.UpdateOperation.delete_points(ids))

    def count(self, name: str) -> int:
        """How many points there are."""
        with self._lock:
            return self._shard(name).count(edge.CountRequest())

    def scroll(self, name: str, limit: int) -> list[m.Record]:
        """The first points."""
        with self._lock:
            found, _ = self._shard(name).scroll(edge.ScrollRequest(limit=limit, with_payload=True))
        return [m.Record(id=_id(each.id), payload=each.payload) for each in found]

    def retrieve(self, name: str, ids: list[Any], *, vectors: bool = False) -> list[m.Record]:
        """Points by their ids."""
        with self._lock:
            found = self._shard(name).retrieve(ids, True, vectors)
        records = [m.Record(id=_id(each.id), payload=each.payload, vector=each.vector) for each in found]  # type: ignore[arg-type]
        return sorted(records, key=lambda record: ids.index(record.id))

    def query(self, name: str, asked: m.QueryRequest) -> list[m.ScoredPoint]:
        """A search, or a listing."""
        with self._lock:
            shard = self._shard(name)
            request = edge.QueryRequest(
                limit=asked.limit or 10,
                query=self._query(name, asked.query),
                filter=_filter(asked.filter, self._excluded(asked.query)),
                prefetches=[
                    edge.Prefetch(limit=step.limit or 10, query=self._query(name, step.query))
                    for step in _steps(asked.prefetch)
                ],
                with_payload=True,
            )
            found = shard.query(request)
        return [
            m.ScoredPoint(id=_id(each.id), version=0, score=each.score, payload=each.payload)
            for each in found
        ]

    def groups(self, name: str, asked: m.QueryRequest, key: str, size: int) -> list[m.PointGroup]:
        """The hits of a search by the value of a field."""
        found = self.query(name, asked.model_copy(update={"limit": self.count(name)}))
        by_value: dict[Any, list[m.ScoredPoint]] = {}
        for hit in found:
            by_value.setdefault((hit.payload or {})[key], []).append(hit)
        chosen = list(by_value.items())[: asked.limit]
        return [m.PointGroup(id=value, hits=hits[:size]) for value, hits in chosen]

    def _query(self, name: str, query: Any) -> Any:
        query = getattr(query, "nearest", query)
        if query is None:
            return None
        if isinstance(query, m.FusionQuery):
            return edge.Fusion.Rrf(k=2)
        if isinstance(query, int | str):
            (record,) = self.retrieve(name, [query], vectors=True)
            query = record.vector
        return edge.Query.Nearest(query)

    @staticmethod
    def _excluded(query: Any) -> list[Any]:
        query = getattr(query, "nearest", query)
        return [query] if isinstance(query, int | str) else []


def _steps(prefetch: Any) -> list[Any]:
    return [step for step in (items(prefetch) or (prefetch,)) if step is not None]


def _filter(asked: Any, excluded: list[Any]) -> Any:
    must: list[Any] = [
        edge.FieldCondition(condition.key, match=edge.MatchValue(condition.match.value))
        for condition in (asked.must or () if asked is not None else ())
    ]
    without: Any = [edge.HasIdCondition(set(excluded))] if excluded else None
    return edge.Filter(must=must or None, must_not=without) if must or without else None


def _id(identity: Any) -> Any:
    return identity if isinstance(identity, int) else str(identity)


# --- REST ----------------------------------------------------------------------------------------------
class RestServer(FakeProvider):
    """Qdrant's HTTP routes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self.port = urlsplit(self.base_url).port

    def unscripted(self, request: Received) -> Reply:
        """What the server would answer."""
        path = urlsplit(request.path).path.rstrip("/")
        if path == "":
            return Reply(body={"title": "qdrant - vector search engine", "version": VERSION})
        _, _, collection, *rest = path.split("/")
        try:
            result = self._route(collection, request.method, "/".join(rest), request)
        except NotFoundError:
            message = f"Not found: Collection `{collection}` doesn't exist!"
            return Reply(status=404, body={"status": {"error": message}, "time": 0.001})
        return Reply(body={"result": result, "status": "ok", "time": 0.001})

    def _route(self, collection: str, method: str, path: str, request: Received) -> Any:
        engine, body = self._engine, cast("Any", request.json if request.body else {})
        if path == "points/query":
            return {"points": _json(engine.query(collection, m.QueryRequest(**body)))}
        if path == "points/query/batch":
            asked = [m.QueryRequest(**each) for each in body["searches"]]
            return [{"points": _json(engine.query(collection, each))} for each in asked]
        if path == "points/query/groups":
            key, size = body.pop("group_by"), body.pop("group_size", 3)
            return {"groups": _json(engine.groups(collection, m.QueryRequest(**body), key, size))}
        if path == "points/scroll":
            return {"points": _json(engine.scroll(collection, body["limit"])), "next_page_offset": None}
        if path == "points/count":
            return {"count": engine.count(collection)}
        if path == "points/delete":
            engine.delete(collection, body["points"])
        elif path == "points" and method == "POST":
            return _json(engine.retrieve(collection, body["ids"]))
        elif path == "points":
            engine.upsert(collection, _points(body))
        else:
            raise AssertionError(f"no route for {method} {path}")
        return {"operation_id": 1, "status": "completed"}


def _points(body: dict[str, Any]) -> list[m.PointStruct]:
    if "points" in body:
        return [m.PointStruct(**point) for point in body["points"]]
    batch = body["batch"]
    payloads = batch.get("payloads") or [None] * len(batch["ids"])
    return [
        m.PointStruct(id=number, vector=vector, payload=payload)
        for number, vector, payload in zip(batch["ids"], batch["vectors"], payloads, strict=True)
    ]


def _json(models: Iterable[Any]) -> Any:
    return [json.loads(each.model_dump_json(exclude_none=True)) for each in models]


# --- gRPC ----------------------------------------------------------------------------------------------
def _scored(found: list[m.ScoredPoint]) -> list[q.ScoredPoint]:
    return [
        q.ScoredPoint(
            id=RestToGrpc.convert_extended_point_id(hit.id),
            payload=payload_to_grpc(hit.payload or {}),
            score=hit.score,
            version=hit.version,
        )
        for hit in found
    ]


@dataclass(frozen=True)
class GrpcPoints(points_service_pb2_grpc.PointsServicer):
    """Qdrant's service of points."""

    engine: Engine

    def _answer(self, context: Any, collection: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except NotFoundError:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Collection `{collection}` doesn't exist!")

    def Query(self, request: Any, context: Any) -> Any:
        """One search."""
        name = request.collection_name
        asked = _asked(request)
        return self._answer(
            context, name, lambda: q.QueryResponse(result=_scored(self.engine.query(name, asked)), time=0.001)
        )

    def QueryBatch(self, request: Any, context: Any) -> Any:
        """Several searches."""
        name = request.collection_name
        found = [self.engine.query(name, _asked(each)) for each in request.query_points]
        return q.QueryBatchResponse(result=[q.BatchResult(result=_scored(hits)) for hits in found])

    def QueryGroups(self, request: Any, context: Any) -> Any:
        """A search whose hits are grouped."""
        asked = m.QueryRequest(query=GrpcToRest.convert_query(request.query), limit=request.limit)
        groups = self.engine.groups(request.collection_name, asked, request.group_by, request.group_size)
        return q.QueryGroupsResponse(
            result=q.GroupsResult(
                groups=[
                    q.PointGroup(id=q.GroupId(unsigned_value=int(group.id)), hits=_scored(group.hits))
                    for group in groups
                ]
            )
        )

    def Scroll(self, request: Any, context: Any) -> Any:
        """A page of points."""
        return q.ScrollResponse(result=_records(self.engine.scroll(request.collection_name, request.limit)))

    def Get(self, request: Any, context: Any) -> Any:
        """Points by their ids."""
        ids = [GrpcToRest.convert_point_id(each) for each in request.ids]
        return q.GetResponse(result=_records(self.engine.retrieve(request.collection_name, ids)))

    def Count(self, request: Any, context: Any) -> Any:
        """How many points there are."""
        return q.CountResponse(result=q.CountResult(count=self.engine.count(request.collection_name)))

    def Upsert(self, request: Any, context: Any) -> Any:
        """Write points."""
        points = [GrpcToRest.convert_point_struct(point) for point in request.points]
        self.engine.upsert(request.collection_name, points)
        return _done()

    def Delete(self, request: Any, context: Any) -> Any:
        """Remove points."""
        selected = request.points.points.ids
        self.engine.delete(request.collection_name, [GrpcToRest.convert_point_id(each) for each in selected])
        return _done()


def _asked(request: Any) -> m.QueryRequest:
    return GrpcToRest.convert_query_points(request)


def _records(records: list[m.Record]) -> list[q.RetrievedPoint]:
    return [
        q.RetrievedPoint(
            id=RestToGrpc.convert_extended_point_id(each.id), payload=payload_to_grpc(each.payload or {})
        )
        for each in records
    ]


def _done() -> Any:
    return q.PointsOperationResponse(result=q.UpdateResult(operation_id=1, status=q.UpdateStatus.Completed))


@dataclass(frozen=True)
class QdrantServer:
    """Where the server listens, and the engine behind it."""

    engine: Engine
    rest: RestServer
    grpc_port: int


@contextmanager
def serve() -> Generator[QdrantServer]:
    """A server without a collection."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(folder)
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        points_service_pb2_grpc.add_PointsServicer_to_server(GrpcPoints(engine), server)  # type: ignore[no-untyped-call]
        grpc_port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with RestServer(engine) as rest:
                yield QdrantServer(engine, rest, grpc_port)
        finally:
            server.stop(None)
            engine.close()
