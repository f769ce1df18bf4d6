"""A search as attributes: one record a query, on the span itself or, for a batch, as one event each.

Pure functions, run by the worker (docs/decisions/0007).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from neuronscope.engine.fingerprint_query import QueryFacts, query_facts
from neuronscope.engine.fit import fit_json
from neuronscope.instrumentation import Hit, Query, Request, Response, Stage
from neuronscope.signals import names
from neuronscope.signals.scores import scale_of, score_band

Pairs = Iterator[tuple[str, Any]]
Search = dict[str, Any]
# Queries of one call that are read: a FAISS index takes ten thousand at once.
MAX_QUERIES: Final = 1_024
# Of those, the ones whose record is kept: OpenTelemetry's own limit of events.
MAX_RECORDS: Final = 128
# Elements of vectors that are recorded as content; longer ones are only fingerprinted.
MAX_DIMENSION: Final = 16_384
_NO_QUERY: Final = Query()
# What the span of a batch tells when all its queries agree.
_COMMON: Final = (
    names.RETRIEVAL_TOP_K,
    names.RETRIEVAL_FILTERED,
    names.RETRIEVAL_METRIC,
    names.RETRIEVAL_STAGES,
    names.RETRIEVAL_STAGES_K,
    names.RETRIEVAL_QUERY_TEXT,
    names.QUERY_DIMENSION,
    names.QUERY_DTYPE,
)


def searches_of(request: Request, response: Response | None, content: bool, limit: int) -> list[Search]:
    """The attributes of each query of a call, in order; none if the call is no search.

    Args:
        content: may query texts, vectors, documents and metadata values be told?
        limit: characters of one attribute with content.
    """
    queries, hits = request.queries or (), response.hits if response is not None else None
    if request.queries is None and hits is None:
        return []
    metric = (response.metric if response is not None else None) or request.metric
    pairs = itertools.zip_longest(queries, hits or ())
    return [
        dict(
            _search(query or _NO_QUERY, found if hits is not None else None, request, metric, content, limit)
        )
        for query, found in itertools.islice(pairs, MAX_QUERIES)
    ]


def span_attributes(request: Request, response: Response | None, searches: Sequence[Search]) -> Pairs:
    """What the span of the call tells: of one query everything, of a batch what holds for all of it."""
    hits = response.hits if response is not None else None
    count = max(len(request.queries or ()), len(hits or ()))
    yield names.QUERY_COUNT, count
    if len(searches) == 1:
        yield from searches[0].items()
    else:
        yield names.DB_BATCH_SIZE, count
        for key in _COMMON:
            values = [search.get(key) for search in searches]
            if values and values[0] is not None and all(value == values[0] for value in values):
                yield key, values[0]
        if hits is not None:
            yield names.RETRIEVAL_EMPTY, any(len(found) == 0 for found in hits)
            keys = {key for search in searches for key in search.get(names.RETRIEVAL_METADATA_KEYS, ())}
            if keys:
                yield names.RETRIEVAL_METADATA_KEYS, sorted(keys)
    if hits is not None:
        returned = sum(map(len, hits))
        yield names.DB_RETURNED_ROWS, returned
        yield names.RETRIEVAL_RETURNED, returned


def measured(attributes: Mapping[str, Any], found: Sequence[Search]) -> Iterator[Mapping[str, Any]]:
    """What metrics see of each query of a call: scores on the scale where more is better."""
    for search in found or (attributes,):
        seen = {**attributes, **search}
        if found:
            seen[names.QUERY_COUNT] = seen[names.DB_BATCH_SIZE] = 1
        ends = [key for key in (names.RETRIEVAL_TOP_SCORE, names.RETRIEVAL_KTH_SCORE) if key in seen]
        scale = scale_of(seen.get(names.RETRIEVAL_METRIC), [seen[key] for key in ends])
        seen.update((key, scale.normalised(seen[key])) for key in ends)
        yield seen


def _search(
    query: Query, hits: Sequence[Hit] | None, request: Request, metric: str | None, content: bool, limit: int
) -> Pairs:
    k = request.k if query.k is None else query.k
    filtered = request.filtered if query.filtered is None else query.filtered
    stages = request.stages if query.stages is None else query.stages
    metric = query.metric or metric
    if k is not None:
        yield names.RETRIEVAL_TOP_K, k
    if filtered is not None:
        yield names.RETRIEVAL_FILTERED, filtered
    if stages:
        yield from _stages(stages)
    if metric is not None:
        yield names.RETRIEVAL_METRIC, metric
    if content and query.text is not None:
        yield names.RETRIEVAL_QUERY_TEXT, query.text
    if query.vector is not None and (facts := query_facts(query.vector)):
        yield from query_attributes(facts)
        if content and facts.dimension <= MAX_DIMENSION:
            yield names.QUERY_VECTOR, [float(value) for value in query.vector]
    if hits is not None:
        yield from hit_facts(hits, metric)
        if content and hits:
            yield names.RETRIEVAL_DOCUMENTS, fit_json(list(map(_document, hits)), limit)[0]


def query_attributes(facts: QueryFacts) -> Pairs:
    """A query vector's attributes: never the vector itself."""
    yield names.QUERY_DIMENSION, facts.dimension
    yield names.QUERY_NORM, facts.norm
    yield names.QUERY_DTYPE, facts.dtype
    yield names.QUERY_FINGERPRINT, facts.fingerprint


def hit_facts(hits: Sequence[Hit], metric: str | None) -> Pairs:
    """What one query found: ids, scores as the store told them, how far the best hit stands out."""
    yield names.RETRIEVAL_RETURNED, len(hits)
    yield names.RETRIEVAL_EMPTY, len(hits) == 0
    ids = [hit.id for hit in hits]
    if not ids or any(ids):  # a store may tell how many it found, but not what
        yield names.RETRIEVAL_IDS, ids
    scores = [float(hit.score) for hit in hits if hit.score is not None]
    if len(scores) == len(hits):
        yield names.RETRIEVAL_SCORES, scores
    keys = {key for hit in hits if hit.metadata for key in tuple(hit.metadata)}
    if keys:
        yield names.RETRIEVAL_METADATA_KEYS, sorted(map(str, keys))
    if band := score_band(scores, metric):
        best, worst, margin = band
        yield names.RETRIEVAL_TOP_SCORE, best
        yield names.RETRIEVAL_KTH_SCORE, worst
        yield names.RETRIEVAL_MARGIN, margin


def _stages(stages: Iterable[Stage]) -> Pairs:
    steps = tuple(stages)
    yield names.RETRIEVAL_STAGES, [f"{kind}:{name}" if name else kind for kind, name, _ in steps]
    yield names.RETRIEVAL_STAGES_K, [k or 0 for _, _, k in steps]


def _document(hit: Hit) -> Mapping[str, Any]:
    """A hit in OpenTelemetry's schema of retrieved documents."""
    found: dict[str, Any] = {"id": hit.id, "score": hit.score}
    if hit.text is not None:
        found["content"] = hit.text
    if hit.metadata:
        found["metadata"] = dict(hit.metadata)
    return found
