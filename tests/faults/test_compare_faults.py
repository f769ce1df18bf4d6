"""From two recordings to the cause: faults are named, and days without one are not.

A part of the laboratory in every run, one fault a stage; the whole of it by `make soak` and as the benchmark
group `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults.changes import CONTROLS, FAULTS, Change
from tests.faults.recorder import Studio
from tests.faults.scoring import Outcome, Scoring, score

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

# Facts and large effects: they must be named on a machine under any load.
ALWAYS = (
    "embedder swapped",
    "tenth of the corpus lost",
    "search parameter degraded",
    "reranker off",
    "context dropped",
    "system prompt changed",
    "model switched",
    "max_tokens lowered",
    "NaN born in a layer",
)


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoring]:
    """The servers, and a folder of recordings."""
    with Studio() as studio:
        yield Scoring(studio, tmp_path_factory.mktemp("laboratory"))


def told(outcome: Outcome) -> str:
    assert outcome.comparison is not None
    causes = (*outcome.comparison.causes, *outcome.comparison.consequences)
    return "\n".join(f"{item.kind} {item.subject}: {item.summary}" for item in causes)


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in ALWAYS], ids=lambda item: item.name
)
def test_the_cause_is_named_first(scoring: Scoring, fault: Change) -> None:
    """At default settings, with content off."""
    outcome = scoring.compare(fault, 0)
    assert outcome.rank == 1, told(outcome)
    assert outcome.comparison is not None
    assert not outcome.comparison.before.content
    assert outcome.comparison.causes[0].evidence


def test_a_day_like_the_one_before_has_no_cause(scoring: Scoring) -> None:
    """Other users, other words."""
    (control, *_) = CONTROLS
    outcome = scoring.compare(control, 0)
    assert outcome.kinds == (), told(outcome)


@pytest.mark.soak
def test_the_whole_laboratory(scoring: Scoring) -> None:
    """Every fault with two seeds, and fifty controls: the goals of the project."""
    found = score([*scoring.faults((0, 1)), *scoring.controls(50)])
    assert found.top1 >= 95, found.by_fault
    assert found.top3 >= 99, found.by_fault
    assert found.false_alarms <= 1
