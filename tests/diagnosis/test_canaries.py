"""Canaries: which change of an index or a search leaves which pattern, without any model or store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neuronscope.diagnosis.canaries import Canaries, CanaryReport, beside, replay, with_noise
from neuronscope.diagnosis.drift import WindowReport
from neuronscope.diagnosis.findings import Kind, explain
from neuronscope.engine.guard import GUARD

RANDOM = np.random.default_rng(5)


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


DOCUMENTS = unit(RANDOM.normal(size=(400, 16)))
QUERIES = tuple(unit(RANDOM.normal(size=(60, 16))))


class Index:
    """Exact search over some documents, unless told otherwise."""

    def __init__(self, documents: NDArray[Any] = DOCUMENTS, ids: Sequence[int] | None = None) -> None:
        self.vectors: dict[int, Any] = dict(
            zip(ids if ids is not None else range(len(documents)), documents, strict=True)
        )
        self.k = 10
        self.least = -1.0
        self.distances = False
        self.skip = 0.0  # chance that a hit is not found
        self.random = np.random.default_rng(6)

    def search(self, query: Any) -> list[tuple[int, float]]:
        ids: list[int] = [i for i in self.vectors if not (self.skip and self.random.random() < self.skip)]
        scores = np.array([self.vectors[i] for i in ids]) @ query if ids else np.array([])
        best = np.argsort(-scores)[: self.k]
        found = [(ids[int(n)], float(scores[n])) for n in best if scores[n] >= self.least]
        return [(i, 1 - score) for i, score in found] if self.distances else found


def report(before: Index, after: Index, **more: Any) -> CanaryReport:
    first, again = (replay(Canaries("c", before.search, QUERIES)) for _ in range(2))
    assert first is not None
    assert again is not None
    now = replay(Canaries("c", after.search, QUERIES))
    assert now is not None
    return beside(with_noise(first, again), now, Canaries("c", after.search, QUERIES, **more))


def cause(found: CanaryReport) -> Kind:
    (finding,) = explain(WindowReport("s", "c", 0), [found])
    return finding.kind


def test_the_same_index_moves_nothing() -> None:
    """Exactly: not by rounding either."""
    same = report(Index(), Index())
    assert not same.moved
    assert (same.overlap, same.lost, same.rescored) == (1.0, 0, 0.0)
    assert same.rbo == pytest.approx(1.0)
    assert explain(WindowReport("s", "c", 0), [same]) == []


@pytest.mark.parametrize("distances", [False, True])
def test_a_tenth_of_the_documents_lost(distances: bool) -> None:
    """Every hit that is missing is of a document that nobody finds any more."""
    before, after = Index(), Index()
    for number in range(0, 400, 10):
        del after.vectors[number]
    before.distances = after.distances = distances
    found = report(before, after)
    assert found.overlap == pytest.approx(0.9, abs=0.05)
    assert found.elsewhere == 0
    assert set(found.vanished) <= {str(n) for n in range(0, 400, 10)}
    assert cause(found) is Kind.INDEX_LOST


def test_a_search_that_looks_less_far() -> None:
    """Other canaries still find what is missing."""
    after = Index()
    after.skip = 0.3
    found = report(Index(), after)
    assert found.elsewhere > 0.5 * found.missing
    assert cause(found) is Kind.SEARCH_CHANGED


def test_noise_of_an_approximate_index_is_no_finding() -> None:
    """Both replays of the baseline differ as much as today's does."""
    noisy, again = Index(), Index()
    noisy.skip = again.skip = 0.05
    again.random = np.random.default_rng(77)
    found = report(noisy, again)
    assert found.overlap < 0.98
    assert not found.moved


def test_fewer_hits_or_a_score_demanded() -> None:
    """Each canary finds the beginning of what it found."""
    fewer, choosy = Index(), Index()
    fewer.k = 5
    choosy.least = 0.6
    assert cause(report(Index(), fewer)) is Kind.SEARCH_CHANGED
    assert cause(report(Index(), choosy)) is Kind.SEARCH_CHANGED


def test_vectors_written_anew() -> None:
    """The same documents with other scores: embedded again, quantised, or measured by another distance."""
    noise = 0.05 * RANDOM.normal(size=DOCUMENTS.shape)
    found = report(Index(), Index(unit(DOCUMENTS + noise)))
    assert found.rescored > 0.9
    assert cause(found) is Kind.INDEX_REWRITTEN


def test_an_index_that_grew() -> None:
    """New documents rank higher: nothing is missing that should be there."""
    more = unit(np.concatenate((DOCUMENTS, RANDOM.normal(size=(400, 16)))))
    found = report(Index(), Index(more))
    assert (found.missing, found.moved) == (0, True)
    assert found.arrived > 50
    assert cause(found) is Kind.INDEX_GREW


def test_an_empty_index() -> None:
    """Another namespace, or a collection that was made anew."""
    found = report(Index(), Index(DOCUMENTS[:0]))
    assert found.emptied == 1.0
    assert cause(found) is Kind.INDEX_LOST


def test_one_document_replaced_is_nobodys_concern() -> None:
    """A document in two lists of sixty."""
    after = Index()
    del after.vectors[7]
    assert not report(Index(), after).moved


def test_documents_that_no_two_canaries_share_are_asked_for() -> None:
    """In a large collection lists do not meet: only `fetch` tells lost from not found."""
    wide = unit(np.random.default_rng(8).normal(size=(60, 64)))
    near = unit(np.repeat(wide, 10, axis=0) + 0.05 * np.random.default_rng(9).normal(size=(600, 64)))

    def made(skip: float, lost: bool, fetch: bool) -> CanaryReport:
        before, after = Index(near), Index(near)
        after.skip = skip
        if lost:
            for number in range(0, 600, 5):
                del after.vectors[number]
        first = replay(Canaries("c", before.search, tuple(wide)))
        now = replay(Canaries("c", after.search, tuple(wide)))
        assert first is not None
        assert now is not None

        def alive(ids: Sequence[str]) -> list[str]:
            return [name for name in ids if int(name) in after.vectors]

        asked = Canaries("c", after.search, tuple(wide), fetch=alive if fetch else None)
        return beside(first, now, asked)

    assert cause(made(0.0, lost=True, fetch=False)) is Kind.UNEXPLAINED
    assert cause(made(0.3, lost=False, fetch=True)) is Kind.SEARCH_CHANGED
    assert cause(made(0.0, lost=True, fetch=True)) is Kind.INDEX_LOST


def test_a_search_that_fails_is_no_verdict() -> None:
    """Some failures leave the others to speak; when most fail, nothing is said."""
    index = Index()
    calls = iter(range(1_000))

    def flaky(query: Any) -> list[tuple[int, float]]:
        if next(calls) % 3 == 0:
            raise TimeoutError
        return index.search(query)

    def down(query: Any) -> list[tuple[int, float]]:
        raise ConnectionError

    GUARD.reraise = False
    some = replay(Canaries("c", flaky, QUERIES))
    assert some is not None
    assert len(some.found) == 40
    assert replay(Canaries("c", down, QUERIES)) is None
    assert GUARD.faults["canaries.search", "ConnectionError"] == 60
