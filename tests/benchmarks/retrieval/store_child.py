"""A child that queries one store, with and without one instrumentation: ``store_child PEER STORE``.

In situ the query is the client's own: Qdrant's local mode, Chroma embedded, Pinecone over a transport that
answers from memory.  Hot, it is the function that instrumentations wrap, answering at once.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from tests.benchmarks.calls import ours
from tests.benchmarks.calls.patches import Patches
from tests.benchmarks.calls.side_by_side import OURS, SideBySide, quiet
from tests.benchmarks.measure import Call
from tests.benchmarks.retrieval.peers import PEERS

POINTS, DIMENSION, LIMIT = 1_000, 384, 10
PACKAGES = {"qdrant": "qdrant_client", "chroma": "chromadb", "pinecone": "pinecone"}


def _vectors() -> Any:
    numpy: Any = importlib.import_module("numpy")
    return numpy.random.default_rng(0).normal(size=(POINTS, DIMENSION)).astype("float32")


class Store:
    """A filled store, and a query to it.  Must be made before any instrumentation is switched on."""

    def __init__(self, store: str) -> None:
        self._ready: Any = None
        self._search: Callable[[], Any] = getattr(self, f"_{store}")(_vectors())
        self._answer = self._search()

    def call(self, name: str, hot: bool) -> Call:
        """The query."""
        assert name == "query"
        self._ready = self._answer if hot else None
        return self._search

    def _switched(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)  # instrumentations read its signature
        def switch(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return original(instance, *args, **kwargs) if self._ready is None else self._ready

        setattr(owner, name, switch)

    def _qdrant(self, vectors: Any) -> Callable[[], Any]:
        module: Any = importlib.import_module("qdrant_client")
        models = module.models
        self._switched(module.QdrantClient, "query_points")
        client = module.QdrantClient(":memory:")
        client.create_collection(
            "documents", vectors_config=models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)
        )
        points = [
            models.PointStruct(
                id=i, vector=vectors[i].tolist(), payload={"text": f"document {i} " * 10, "i": i}
            )
            for i in range(POINTS)
        ]
        client.upsert("documents", points)
        query = vectors[7].tolist()
        return lambda: client.query_points("documents", query=query, limit=LIMIT, with_payload=True)

    def _chroma(self, vectors: Any) -> Callable[[], Any]:
        module: Any = importlib.import_module("chromadb")
        settings = importlib.import_module("chromadb.config").Settings(anonymized_telemetry=False)
        collection_class = importlib.import_module("chromadb.api.models.Collection").Collection
        self._switched(collection_class, "query")
        collection = module.EphemeralClient(settings).create_collection("documents", embedding_function=None)
        collection.add(
            ids=[str(i) for i in range(POINTS)],
            embeddings=vectors,
            documents=[f"document {i} " * 10 for i in range(POINTS)],
            metadatas=[{"i": i} for i in range(POINTS)],
        )
        query = [vectors[7].tolist()]
        return lambda: collection.query(query_embeddings=query, n_results=LIMIT)

    def _pinecone(self, vectors: Any) -> Callable[[], Any]:
        index_class: Any = importlib.import_module("pinecone").Index
        httpx: Any = importlib.import_module("httpx")
        self._switched(index_class, "query")
        index = index_class(host="http://127.0.0.1:9", api_key="key")
        matches = [
            {"id": str(i), "score": 1 - i / 20, "metadata": {"text": f"document {i} " * 10}}
            for i in range(LIMIT)
        ]
        body = json.dumps({"matches": matches, "namespace": "", "usage": {"readUnits": 1}}).encode()

        class Memory(httpx.BaseTransport):  # type: ignore[misc]  # imported as Any
            def handle_request(self, request: Any) -> Any:
                return httpx.Response(200, content=body, request=request)

        index._http._client._transport = Memory()
        query = vectors[7].tolist()
        # By the class: the instance keeps the method that it was made with.
        return lambda: index_class.query(index, vector=query, top_k=LIMIT, include_metadata=True)


def main() -> None:
    name, store, *mode = sys.argv[1:]
    quiet()
    made = Store(store)
    patches = Patches(PACKAGES[store])
    counter = ours.switch_on(store, content=False) if name == OURS else PEERS[name].switch_on(store)
    SideBySide(patches, counter, made.call, {"query": 4}).run(instructions=bool(mode))


if __name__ == "__main__":
    main()
