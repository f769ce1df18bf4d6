"""One query's contribution to the quality of retrieval, out of a span, and collections of many.

The same from a live span and from a file: `samples` needs no content.  A `Collector` keeps a bounded uniform
sample of distinct queries for each series; a `Series` is what may be compared with itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neuronscope.diagnosis.statistics import Sample, sample
from neuronscope.sampling import weight
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.scores import scale_of
from neuronscope.signals.views import RetrievalSpan, retrieval_spans

FEATURES: Final = ("top_score", "kth_score", "margin", "norm")
MAX_KEPT: Final = 2_000  # queries of a series: more would make no threshold sharper
MAX_SERIES: Final = 256
_MAX_SEEN: Final = 50_000  # distinct queries that are recognised when they come again


class Series(NamedTuple):
    """What scores can be compared within: one store's collection, searched in one way.

    Attributes:
        metric: how scores read (`neuronscope.signals.scores`); empty if unknown.
        k: hits asked for; 0 if unknown.
    """

    store: str
    collection: str
    metric: str
    k: int

    @property
    def place(self) -> tuple[str, str]:
        """Store and collection."""
        return self.store, self.collection


class QuerySample(NamedTuple):
    """What one query tells.  Scores are on the scale where more is better; None: unknown.

    Attributes:
        fingerprint: SimHash of the query vector, 16 hexadecimal digits.
        embedder: fingerprint of the embedder that made the vector.
        weight: how many queries this one of a sampled recording stands for.
    """

    series: Series
    top_score: float | None
    kth_score: float | None
    margin: float | None
    norm: float | None
    returned: int
    filtered: bool
    fingerprint: str | None
    embedder: str | None
    trace_id: int
    weight: float = 1.0

    @property
    def empty(self) -> bool:
        """Nothing was found."""
        return self.returned == 0

    @property
    def short(self) -> bool:
        """Something was found, and less than was asked for."""
        return 0 < self.returned < self.series.k


def samples(spans: Sequence[SpanRecord]) -> list[QuerySample]:
    """The searches among spans that succeeded."""
    found = (query_sample(view) for view in retrieval_spans(spans))
    return [query for query in found if query is not None]


def query_sample(view: RetrievalSpan) -> QuerySample | None:
    """A search's sample; None if it failed, or if the store could not be read."""
    returned = view.returned
    if returned is None or view.error_type is not None:
        return None
    scale = scale_of(view.metric)
    top, kth = view.top_score, _attribute(view, names.RETRIEVAL_KTH_SCORE)
    embedder = view.span.attributes.get(names.EMBEDDER_FINGERPRINT)
    return QuerySample(
        series=Series(view.store or "", view.collection or "", view.metric or "", view.k or 0),
        top_score=None if top is None else _short(scale.normalised(top)),
        kth_score=None if kth is None else _short(scale.normalised(kth)),
        # A single hit is its own best and worst: its margin says nothing.
        margin=_short(view.margin) if returned > 1 else None,
        norm=_short(view.query_norm),
        returned=returned,
        filtered=bool(view.filtered),
        fingerprint=view.query_fingerprint,
        embedder=embedder if isinstance(embedder, str) else None,
        trace_id=view.span.trace_id,
        weight=weight(view.span),
    )


def _attribute(view: RetrievalSpan, key: str) -> float | None:
    value = (view.span if view.event is None else view.event).attributes.get(key)
    return float(value) if isinstance(value, int | float) else None


def _short(value: float | None) -> float | None:
    """Five significant digits: what rounding does to a norm of one must not look like a change of it."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Queries:
    """A sample of the distinct queries of one series: a reference, or the window compared with it.

    Attributes:
        n: queries in the sample.
        seen: queries that it was drawn from, those that came again included.
        empty: of the sample, how many found nothing; `short`: less than asked; `filtered`: had a filter;
            `filtered_empty`: had one and found nothing.
        values: sorted values of each feature.
        fingerprints: SimHashes of the query vectors.
        embedders: queries by the fingerprint of the embedder that made their vectors.
    """

    series: Series
    n: int
    seen: int
    empty: int = 0
    short: int = 0
    filtered: int = 0
    filtered_empty: int = 0
    values: Mapping[str, Sample] = field(default_factory=dict[str, Sample])
    fingerprints: tuple[str, ...] = ()
    embedders: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def unfiltered(self) -> int:
        """Queries without a filter."""
        return self.n - self.filtered

    @property
    def unfiltered_empty(self) -> int:
        """Those of them that found nothing."""
        return self.empty - self.filtered_empty

    @cached_property
    def directions(self) -> NDArray[np.float32]:
        """A row of ±1 for each fingerprint: the signs of its vector's projections."""
        return directions(self.fingerprints)


def directions(fingerprints: Sequence[str]) -> NDArray[np.float32]:
    """SimHashes as rows of ±1; their mean points where the vectors' mean direction points."""
    data = np.frombuffer(bytes.fromhex("".join(fingerprints)), dtype=np.uint8).reshape(len(fingerprints), -1)
    return np.unpackbits(data, axis=1).astype(np.float32) * 2 - 1


def gather(series: Series, kept: Sequence[QuerySample], seen: int) -> Queries:
    """What a sample of queries says together."""
    values = {
        feature: sample([value for query in kept if (value := getattr(query, feature)) is not None])
        for feature in FEATURES
    }
    embedders: dict[str, int] = {}
    for query in kept:
        if query.embedder is not None:
            embedders[query.embedder] = embedders.get(query.embedder, 0) + 1
    return Queries(
        series,
        n=len(kept),
        seen=seen,
        empty=sum(query.empty for query in kept),
        short=sum(query.short for query in kept),
        filtered=sum(query.filtered for query in kept),
        filtered_empty=sum(query.filtered and query.empty for query in kept),
        values={feature: found for feature, found in values.items() if found.size},
        fingerprints=tuple(query.fingerprint for query in kept if query.fingerprint is not None),
        embedders=embedders,
    )


class Collector:
    """Keeps a uniform sample of the distinct queries of every series.  For one thread.

    Args:
        size: queries to keep, of each series.
        seed: of the draw: the same queries in the same order give the same sample.
    """

    def __init__(self, size: int = MAX_KEPT, *, seed: int = 0) -> None:
        self._size = size
        self._random = random.Random(seed)
        self._kept: dict[Series, list[QuerySample]] = {}
        self._counts: dict[Series, list[int]] = {}  # distinct, seen
        self._known: dict[Series, set[tuple[str, bool]]] = {}

    def add(self, query: QuerySample) -> bool:
        """Take a query; False if it came before, or belongs to one series too many."""
        series = query.series
        kept = self._kept.get(series)
        if kept is None:
            if len(self._kept) >= MAX_SERIES:
                return False
            kept = self._kept[series] = []
            self._counts[series], self._known[series] = [0, 0], set()
        counts, known = self._counts[series], self._known[series]
        counts[1] += 1
        if query.fingerprint is not None:
            key = (query.fingerprint, query.filtered)
            if key in known:
                return False
            if len(known) < _MAX_SEEN:
                known.add(key)
        counts[0] += 1
        if len(kept) < self._size:
            kept.append(query)
        elif (place := self._random.randrange(counts[0])) < self._size:  # Vitter's algorithm R
            kept[place] = query
        return True

    def distinct(self) -> int:
        """Distinct queries so far, of all series."""
        return sum(counts[0] for counts in self._counts.values())

    def kept(self) -> Iterator[QuerySample]:
        """The queries in the samples."""
        for kept in self._kept.values():
            yield from kept

    def queries(self) -> dict[Series, Queries]:
        """What has been collected, by series."""
        return {series: gather(series, kept, self._counts[series][1]) for series, kept in self._kept.items()}


def thinned(queries: Sequence[QuerySample], *, seed: int = 0) -> Iterable[QuerySample]:
    """Queries of a sampled recording as a sample without weights: each is kept in proportion to its weight.

    A recording keeps what is out of the ordinary for certain (`neuronscope.sampling`); taken as it is, it
    would make the extraordinary look usual.
    """
    highest = max((query.weight for query in queries), default=1.0)
    draw = random.Random(seed)
    return (query for query in queries if draw.random() * highest < query.weight)
