"""Searches by vectors in the language that Elasticsearch and OpenSearch share, and their answers.

A body is looked through for clauses that hold a vector, wherever they are nested; it is the service's and may
be used again, so what is kept of it is copied.  Pure functions; nothing is consumed.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Hit, Query, Request, Response, Stage
from neuronscope.signals import names
from neuronscope_instrumentation.common.retrieval import kept_vector

MAX_DEPTH: Final = 12
MAX_SEARCHES: Final = 128
MAX_LEARNED: Final = 4096
DEFAULT_SIZE: Final = 10
_CLAUSES: Final = frozenset({"knn", "neural"})
# Where further clauses may be.
_WITHIN: Final = frozenset(
    {
        "query",
        "knn",
        "retriever",
        "retrievers",
        "bool",
        "must",
        "should",
        "filter",
        "hybrid",
        "queries",
        "nested",
    }
    | {
        "function_score",
        "script_score",
        "constant_score",
        "dis_max",
        "rrf",
        "standard",
        "boosting",
        "positive",
    }
    | {"linear", "text_similarity_reranker", "rescorer", "pinned"}
)
_TEXTS: Final = ("query_text", "model_text")


class Clause(NamedTuple):
    """One search by a vector, or by a text that the store embeds."""

    field: str | None
    vector: Any
    text: str | None
    k: int | None
    filtered: bool


class Asked(NamedTuple):
    """One search: its clauses, and what is around them."""

    clauses: Sequence[Clause]
    size: int | None
    filtered: bool
    words: bool
    fusion: str | None


@dataclass(frozen=True, slots=True)
class KnownIndexes:
    """What one connection's indexes are known for: fields of vectors, and their metric where it was told."""

    fields: dict[str, dict[str, str | None]] = field(default_factory=dict[str, dict[str, "str | None"]])

    def learn(self, index: str, fields: Mapping[str, str | None]) -> None:
        """Remember an index's fields of vectors."""
        if len(self.fields) >= MAX_LEARNED:
            self.fields.clear()
        self.fields.setdefault(index, {}).update(fields)

    def metric(self, index: str | None, vector_field: str | None) -> str | None:
        """How the scores of a field read."""
        return self.fields.get(index or "", {}).get(vector_field or "")


_known: Final[weakref.WeakKeyDictionary[Any, KnownIndexes]] = weakref.WeakKeyDictionary()


def known_indexes(connection: Any) -> KnownIndexes:
    """Of a transport, which is held weakly."""
    known = _known.get(connection)
    if known is None:
        known = _known[connection] = KnownIndexes()
    return known


# --- requests, in the caller's thread -----------------------------------------------------------------------
def asked_of(body: Any, size: Any = None) -> Asked | None:
    """The search by vectors in a body; None if there is none."""
    if not isinstance(body, Mapping):
        return None
    told = cast("Mapping[str, Any]", body)
    seen = _Seen()
    seen.look(told, 0)
    if not seen.clauses:
        return None
    both = "query" in told and "knn" in told
    fused = (
        "rrf" if seen.rrf or "rrf" in (told.get("rank") or ()) else "hybrid" if both or seen.hybrid else None
    )
    asked_size = told.get("size", size)
    return Asked(
        seen.clauses,
        int(asked_size) if str(asked_size).isdigit() else None,
        seen.filter or any(clause.filtered for clause in seen.clauses),
        both or seen.hybrid,
        fused,
    )


def searches_of(body: Any) -> list[Asked | None] | None:
    """The searches of an `_msearch`, each with its header before it; None if none is by vectors."""
    lines: Sequence[Any] = ()
    if isinstance(body, str | bytes):
        if '"knn"' not in (body if isinstance(body, str) else body.decode("utf-8", "replace")):
            return None
        lines = body.split("\n" if isinstance(body, str) else b"\n")  # type: ignore[arg-type]
        lines = [line for line in lines if line.strip()]
    elif isinstance(body, list | tuple):
        lines = cast("Sequence[Any]", body)
    bodies = islice(lines, 1, 2 * MAX_SEARCHES, 2)
    asked = [asked_of(json.loads(each) if isinstance(each, str | bytes) else each) for each in bodies]
    return asked if any(each is not None for each in asked) else None


class _Seen:
    """What is met on one walk through a body."""

    __slots__ = ("clauses", "filter", "hybrid", "rrf")

    def __init__(self) -> None:
        self.clauses: list[Clause] = []
        self.filter = False
        self.rrf = False
        self.hybrid = False

    def look(self, node: Any, depth: int) -> None:
        """Walk through a node, no deeper than `MAX_DEPTH`."""
        if depth > MAX_DEPTH:
            return
        if type(node) is list or type(node) is tuple:
            for each in cast("Sequence[Any]", node)[:MAX_SEARCHES]:
                if isinstance(each, dict):
                    self.look(each, depth + 1)
            return
        for key, value in cast("Mapping[str, Any]", node).items() if isinstance(node, Mapping) else ():
            if key in _CLAUSES:
                self.clauses.extend(_knn(value))
            elif key == "script":
                self.clauses.extend(_script(value))
            elif key in _WITHIN:
                self._note(key)
                self.look(value, depth + 1)

    def _note(self, key: str) -> None:
        if key == "filter":
            self.filter = True
        elif key == "rrf":
            self.rrf = True
        elif key == "hybrid":
            self.hybrid = True


def _knn(value: Any) -> Iterator[Clause]:
    """Elasticsearch names the field inside the clause, OpenSearch around it; both take several."""
    for each in cast("Sequence[Any]", value) if isinstance(value, list) else (value,):
        if not isinstance(each, Mapping):
            continue
        told = cast("Mapping[str, Any]", each)
        if "field" in told:
            yield _clause(str(told["field"]), told)
        else:
            for name, inner in told.items():
                if isinstance(inner, Mapping) and name != "filter":
                    yield _clause(name, cast("Mapping[str, Any]", inner))


def _clause(name: str, told: Mapping[str, Any]) -> Clause:
    builder = told.get("query_vector_builder")
    embedding: Any = (
        cast("Mapping[str, Any]", builder).get("text_embedding") if isinstance(builder, Mapping) else None
    )
    near = cast("Mapping[str, Any]", embedding) if isinstance(embedding, Mapping) else told
    text = next((near[key] for key in _TEXTS if key in near), None)
    k = told.get("k")
    return Clause(
        name,
        kept_vector(told.get("query_vector", told.get("vector"))),
        text if isinstance(text, str) else None,
        k if isinstance(k, int) else None,
        told.get("filter") is not None,
    )


def _script(value: Any) -> Iterator[Clause]:
    """An exact search by a script, whose parameters hold the vector."""
    params = cast("Mapping[str, Any]", value).get("params") if isinstance(value, Mapping) else None
    for each in cast("Mapping[str, Any]", params).values() if isinstance(params, Mapping) else ():
        if is_vector(each):
            yield Clause(None, kept_vector(each), None, None, False)
            return


def is_vector(value: Any) -> bool:
    """Is this a vector?  Looked at up to its first element."""
    if isinstance(value, list | tuple):
        numbers = cast("Sequence[Any]", value)
        return len(numbers) > 1 and isinstance(numbers[0], float)
    return getattr(value, "ndim", 0) == 1


def vector_fields(body: Any) -> dict[str, str | None]:
    """Fields of vectors, and their similarity, in the mapping of an index that is created."""
    mappings = cast("Mapping[str, Any]", body).get("mappings") if isinstance(body, Mapping) else None
    properties = (
        cast("Mapping[str, Any]", mappings).get("properties") if isinstance(mappings, Mapping) else None
    )
    found: dict[str, str | None] = {}
    for name, each in (
        cast("Mapping[str, Any]", properties).items() if isinstance(properties, Mapping) else ()
    ):
        told: Mapping[str, Any] = cast("Mapping[str, Any]", each) if isinstance(each, Mapping) else {}
        if told.get("type") == "dense_vector":
            found[name] = _SIMILARITIES.get(str(told.get("similarity", "cosine")))
        elif told.get("type") == "knn_vector":
            method: Mapping[str, Any] = told.get("method") or {}
            space = told.get("space_type", method.get("space_type", "l2"))
            found[name] = "euclid_share" if space == "l2" else None  # others' scores depend on the engine
    return found


# Of Elasticsearch: (1 + cosine) / 2, and 1 / (1 + distance²).
_SIMILARITIES: Final = {"cosine": "cosine_certainty", "l2_norm": "euclid_share"}


# --- requests and answers, in the worker --------------------------------------------------------------------
def request_of(
    asked: Sequence[Asked | None], index: str | None, known: KnownIndexes, content: bool
) -> Request:
    """Facts of searches."""
    return Request(queries=[_query(each, index, known, content) for each in asked])


def _query(asked: Asked | None, index: str | None, known: KnownIndexes, content: bool) -> Query:
    if asked is None:
        return Query()
    first = asked.clauses[0]
    size = asked.size if asked.size is not None else first.k if first.k is not None else DEFAULT_SIZE
    alone = len(asked.clauses) == 1
    return Query(
        vector=first.vector if alone else None,
        text=first.text if content and alone else None,
        k=size,
        filtered=asked.filtered,
        metric=asked.fusion or known.metric(index, first.field),
        stages=_stages(asked, size),
    )


def _stages(asked: Asked, size: int) -> list[Stage] | None:
    if asked.fusion is None:
        return None
    steps = [Stage("dense", clause.field, clause.k) for clause in asked.clauses]
    return [*steps, *([Stage("bm25")] if asked.words else []), Stage(asked.fusion, None, size)]


def body_of(result: Any) -> Any:
    """The document of an answer, which Elasticsearch wraps."""
    return getattr(result, "body", result)


def hits_of(answer: Any) -> tuple[Any, ...]:
    """The hits of an answer, the list copied."""
    outer: Any = cast("Mapping[str, Any]", answer).get("hits") if isinstance(answer, Mapping) else None
    inner: Any = cast("Mapping[str, Any]", outer).get("hits") if isinstance(outer, Mapping) else None
    return tuple(cast("Sequence[Any]", inner)) if isinstance(inner, list) else ()


def answers_of(result: Any, several: bool) -> list[tuple[Any, ...]]:
    """The hits of each search of a call."""
    body = body_of(result)
    if not several:
        return [hits_of(body)]
    responses: Any = cast("Mapping[str, Any]", body).get("responses") if isinstance(body, Mapping) else None
    return [hits_of(each) for each in cast("Sequence[Any]", responses or ())]


def read_hits(answers: Sequence[Sequence[Any]], content: bool) -> Response:
    """The hits of each search."""
    return Response(hits=[[_hit(hit, content) for hit in hits] for hits in answers])


def _hit(hit: Mapping[str, Any], content: bool) -> Hit:
    about = cast("Mapping[str, Any]", hit.get("_source") or hit.get("fields") or {})
    score = hit.get("_score")
    values = {name: _plain(value) if content else None for name, value in about.items()}
    return Hit(str(hit.get("_id", "")), float(score) if isinstance(score, int | float) else None, values)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else None


def written(result: Any) -> int:
    """How many documents a write changed, as the server tells."""
    told = cast("Mapping[str, Any]", body_of(result))
    if isinstance(items := told.get("items"), list):
        return len(cast("Sequence[Any]", items))
    counts = [told[name] for name in ("deleted", "updated", "created") if isinstance(told.get(name), int)]
    return sum(counts) if counts else 1


def read_written(count: int, _content: bool) -> Response:
    """How many documents were written or removed."""
    return Response(extra={names.WRITE_COUNT: count})
