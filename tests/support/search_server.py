"""A server on a socket that answers as Elasticsearch and OpenSearch do; there is no package of either.

It keeps documents and computes its own answers: k nearest by cosine, scored as each of the two scores.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronscope.testing.fake_provider import FakeProvider, Received, Reply

__all__ = ["SearchServer"]


class SearchServer(FakeProvider):
    """Indexes of documents.

    Args:
        product: ``elasticsearch`` or ``opensearch``.
    """

    def __init__(self, product: str) -> None:
        super().__init__()
        self._elastic = product == "elasticsearch"
        self._documents: dict[str, dict[str, Any]] = {}
        self._data = threading.Lock()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.base_url.rpartition(":")[2])

    def unscripted(self, request: Received) -> Reply:
        """The answer to a request."""
        path = request.path.partition("?")[0].strip("/").split("/")
        with self._data:
            status, body = self._run(request.method, path, request)
        kind = "application/vnd.elasticsearch+json;compatible-with=9" if self._elastic else "application/json"
        return Reply(
            status=status, body=body, headers={"content-type": kind, "x-elastic-product": "Elasticsearch"}
        )

    def _run(self, method: str, path: Sequence[str], request: Received) -> tuple[int, Any]:
        last = path[-1]
        if last == "_search":
            return self._search(path[0], request.json)
        if last == "_msearch":
            lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
            found = [
                self._search(head.get("index", path[0]), body)
                for head, body in zip(lines[::2], lines[1::2], strict=True)
            ]
            return 200, {"took": 1, "responses": [{**body, "status": status} for status, body in found]}
        if last == "_bulk":
            lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
            items = [{"index": {"_id": head["index"].get("_id"), "status": 201}} for head in lines[::2]]
            for head, document in zip(lines[::2], lines[1::2], strict=True):
                self._write(path[0], str(head["index"]["_id"]), document)
            return 200, {"took": 1, "errors": False, "items": items}
        if last == "_delete_by_query":
            return 200, {"took": 1, "deleted": len(self._documents.pop(path[0], {}))}
        if len(path) > 2 and path[1] in ("_doc", "_create"):
            if method == "DELETE":
                self._documents.get(path[0], {}).pop(path[2], None)
                return 200, {"_index": path[0], "_id": path[2], "result": "deleted"}
            self._write(path[0], path[2], request.json)
            return 201, {"_index": path[0], "_id": path[2], "result": "created"}
        if method == "PUT" and len(path) == 1:
            self._documents[path[0]] = {}
            return 200, {"acknowledged": True, "index": path[0]}
        return 200, {
            "cluster_name": "fake",
            "version": {"number": "9.0.0", "distribution": "opensearch"},
            "count": 8,
        }

    def _write(self, index: str, identity: str, document: Any) -> None:
        self._documents.setdefault(index, {})[identity] = document

    def _search(self, index: str, body: Any) -> tuple[int, Any]:
        if index not in self._documents:
            reason = {"type": "index_not_found_exception", "reason": f"no such index [{index}]"}
            return 404, {"error": reason, "status": 404}
        clause = _knn(body)
        found = [
            (identity, document, _score(document["vector"], clause) if clause else 1.0)
            for identity, document in self._documents[index].items()
            if _passes(clause, document)
        ]
        found.sort(key=lambda each: -each[2])
        size = body.get("size", 10)
        if clause is not None:
            found = found[: clause["k"]]
        hits = [
            {
                "_index": index,
                "_id": identity,
                "_score": score,
                "_source": {k: v for k, v in document.items() if k != "vector"},
            }
            for identity, document, score in found[:size]
        ]
        total = {"value": len(found), "relation": "eq"}
        return 200, {"took": 1, "timed_out": False, "hits": {"total": total, "max_score": 1.0, "hits": hits}}


def _knn(body: Any) -> dict[str, Any] | None:
    """The clause in the form of either."""
    query = body.get("query", {})
    inner = body.get("knn") or query.get("knn")
    for each in query.get("hybrid", {}).get("queries", ()):
        inner = inner or each.get("knn")
    if inner is None:
        return None
    if "query_vector" in inner:
        return {"vector": inner["query_vector"], "k": inner.get("k", 10), "filter": inner.get("filter")}
    (told,) = inner.values()
    return {"vector": told["vector"], "k": told["k"], "filter": told.get("filter")}


def _passes(clause: dict[str, Any] | None, document: Any) -> bool:
    wanted = (clause or {}).get("filter")
    return wanted is None or all(document.get(name) == value for name, value in wanted["term"].items())


def _score(stored: Any, clause: dict[str, Any]) -> float:
    one, two = np.array(stored), np.array(clause["vector"])
    return float((1 + one @ two / (np.linalg.norm(one) * np.linalg.norm(two))) / 2)
