"""Each detector by itself: one fact of a service changed, all else but the draw of the traffic the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.diagnosis.side import DOCUMENTS, Service

import neuronscope as ns
from neuronscope.diagnosis.comparing.result import Comparison, Verdict
from neuronscope.diagnosis.kinds import Kind
from neuronscope.signals import names

BEFORE, AFTER = Service(seed=1), Service(seed=2)


def told(operation: str, **attributes: Any) -> dict[str, Mapping[str, Any]]:
    """Attributes of an operation, by the names of their constants."""
    return {operation: {getattr(names, key): value for key, value in attributes.items()}}


def sometimes(share: float, value: Any, other: Any = None) -> Any:
    """An attribute that some calls have."""

    def drawn(draw: random.Random) -> Any:
        return value if draw.random() < share else other

    return drawn


def around(median: float) -> Any:
    """A time that scatters a little."""

    def drawn(draw: random.Random) -> float:
        return median * draw.lognormvariate(0, 0.2)

    return drawn


CHANGES = {
    Kind.INDEX_LOST: (
        BEFORE,
        replace(AFTER, documents=frozenset(range(DOCUMENTS)) - frozenset(range(0, 200, 10))),
    ),
    Kind.INDEX_REWRITTEN: (BEFORE, replace(AFTER, score_scale=0.95)),
    Kind.INDEX_STALE: (BEFORE, replace(AFTER, rescored=frozenset(range(0, DOCUMENTS, 5)))),
    Kind.SEARCH_CHANGED: (BEFORE, replace(AFTER, k=3)),
    Kind.COLLECTION_SWITCHED: (BEFORE, replace(AFTER, collection="other")),
    Kind.FILTER_CHANGED: (BEFORE, replace(AFTER, filtered=True)),
    Kind.EMBEDDER_CHANGED: (BEFORE, replace(AFTER, embedder=7)),
    Kind.QUERIES_SHIFTED: (BEFORE, replace(AFTER, questions=tuple(range(10)))),
    Kind.RERANKER_CHANGED: (replace(BEFORE, reranked=True), AFTER),
    Kind.PROMPT_CHANGED: (BEFORE, replace(AFTER, pieces=(11, 44, 33))),
    Kind.CONTEXT_DROPPED: (BEFORE, replace(AFTER, whole=2)),
    Kind.SYSTEM_PROMPT_CHANGED: (
        BEFORE,
        replace(AFTER, attributes=told("chat", SYSTEM_FINGERPRINT="bbbb", SYSTEM_CHARACTERS=300)),
    ),
    Kind.TOOLS_CHANGED: (
        replace(BEFORE, attributes=told("chat", TOOLS_FINGERPRINT="a")),
        replace(AFTER, attributes=told("chat", TOOLS_FINGERPRINT="b")),
    ),
    Kind.MODEL_CHANGED: (BEFORE, replace(AFTER, attributes=told("chat", RESPONSE_MODEL="gpt-x-2027"))),
    Kind.SAMPLING_CHANGED: (BEFORE, replace(AFTER, attributes=told("chat", REQUEST_TEMPERATURE=1.0))),
    Kind.OUTPUT_CUT: (
        BEFORE,
        replace(AFTER, attributes=told("chat", FINISH_REASONS=sometimes(0.4, ["length"], ["stop"]))),
    ),
    Kind.TOKENIZER_CHANGED: (BEFORE, replace(AFTER, attributes=told("chat", INPUT_TOKENS=276))),
    Kind.CACHE_LOST: (
        replace(BEFORE, attributes=told("chat", CACHE_READ_TOKENS=sometimes(0.8, 100, 0))),
        replace(AFTER, attributes=told("chat", CACHE_READ_TOKENS=0)),
    ),
    Kind.PROVIDER_SLOWER: (BEFORE, replace(AFTER, seconds={**AFTER.seconds, "chat": 1.0, "first": 0.4})),
    Kind.PROVIDER_LIMITED: (
        BEFORE,
        replace(AFTER, attributes=told("chat", HTTP_RESEND_COUNT=sometimes(0.2, 1))),
    ),
    Kind.PROVIDER_FAILING: (
        BEFORE,
        replace(AFTER, attributes=told("chat", ERROR_TYPE=sometimes(0.2, "APIError"))),
    ),
    Kind.QUEUEING: (BEFORE, replace(AFTER, wait_s=0.2)),
    Kind.CONSUMER_STALLING: (
        BEFORE,
        replace(
            AFTER,
            attributes=told("chat", STREAM_CONSUMER=around(0.5)),
            seconds={**AFTER.seconds, "chat": 0.9},
        ),
    ),
    Kind.WEIGHTS_CHANGED: (
        replace(BEFORE, attributes=told("chat", MODEL_NAME="m", MODEL_WEIGHTS="a")),
        replace(AFTER, attributes=told("chat", MODEL_NAME="m", MODEL_WEIGHTS="b")),
    ),
    Kind.PRECISION_CHANGED: (
        replace(BEFORE, attributes=told("chat", MODEL_NAME="m", MODEL_WEIGHTS="a", MODEL_DTYPE="float32")),
        replace(AFTER, attributes=told("chat", MODEL_NAME="m", MODEL_WEIGHTS="b", MODEL_DTYPE="bfloat16")),
    ),
    Kind.NON_FINITE: (
        BEFORE,
        replace(AFTER, attributes=told("embeddings", LAYERS_NON_FINITE=sometimes(0.1, 5, 0))),
    ),
    Kind.TRAFFIC_CHANGED: (BEFORE, replace(AFTER, gap_s=0.1)),
    Kind.FIDELITY_CHANGED: (
        BEFORE,
        replace(AFTER, attributes=told("embeddings", FIDELITY="critical", LAYERS_RECORDS=0)),
    ),
}


def compared(before: Service, after: Service) -> Comparison:
    """Through the public function."""
    return ns.compare(before.spans(), after.spans())


@pytest.mark.parametrize("kind", CHANGES, ids=str)
def test_one_changed_fact_is_the_only_cause(kind: Kind) -> None:
    """What changed is named first and alone, with evidence; what follows from it is no cause."""
    result = compared(*CHANGES[kind])
    assert result.kinds == (kind,)
    assert result.verdict is Verdict.CHANGED
    cause = result.causes[0]
    assert cause.evidence
    assert cause.effect > 0
    assert 0.5 <= cause.confidence < 1


@pytest.mark.parametrize("kind", CHANGES, ids=str)
def test_swapped_sides_give_the_mirrored_story(kind: Kind) -> None:
    """The same change told backwards: the same kind, or its opposite, with before and after exchanged."""
    before, after = CHANGES[kind]
    result, mirrored = compared(before, after), compared(after, before)
    opposite = {Kind.INDEX_LOST: Kind.INDEX_GREW}.get(kind, kind)
    assert mirrored.kinds == (opposite,)
    first, second = result.causes[0].evidence[0], mirrored.causes[0].evidence[0]
    assert second.effect == pytest.approx(first.effect, rel=0.05)
    if first.statistic not in {
        "overlap",
        "angle",
        "distance",
        "centroid",
        "pairs",
    }:  # of these `before` is the noise
        assert (first.before, first.after) == (second.after, second.before)


@pytest.mark.parametrize("seed", range(3, 9))
def test_another_draw_of_the_same_traffic_is_no_change(seed: int) -> None:
    """No cause, no symptom, and a word on what would have been seen."""
    result = compared(BEFORE, Service(seed=seed))
    assert result.verdict is Verdict.NO_CHANGE
    assert not result.symptoms
    assert any(0 < item.detectable < 0.5 for item in result.power)


def test_a_recording_against_itself_finds_nothing() -> None:
    """A against A: every pair is equal."""
    result = compared(BEFORE, BEFORE)
    assert (result.verdict, result.causes, result.symptoms) == (Verdict.NO_CHANGE, (), ())
    assert result.pairing.rate == 1.0


def test_a_busy_machine_is_no_cause() -> None:
    """Everything takes twice as long: no provider is slower than the rest."""
    busy = replace(AFTER, seconds={name: 2 * value for name, value in AFTER.seconds.items()})
    assert compared(BEFORE, busy).kinds == ()


def test_a_provider_is_blamed_only_beyond_what_the_process_lost() -> None:
    """Twice as slow on a machine that got three times as slow: it is neither slower nor faster."""
    slowed = {name: (3 if name == "embeddings" else 2) * value for name, value in AFTER.seconds.items()}
    assert compared(BEFORE, replace(AFTER, seconds=slowed)).kinds == ()
    alone = {name: (1 if name == "embeddings" else 2) * value for name, value in AFTER.seconds.items()}
    assert Kind.PROVIDER_SLOWER in compared(BEFORE, replace(AFTER, seconds=alone)).kinds


def test_a_stall_counts_by_its_part_of_the_call() -> None:
    """Thirty milliseconds of half a minute are nobody's; of a short answer they are."""
    held = told("chat", STREAM_CONSUMER=around(0.03))
    slow = {"embeddings": 0.01, "retrieval": 0.005, "chat": 20.0, "first": 0.1}
    short = {**slow, "chat": 0.08, "first": 0.02}
    before, after = replace(BEFORE, seconds=slow), replace(AFTER, seconds=slow, attributes=held)
    assert compared(before, after).kinds == ()
    before, after = replace(BEFORE, seconds=short), replace(AFTER, seconds=short, attributes=held)
    assert Kind.CONSUMER_STALLING in compared(before, after).kinds


def test_documents_that_many_queries_found_are_missed_without_pairs() -> None:
    """No question twice: what tells is that so many different ones found them, and none does."""
    kept = frozenset(range(DOCUMENTS)) - frozenset(range(0, DOCUMENTS, 10))
    before = replace(BEFORE, n=300, questions=tuple(range(300)))
    after = replace(AFTER, n=300, questions=tuple(range(300, 600)), documents=kept)
    whole = compared(before, replace(after, documents=frozenset(range(DOCUMENTS))))
    assert Kind.INDEX_LOST not in whole.kinds
    assert Kind.INDEX_LOST in compared(before, after).kinds


def test_two_changes_are_two_causes() -> None:
    """Causes that do not explain each other are both told."""
    both = replace(AFTER, pieces=(11, 44, 33), k=3)
    assert set(compared(BEFORE, both).kinds) == {Kind.PROMPT_CHANGED, Kind.SEARCH_CHANGED}


def test_what_follows_from_a_cause_is_a_consequence() -> None:
    """Another model cuts its answers: the model is the cause."""
    after = replace(
        AFTER,
        attributes=told("chat", REQUEST_MODEL="other", FINISH_REASONS=sometimes(0.5, ["length"], ["stop"])),
    )
    result = compared(BEFORE, after)
    assert result.kinds == (Kind.MODEL_CHANGED,)
    assert [(item.kind, item.because) for item in result.consequences] == [
        (Kind.OUTPUT_CUT, (Kind.MODEL_CHANGED,))
    ]


def test_what_nothing_explains_is_unknown() -> None:
    """Prompts got longer, and nothing recorded says why."""
    after = replace(
        AFTER, attributes=told("chat", INPUT_TOKENS=476, PROMPT_CHARACTERS=2000, PROMPT_CHECKSUM=None)
    )
    before = replace(BEFORE, attributes=told("chat", PROMPT_CHECKSUM=None))
    result = compared(before, after)
    assert result.verdict is Verdict.UNKNOWN
    assert not result.causes
    assert result.symptoms[0].explained_by == ()


SLOW = {"embeddings": 0.01, "retrieval": 0.005, "chat": 1.6, "first": 0.4}


@pytest.mark.parametrize(
    ("characters", "seconds", "explained"),
    [
        (None, SLOW, set[str]()),  # slower, and the prompt as long as it was
        (3800, SLOW, {"latency", "first_chunk"}),
        (300, SLOW, set[str]()),  # a shorter prompt makes nothing slower
        (300, {**SLOW, "chat": 0.1, "first": 0.02}, {"latency", "first_chunk"}),
    ],
)
def test_another_template_explains_times_only_by_its_length(
    characters: int | None, seconds: dict[str, float], explained: set[str]
) -> None:
    """Times that prompts of that length cannot be the reason of stay unexplained by them."""
    lengths = told("chat", PROMPT_CHARACTERS=characters, INPUT_TOKENS=characters // 4) if characters else {}
    result = compared(BEFORE, replace(AFTER, pieces=(11, 44, 33), seconds=seconds, attributes=lengths))
    (cause,) = [item for item in result.causes if item.kind is Kind.PROMPT_CHANGED]
    times = {"latency", "first_chunk"}
    assert {symptom.effect.value for symptom in result.symptoms} >= times
    assert {effect.value for effect in cause.explains} & times == explained
    for symptom in result.symptoms:
        if symptom.effect.value in times:
            assert (cause.kind in symptom.explained_by) is (symptom.effect.value in explained)


def test_too_little_is_said_to_be_too_little() -> None:
    """Two requests are no sample."""
    assert compared(replace(BEFORE, n=2), replace(AFTER, n=2)).verdict is Verdict.INSUFFICIENT
    assert ns.compare([], []).verdict is Verdict.INSUFFICIENT


def test_what_cannot_be_told_is_told() -> None:
    """Without prompts' structure a changed template would not be seen, and the comparison says so."""
    bare = told(
        "chat", PROMPT_CHARACTERS=None, PROMPT_CHECKSUM=None, PROMPT_PIECES=None, SYSTEM_FINGERPRINT=None
    )
    result = compared(replace(BEFORE, attributes=bare), replace(AFTER, attributes=bare))
    assert {Kind.PROMPT_CHANGED, Kind.SYSTEM_PROMPT_CHANGED} <= {item.kind for item in result.untold}


def test_json_has_the_whole_story() -> None:
    """Plain values, finite numbers, stages."""
    written = compared(*CHANGES[Kind.PROMPT_CHANGED]).to_dict()
    assert written["format"] == "neuronscope.comparison/1"
    assert written["causes"][0]["stage"] == "prompt"
    assert written["verdict"] == "changed"
