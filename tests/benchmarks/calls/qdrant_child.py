"""Runs in a peer's environment: a Qdrant query with and without one instrumentation.

    python -m tests.benchmarks.calls.qdrant_child PEER [--instructions]

In memory, 1,000 vectors of 384 dimensions, limit 10; hot: `query_points` itself answers at once.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from tests.benchmarks.calls import ours
from tests.benchmarks.calls.patches import Patches
from tests.benchmarks.calls.peers import PEERS
from tests.benchmarks.calls.side_by_side import OURS, SideBySide, quiet
from tests.benchmarks.measure import Call

POINTS, DIMENSION, LIMIT = 1_000, 384, 10


class Store:
    """A filled collection, and a query to it.  Must be made before any instrumentation is switched on."""

    def __init__(self) -> None:
        numpy: Any = importlib.import_module("numpy")
        module: Any = importlib.import_module("qdrant_client")
        models = module.models
        self._ready: Any = None
        self._install_switch(module.QdrantClient)
        vectors = numpy.random.default_rng(0).normal(size=(POINTS, DIMENSION)).astype("float32")
        self._query = vectors[7].tolist()
        self._client = module.QdrantClient(":memory:")
        self._client.create_collection(
            "documents", vectors_config=models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)
        )
        self._client.upsert(
            "documents",
            [
                models.PointStruct(
                    id=i, vector=vectors[i].tolist(), payload={"text": f"document {i} " * 10, "i": i}
                )
                for i in range(POINTS)
            ],
        )
        self._answer = self._search()

    def call(self, name: str, hot: bool) -> Call:
        """The query."""
        assert name == "query"
        self._ready = self._answer if hot else None
        return self._search

    def _search(self) -> Any:
        return self._client.query_points("documents", query=self._query, limit=LIMIT, with_payload=True)

    def _install_switch(self, client: Any) -> None:
        original = client.query_points

        @functools.wraps(original)  # instrumentations read its signature
        def query_points(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return original(instance, *args, **kwargs) if self._ready is None else self._ready

        client.query_points = query_points


def main() -> None:
    name, *mode = sys.argv[1:]
    quiet()
    store = Store()
    patches = Patches("qdrant_client")
    if name == OURS:
        counter = ours.switch_on("qdrant", content=False)
    else:
        switch_on = PEERS[name].qdrant
        assert switch_on is not None
        counter = switch_on(False)
    SideBySide(patches, counter, store.call, {"query": 4}).run(instructions=bool(mode))


if __name__ == "__main__":
    main()
