"""Overlap of rankings, against the definition and published weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronscope.diagnosis.rankings import (
    jaccard,
    overlap,
    persistence,
    rank_change,
    rbo,
)

LISTS = st.lists(st.integers(0, 12), max_size=10, unique=True)


def extrapolated(left: list[int], right: list[int], p: float) -> float:
    """The definition, summed far out: agreement goes on as it was, the shorter list's as its own."""
    short, long = sorted((left, right), key=len)
    s, length = len(short), len(long)

    def agreement(d: int) -> float:
        if d > length:
            return (len(set(short) & set(long)) - len(set(short) & set(long[:s]))) / length + len(
                set(short) & set(long[:s])
            ) / s
        found = len(set(short[:d]) & set(long[:d]))
        unseen = len(set(short) & set(long[:s])) / s * (d - s) if d > s else 0.0
        return (found + unseen) / d

    return (1 - p) * sum(p ** (d - 1) * agreement(d) for d in range(1, 600))


@given(LISTS, LISTS, st.sampled_from([0.5, 0.8, 0.9]))
@settings(max_examples=200, deadline=None)
def test_rbo_is_its_definition(left: list[int], right: list[int], p: float) -> None:
    """Webber, Moffat and Zobel's extrapolated form, lists of any two lengths."""
    value = rbo(left, right, p)
    assert 0.0 <= value <= 1.0 + 1e-12
    assert rbo(right, left, p) == pytest.approx(value)
    if left and right:
        assert value == pytest.approx(extrapolated(left, right, p), abs=1e-9)
    if left:
        assert rbo(left, left, p) == pytest.approx(1.0)


def test_the_top_counts_most() -> None:
    """A swap at the top costs more than one at the end; set overlap sees neither."""
    base = list("abcdefghij")
    top, end = list("bacdefghij"), list("abcdefghji")
    assert rbo(base, top) < rbo(base, end) < 1.0
    assert overlap(base, top, 10) == overlap(base, end, 10) == 1.0


def test_overlap_of_short_and_empty_lists() -> None:
    """Two results that are both empty agree; one that lost everything does not."""
    assert overlap([], [], 10) == jaccard([], [], 10) == rbo([], []) == 1.0
    assert overlap(["a"], [], 10) == jaccard(["a"], [], 10) == rbo(["a"], []) == 0.0
    assert overlap(["a", "b"], ["b"], 10) == 0.5
    assert jaccard(["a", "b"], ["b", "c"], 10) == pytest.approx(1 / 3)
    assert (persistence(5), persistence(10)) == (0.8, 0.9)


def test_an_item_counts_once() -> None:
    """A store with duplicates does not look like a better match."""
    assert rbo(["a", "a", "b"], ["a", "b"]) == pytest.approx(1.0)


def test_a_rerankers_work_is_told_by_rank() -> None:
    """Who rose, who fell, who was dropped, and from where the first comes."""
    change = rank_change(["a", "b", "c", "d"], ["c", "a", "x"])
    assert change.moves == (2, -1)
    assert change.dropped == ("b", "d")
    assert change.promoted == 2
    assert change.rbo < 0.6
    same = rank_change(["a", "b"], ["a", "b"])
    assert (same.moves, same.dropped, same.promoted) == ((0, 0), (), 0)
    assert same.rbo == pytest.approx(1.0)
    assert rank_change(["a"], []).promoted is None
    assert not math.isnan(rank_change([], []).rbo)
