"""Each fault of retrieval raises its own finding and no other; without a fault nothing is raised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.faults.laboratory import Fault, Laboratory, Outcome
from tests.faults.retrieval import FAULTS

import neuronscope as ns
from neuronscope.diagnosis.canaries import MIN_CANARIES
from neuronscope.signals import names

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
CONTROLS = 6  # in every test run; twenty by `make soak`


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """MiniLM, the handbook, and a baseline of a thousand queries."""
    return Laboratory(tmp_path_factory.mktemp("laboratory"))


def told(outcome: Outcome) -> str:
    return "\n".join(f"{f.kind}: {f.summary} {[str(e) for e in f.evidence]}" for f in outcome.findings)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_fault_raises_its_own_finding_and_no_other(laboratory: Laboratory, fault: Fault) -> None:
    """Swapped embedder, lost documents, shallower search, broken filter, other queries: each by its name."""
    outcome = laboratory.run(fault, seed=1)
    assert outcome.raised == (fault.expected,), told(outcome)
    (finding,) = outcome.findings
    assert (finding.store, finding.collection) == ("qdrant", "handbook")
    assert finding.evidence
    (event,) = outcome.events
    assert event.severity == names.DRIFT.severity
    assert json.dumps(dict(event.attributes))


@pytest.mark.parametrize("seed", range(CONTROLS))
def test_nothing_is_raised_without_a_fault(laboratory: Laboratory, seed: int) -> None:
    """Other users' words, the same service."""
    outcome = laboratory.run(None, seed)
    assert outcome.raised == (), told(outcome)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_runs_without_a_fault_raise_nothing(laboratory: Laboratory, seed: int) -> None:
    """Longer ones: ten windows each."""
    outcome = laboratory.run(None, seed, windows=10)
    assert outcome.raised == (), told(outcome)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_faults_are_named_whatever_the_traffic(laboratory: Laboratory, fault: Fault, seed: int) -> None:
    """Other seeds, and no second finding in later windows."""
    outcome = laboratory.run(fault, seed, windows=6)
    assert outcome.raised == (fault.expected,), told(outcome)


def test_the_baseline_says_nothing_of_the_questions(laboratory: Laboratory) -> None:
    """Its file holds numbers, fingerprints and document ids; it is small, and it is read back."""
    text = laboratory.baseline.read_text(encoding="utf-8")
    assert len(text) < 1 << 20
    for question in laboratory.embedder.known:
        assert question not in text
    baseline = ns.Baseline.read(Path(laboratory.baseline))
    (queries,) = baseline.within("qdrant", "handbook")
    assert queries.n == 1_000
    assert queries.embedders == {baseline.embedders["all-MiniLM-L6-v2"].hash: 1_000}
    assert len(baseline.canaries["handbook"].found) >= MIN_CANARIES
