"""Canary queries: always the same, so what changes in their results is not the users.

They are searched with directly, past the embedder where they are vectors: a change comes from the index or
from how it is searched, and the pattern of what is missing tells which of the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from neuronscope.diagnosis.rankings import overlap, persistence, rbo
from neuronscope.engine.guard import GUARD
from neuronscope.fingerprints import fingerprint

FLOOR: Final = 0.8  # mean overlap below which something is wrong, whatever the noise
ERRORS: Final = 3.0  # standard errors below the usual overlap that are no accident
EFFECT: Final = 0.02  # and at least so much: one document among fifty lists is nobody's concern
RESCORED: Final = 1e-3  # relative difference of a score that rounding does not make
MOSTLY: Final = 0.5
FEW: Final = 0.1  # share of missing documents found elsewhere that an index with losses may have
MIN_CANARIES: Final = 10

Search: TypeAlias = Callable[[Any], Sequence[tuple[Any, float]]]
"""``query -> (document id, score) of each hit, best first``."""


class Found(Struct, frozen=True):
    """What one canary found."""

    query: str  # fingerprint of the query itself, which is not kept
    ids: tuple[str, ...]
    scores: tuple[float, ...]


class CanaryRun(Struct, frozen=True):
    """One replay of a set of canaries.

    Attributes:
        noise: mean overlap of two replays one after the other, and its standard error: what an approximate
            index does by itself.
    """

    name: str
    k: int
    found: tuple[Found, ...]
    noise: float = 1.0
    noise_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Canaries:
    """A set of canary queries.

    Attributes:
        search: searches as the service does, with the same parameters; called outside of requests, in a
            thread of ours.  Hits are (document id, score), best first.
        queries: what to search with; vectors, since texts would pass through the embedder.
        store, collection: where they search, as spans tell it: so their results explain live drift there.
        fetch: ``ids -> those of them that exist``; tells lost documents from documents not found.
    """

    name: str
    search: Search
    queries: Sequence[Any]
    k: int = 10
    store: str = ""
    collection: str = ""
    fetch: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    fingerprints: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprints", tuple(map(fingerprint, self.queries)))


def replay(canaries: Canaries, pause: Callable[[], None] = lambda: None) -> CanaryRun | None:
    """Search with every canary, one after the other; None if most of them fail.

    Args:
        pause: called between two searches.
    """
    found: list[Found] = []
    for query, name in zip(canaries.queries, canaries.fingerprints, strict=True):
        one = GUARD.contain("canaries.search", _search, canaries, query, name)
        if one is not None:
            found.append(one)
        pause()
    if len(found) <= len(canaries.queries) / 2:
        return None
    return CanaryRun(canaries.name, canaries.k, tuple(found))


def _search(canaries: Canaries, query: Any, name: str) -> Found:
    pairs = [(str(identity), float(score)) for identity, score in canaries.search(query)[: canaries.k]]
    return Found(name, tuple(identity for identity, _ in pairs), tuple(score for _, score in pairs))


def with_noise(first: CanaryRun, second: CanaryRun) -> CanaryRun:
    """The first of two replays without a change between them, with how much they differ."""
    shares = [overlap(a.ids, b.ids, first.k) for a, b in _pairs(first, second)]
    if not shares:
        return first
    return CanaryRun(first.name, first.k, first.found, float(np.mean(shares)), _error(shares))


def _pairs(before: CanaryRun, now: CanaryRun) -> list[tuple[Found, Found]]:
    by_query = {found.query: found for found in before.found}
    return [(by_query[found.query], found) for found in now.found if found.query in by_query]


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """A replay beside the one it is compared with.

    Attributes:
        n: canaries that both have.
        overlap, error: mean share of the first `k` that is the same, and its standard error.
        limit: the overlap below which it is no accident.
        rbo: mean rank-biased overlap.
        score_change: median absolute change of the scores of documents that are still found.
        rescored: share of those whose score changed.
        shortened: share of canaries that find the beginning of what they found, and no more.
        emptied: share of canaries that found something, and find nothing.
        lost: (canary, document) pairs that were there and are not.
        missing: those of them that should still be there by their score: nothing better took their place.
        elsewhere: how many of them are documents that other canaries still find, or that still exist.
        unknown: how many of them are documents of which nobody knows.
        vanished: documents that no canary finds any more; with `fetch`, that do not exist any more.
        arrived: documents that none of them had found before.
    """

    name: str
    n: int
    overlap: float
    error: float
    limit: float
    rbo: float
    score_change: float
    rescored: float
    shortened: float
    emptied: float
    lost: int
    missing: int
    elsewhere: int
    unknown: int
    vanished: tuple[str, ...]
    arrived: int

    @property
    def moved(self) -> bool:
        """Do canaries find something else than they did?"""
        return self.n >= MIN_CANARIES and (self.overlap < self.limit or self.rescored > MOSTLY)


def beside(before: CanaryRun, now: CanaryRun, canaries: Canaries | None = None) -> CanaryReport:
    """Compare a replay with an earlier one."""
    pairs = _pairs(before, now)
    shares = [overlap(a.ids, b.ids, before.k) for a, b in pairs]
    error = _error(shares)
    usual = before.noise - ERRORS * math.hypot(before.noise_error, error)
    limit = min(before.noise - EFFECT, max(FLOOR, usual))
    p = persistence(before.k)
    changes = [abs(x - y) / max(abs(x), abs(y), 1e-12) for a, b in pairs for x, y in _scores_of_both(a, b)]
    missing = [item for a, b in pairs for item in _missing(a, b)]
    seen_before = {item for a, _ in pairs for item in a.ids}
    seen_now = {item for _, b in pairs for item in b.ids}
    alive = _alive(sorted(set(missing) - seen_now), canaries)
    often = Counter(item for a, _ in pairs for item in a.ids)
    gone = [item for item in missing if item not in seen_now and item not in alive]
    checked = canaries is not None and canaries.fetch is not None
    return CanaryReport(
        before.name,
        n=len(pairs),
        overlap=float(np.mean(shares)) if shares else 1.0,
        error=error,
        limit=limit,
        rbo=float(np.mean([rbo(a.ids, b.ids, p) for a, b in pairs])) if pairs else 1.0,
        score_change=float(np.median(changes)) if changes else 0.0,
        rescored=float(np.mean([change > RESCORED for change in changes])) if changes else 0.0,
        shortened=_share([len(b.ids) < len(a.ids) and a.ids[: len(b.ids)] == b.ids for a, b in pairs]),
        emptied=_share([bool(a.ids) and not b.ids for a, b in pairs]),
        lost=sum(len(set(a.ids) - set(b.ids)) for a, b in pairs),
        missing=len(missing),
        elsewhere=len(missing) - len(gone),
        # A document that only one canary ever found is missed by all as soon as it is missed by one.
        unknown=0 if checked else sum(often[item] == 1 for item in gone),
        vanished=tuple(sorted({*gone} - alive))
        if checked
        else tuple(sorted({i for i in gone if often[i] > 1})),
        arrived=len(seen_now - seen_before),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _scores_of_both(before: Found, now: Found) -> list[tuple[float, float]]:
    scores = dict(zip(before.ids, before.scores, strict=True))
    return [(scores[i], score) for i, score in zip(now.ids, now.scores, strict=True) if i in scores]


def _missing(before: Found, now: Found) -> list[str]:
    """Documents whose old score would still put them among the hits: nothing better took their place."""
    if not now.ids:
        return list(before.ids)
    ascending = len(before.scores) > 1 and before.scores[0] < before.scores[-1]  # distances
    worst = now.scores[-1]
    left = set(before.ids) - set(now.ids)
    # A list that is shorter than it was had room for everything.
    room = len(now.ids) < len(before.ids)
    return [
        item
        for item, score in zip(before.ids, before.scores, strict=True)
        if item in left and (room or (score < worst if ascending else score > worst))
    ]


def _alive(ids: Sequence[str], canaries: Canaries | None) -> set[str]:
    if canaries is None or canaries.fetch is None or not ids:
        return set()
    found: Sequence[Any] | None = GUARD.contain("canaries.fetch", canaries.fetch, ids)
    return set() if found is None else {str(item) for item in found}
