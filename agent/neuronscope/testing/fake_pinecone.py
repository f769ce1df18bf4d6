"""A Pinecone index on a loopback socket: it stores, filters and ranks what it is given, in memory.

Beside the index it answers hosted inference and the description of its index, so that one address serves as
control plane and data plane::

    with ns.testing.FakePinecone() as server:
        index = pinecone.Pinecone(api_key="key", host=server.base_url).Index(host=server.base_url)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

from neuronscope.testing.fake_provider import FakeProvider, Received, Reply

Record = dict[str, Any]
# The namespace in which nobody may do anything.
FORBIDDEN: Final = "forbidden"
_REFUSED: Final = Reply(status=403, body={"error": {"code": "FORBIDDEN", "message": "not yours"}})
NOT_FOUND: Final = Reply(status=404, body={"error": {"code": "NOT_FOUND", "message": "no such thing"}})


class FakePinecone(FakeProvider):
    """The server.

    Attributes:
        metric: ``cosine``, ``dotproduct`` or ``euclidean`` (whose scores are squared distances).
        namespaces: what is stored: records with ``id``, ``values`` and ``metadata``, by id, by namespace.
    """

    def __init__(self, metric: str = "cosine") -> None:
        super().__init__()
        self.metric = metric
        self.namespaces: dict[str, dict[str, Record]] = {}

    def unscripted(self, request: Received) -> Reply:
        """What an index would answer."""
        url = urlsplit(request.path)
        arguments = parse_qs(url.query)
        body: Any = request.json if request.body.startswith(b"{") and b"\n{" not in request.body else {}
        if body.get("namespace") == FORBIDDEN:
            return _REFUSED
        route = _ROUTES.get(url.path)
        if route is not None:
            return Reply(body=route(self, body or arguments))
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        nested = _NESTED.get((parts[0], *parts[2 + (parts[0] == "records") :]))
        if nested is None:
            return NOT_FOUND
        namespace = parts[1 + (parts[0] == "records")]
        return Reply(body=nested(self, namespace, body or request.body))

    # --- the store -------------------------------------------------------------------------------------
    def upsert(self, namespace: str, records: Iterable[Mapping[str, Any]]) -> int:
        """Write records; how many there were."""
        stored = self.namespaces.setdefault(namespace, {})
        before = [dict(record) for record in records]
        stored.update((str(record["id"]), record) for record in before)
        return len(before)

    def remove(self, namespace: str, ids: Sequence[str] | None) -> None:
        """Remove records; None removes all of the namespace."""
        stored = self.namespaces.get(namespace, {})
        for identity in tuple(stored) if ids is None else ids:
            stored.pop(identity, None)

    def rank(
        self, namespace: str, score: Callable[[Record], float], where: Any, top_k: int
    ) -> list[tuple[float, Record]]:
        """Records that a filter lets through, best first."""
        stored = self.namespaces.get(namespace, {}).values()
        scored = [(score(record), record) for record in stored if passes(record.get("metadata") or {}, where)]
        worst_first = self.metric == "euclidean"
        return sorted(scored, key=lambda each: each[0], reverse=not worst_first)[:top_k]

    def nearest(
        self, namespace: str, vector: Sequence[float], where: Any, top_k: int
    ) -> list[tuple[float, Record]]:
        """Records by their vectors."""
        return self.rank(
            namespace, lambda record: similarity(self.metric, vector, record["values"]), where, top_k
        )

    def query(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the query route."""
        namespace = asked.get("namespace", "")
        vector = asked.get("vector")
        if vector is None:
            vector = self.namespaces.get(namespace, {}).get(asked["id"], {}).get("values", [])
        found = self.nearest(namespace, vector, asked.get("filter"), asked["topK"])
        wanted = ["metadata"] * bool(asked.get("includeMetadata")) + ["values"] * bool(
            asked.get("includeValues")
        )
        matches = [
            {"id": record["id"], "score": score, **{key: record[key] for key in wanted if record.get(key)}}
            for score, record in found
        ]
        return {"matches": matches, "namespace": namespace, "usage": {"readUnits": 1}}

    def statistics(self) -> dict[str, Any]:
        """The answer of the statistics route."""
        counts = {name: {"vectorCount": len(records)} for name, records in self.namespaces.items()}
        return {
            "namespaces": counts,
            "dimension": 4,
            "indexFullness": 0,
            "totalVectorCount": sum(len(records) for records in self.namespaces.values()),
            "metric": self.metric,
            "vectorType": "dense",
        }


# --- scores ------------------------------------------------------------------------------------------------
def similarity(metric: str, one: Sequence[float], other: Sequence[float]) -> float:
    """The score of two vectors."""
    if metric == "euclidean":
        return sum((a - b) ** 2 for a, b in zip(one, other, strict=False))
    product = sum(a * b for a, b in zip(one, other, strict=False))
    return product if metric == "dotproduct" else product / (math.hypot(*one) * math.hypot(*other) or 1.0)


def overlap(text: str, other: str) -> float:
    """The share of words that two texts have in common: stands for an embedder and for a reranker."""
    words, others = set(text.lower().split()), set(other.lower().split())
    return len(words & others) / (len(words | others) or 1)


def best_overlap(text: str, record: Record) -> float:
    """The best of a record's fields."""
    fields: dict[str, Any] = record.get("metadata") or {}
    return max((overlap(text, str(value)) for value in fields.values()), default=0.0)


def passes(metadata: Mapping[str, Any], where: Any) -> bool:
    """Does a record pass a filter?  Only equality is understood."""
    conditions = cast("dict[str, Any]", where or {})
    return all(metadata.get(key) == _equal_to(condition) for key, condition in conditions.items())


def _equal_to(condition: Any) -> Any:
    return cast("Any", condition)["$eq"] if type(condition) is dict else condition


# --- routes ------------------------------------------------------------------------------------------------
def _upsert(fake: FakePinecone, body: Any) -> Any:
    return {"upsertedCount": fake.upsert(body.get("namespace", ""), body["vectors"])}


def _delete(fake: FakePinecone, body: Any) -> Any:
    fake.remove(body.get("namespace", ""), body.get("ids"))
    return {}


def _update(fake: FakePinecone, body: Any) -> Any:
    record = fake.namespaces.get(body.get("namespace", ""), {}).get(body["id"])
    if record is not None:
        record.setdefault("metadata", {}).update(body.get("setMetadata") or {})
    return {"matchedRecords": int(record is not None)}


def _fetch(fake: FakePinecone, arguments: Any) -> Any:
    namespace = (arguments.get("namespace") or [""])[0]
    stored = fake.namespaces.get(namespace, {})
    found = {identity: stored[identity] for identity in arguments["ids"] if identity in stored}
    return {"vectors": found, "namespace": namespace, "usage": {"readUnits": 1}}


def _list(fake: FakePinecone, arguments: Any) -> Any:
    namespace = (arguments.get("namespace") or [""])[0]
    limit, start = int((arguments.get("limit") or ["100"])[0]), (arguments.get("paginationToken") or ["0"])[0]
    ids = sorted(fake.namespaces.get(namespace, {}))
    page, rest = ids[int(start) : int(start) + limit], int(start) + limit < len(ids)
    answer = {"vectors": [{"id": identity} for identity in page], "namespace": namespace}
    return {
        **answer,
        "usage": {"readUnits": 1},
        **({"pagination": {"next": str(int(start) + limit)}} if rest else {}),
    }


def _embed(_fake: FakePinecone, body: Any) -> Any:
    texts = [str(one["text"]) for one in body["inputs"]]
    return {
        "model": body["model"],
        "vector_type": "dense",
        "data": [{"values": [0.25] * 4, "vector_type": "dense"} for _ in texts],
        "usage": {"total_tokens": sum(len(text.split()) for text in texts)},
    }


def _rerank(_fake: FakePinecone, body: Any) -> Any:
    texts = [str(one["text"]) for one in body["documents"]]
    ranked = sorted(range(len(texts)), key=lambda index: -overlap(body["query"], texts[index]))
    return {
        "model": body["model"],
        "data": [
            {
                "index": index,
                "score": overlap(body["query"], texts[index]),
                "document": body["documents"][index],
            }
            for index in ranked[: body.get("top_n", len(ranked))]
        ],
        "usage": {"rerank_units": 1},
    }


def _upsert_records(fake: FakePinecone, namespace: str, body: Any) -> Any:
    lines = [json.loads(line) for line in body.splitlines() if line] if isinstance(body, bytes) else [body]
    fake.upsert(namespace, [_record(line) for line in lines])
    return {}


def _record(document: Mapping[str, Any]) -> Record:
    fields = {key: value for key, value in document.items() if key not in ("_id", "id")}
    vectors: list[Any] = [value for value in fields.values() if type(value) is list]
    return {
        "id": document.get("_id") or document["id"],
        "values": vectors[0] if vectors else [],
        "metadata": fields,
    }


def _search_records(fake: FakePinecone, namespace: str, body: Any) -> Any:
    asked, rerank = body["query"], body.get("rerank")
    text = asked["inputs"]["text"]

    def score(record: Record) -> float:
        return best_overlap(text, record)

    found = fake.rank(namespace, score, asked.get("filter"), asked["top_k"])
    found = found[: rerank.get("top_n", len(found))] if rerank else found
    hits = [{"_id": record["id"], "_score": score, "fields": record["metadata"]} for score, record in found]
    return {"result": {"hits": hits}, "usage": {"read_units": 1, "embed_total_tokens": len(text.split())}}


def _upsert_documents(fake: FakePinecone, namespace: str, body: Any) -> Any:
    return {"upserted_count": fake.upsert(namespace, map(_record, body["documents"]))}


def _search_documents(fake: FakePinecone, namespace: str, body: Any) -> Any:
    (method, *_) = body["score_by"]

    def score(record: Record) -> float:
        if "values" in method:
            return similarity(fake.metric, method["values"], record["values"])
        return best_overlap(method["query"], record)

    found = fake.rank(namespace, score, body.get("filter"), body["top_k"])
    matches = [{"_id": record["id"], "_score": value, **_told(record)} for value, record in found]
    return {"matches": matches, "namespace": namespace, "usage": {"read_units": 1}}


def _told(record: Record) -> Record:
    return {key: value for key, value in record["metadata"].items() if not isinstance(value, list)}


def _fetch_documents(fake: FakePinecone, namespace: str, body: Any) -> Any:
    stored = fake.namespaces.get(namespace, {})
    found = {key: {"_id": key, **_told(stored[key])} for key in body["ids"] if key in stored}
    return {"documents": found, "namespace": namespace, "usage": {"read_units": 1}}


def _delete_documents(fake: FakePinecone, namespace: str, body: Any) -> Any:
    fake.remove(namespace, body.get("ids"))
    return {}


_ROUTES: Final[dict[str, Callable[[FakePinecone, Any], Any]]] = {
    "/query": FakePinecone.query,
    "/vectors/upsert": _upsert,
    "/vectors/delete": _delete,
    "/vectors/update": _update,
    "/vectors/fetch": _fetch,
    "/vectors/list": _list,
    "/describe_index_stats": lambda fake, _: fake.statistics(),
    "/embed": _embed,
    "/rerank": _rerank,
}
_NESTED: Final[dict[tuple[str, ...], Callable[[FakePinecone, str, Any], Any]]] = {
    ("records", "upsert"): _upsert_records,
    ("records", "search"): _search_records,
    ("namespaces", "documents", "upsert"): _upsert_documents,
    ("namespaces", "documents", "search"): _search_documents,
    ("namespaces", "documents", "fetch"): _fetch_documents,
    ("namespaces", "documents", "delete"): _delete_documents,
}
