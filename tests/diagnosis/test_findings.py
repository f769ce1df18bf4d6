"""Causes before symptoms: what explains what, when several things look wrong at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace as changed

from neuronscope.diagnosis.canaries import CanaryReport
from neuronscope.diagnosis.drift import Test, WindowReport
from neuronscope.diagnosis.embedders import SAME, EmbedderReport, Fingerprint, IndexReport
from neuronscope.diagnosis.findings import STAGES, Kind, Stage, explain
from neuronscope.diagnosis.samples import Series

SERIES = Series("s", "c", "cosine", 10)
SCORES = ("top_score", "margin")


def made(feature: str) -> Test:
    return Test(SERIES, feature, "share", 0.3, 0.1, 1_000, 500, 0.0, 1.0)


def window(*features: str, **more: Any) -> WindowReport:
    tests = [made(feature) for feature in features]
    return WindowReport("s", "c", 500, tests, tests, tests, traces=(7,), **more)


def embedder(cosine: float) -> EmbedderReport:
    stored = Fingerprint("m", "a" * 16, 4, 1.0, "float32", "")
    return EmbedderReport("m", stored, changed(stored, hash="b" * 16), cosine, 1.0, SAME, 0)


def canary(**more: Any) -> CanaryReport:
    facts: dict[str, Any] = {
        "overlap": 1.0, "error": 0.0, "limit": 0.95, "rbo": 1.0, "score_change": 0.0, "rescored": 0.0,
        "shortened": 0.0, "emptied": 0.0, "lost": 0, "missing": 0, "elsewhere": 0, "unknown": 0,
        "vanished": (), "arrived": 0,
    }  # fmt: skip
    return CanaryReport("canaries", 50, **{**facts, **more})


STABLE, LOST = canary(), canary(overlap=0.9, lost=50, missing=50, vanished=("3",))
SAME_EMBEDDER, OTHER = embedder(1.0), embedder(0.4)


@pytest.mark.parametrize(
    ("features", "canaries", "embedders", "kinds"),
    [
        ((), [STABLE], [SAME_EMBEDDER], []),
        ((*SCORES, "direction", "empty"), [STABLE], [OTHER], [Kind.EMBEDDER_CHANGED]),
        (SCORES, [LOST], [SAME_EMBEDDER], [Kind.INDEX_LOST]),
        ((*SCORES, "filtered_empty", "empty"), [STABLE], [SAME_EMBEDDER], [Kind.FILTER_CHANGED]),
        (("empty", "filtered_empty", "unfiltered_empty"), [STABLE], [SAME_EMBEDDER], [Kind.UNEXPLAINED]),
        ((*SCORES, "filtered"), [STABLE], [SAME_EMBEDDER], [Kind.FILTER_CHANGED]),
        ((*SCORES, "direction"), [STABLE], [SAME_EMBEDDER], [Kind.QUERIES_SHIFTED]),
        ((*SCORES, "direction"), [], [SAME_EMBEDDER], [Kind.QUERIES_SHIFTED]),
        ((*SCORES, "direction"), [STABLE], [], [Kind.QUERIES_OR_EMBEDDER]),
        (SCORES, [STABLE], [SAME_EMBEDDER], [Kind.UNEXPLAINED]),
        (SCORES, [], [], [Kind.UNEXPLAINED]),
        # Two things at once are two findings.
        ((*SCORES, "direction"), [LOST], [SAME_EMBEDDER], [Kind.INDEX_LOST, Kind.QUERIES_SHIFTED]),
        (SCORES, [LOST], [OTHER], [Kind.EMBEDDER_CHANGED, Kind.INDEX_LOST]),
    ],
)
def test_each_symptom_is_told_once_by_its_cause(
    features: tuple[str, ...],
    canaries: list[CanaryReport],
    embedders: list[EmbedderReport],
    kinds: list[Kind],
) -> None:
    """Scores drift for many reasons; the reason is the finding."""
    found = explain(window(*features), canaries, embedders)
    assert [finding.kind for finding in found] == kinds
    for finding in found:
        assert finding.evidence
        assert finding.traces == (7,)
        assert 0 < finding.effect <= 1


def test_what_is_missing_to_tell_is_told() -> None:
    """An unexplained finding says how to explain the next one."""
    (nothing_known,) = explain(window(*SCORES))
    assert "canary queries and the embedder's fingerprint" in nothing_known.summary
    (all_known,) = explain(window(*SCORES), [STABLE], [SAME_EMBEDDER])
    assert "add" not in all_known.summary


def test_a_search_in_an_unknown_way_is_a_changed_search() -> None:
    """Only once it is confirmed."""
    unknown = [Series("s", "c", "dot", 3)]
    (found,) = explain(window(unknown=unknown, unknown_confirmed=True), [STABLE], [SAME_EMBEDDER])
    assert found.kind is Kind.SEARCH_CHANGED
    assert "dot, k = 3" in found.summary
    assert explain(window(unknown=unknown), [STABLE], [SAME_EMBEDDER]) == []


def test_a_stale_index_is_told_unless_the_embedder_changed() -> None:
    """The embedder's change makes every index look stale."""
    stale = IndexReport("docs", 0.4, 0.1, 30)
    assert [f.kind for f in explain(window(), index=[stale])] == [Kind.INDEX_STALE]
    assert [f.kind for f in explain(window(), embedders=[OTHER], index=[stale])] == [Kind.EMBEDDER_CHANGED]


def test_every_kind_has_a_stage() -> None:
    """So that findings sort along the request's path."""
    assert set(STAGES) == set(Kind)
    assert set(STAGES.values()) == set(Stage)


def test_evidence_reads_as_a_sentence() -> None:
    """Value, threshold, sizes."""
    (found,) = explain(window("top_score"))
    assert str(found.evidence[0]) == "share of top_score 0.3, threshold 0.1 (n=500, reference 1000)"
    assert not math.isnan(found.effect)
