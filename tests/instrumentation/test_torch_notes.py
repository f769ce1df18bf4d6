"""Runs of layers that are noted first and told later: the same records, whatever happens around them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Generator
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpoints

import neuronscope as ns
from neuronscope import compiled, notes
from neuronscope.engine import ENGINE
from neuronscope.governor import Budget
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.layers import LayerObserver
from neuronscope.signals.records import Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSnapshot
from torchnets import INPUT, make_net

pytestmark = pytest.mark.skipif(compiled.MODULE is None, reason="without compiled code nothing is noted")

SUMMARY = ns.probes.LayerActivations(Fidelity.SUMMARY)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Layers whose runs are told one by one, in order."""
    told: list[str] = []
    call = LayerObserver.__call__

    def spy(self: Any, snapshot: TensorSnapshot) -> None:
        told.append(self._layer_id)
        call(self, snapshot)

    monkeypatch.setattr(LayerObserver, "__call__", spy)
    return told


@pytest.fixture
def scope(told: list[str]) -> Generator[ns.Scope]:
    """A scope whose worker has told already what a record costs it: before, nothing is noted."""
    with ns.Scope("notes", max_overhead_pct=1000.0, overhead_action="warn") as scope:
        warm = nn.Sequential(OrderedDict(warm=nn.Identity()))
        ns.Model.wrap(warm, name="warm").attach_probe("**", SUMMARY)
        warm(INPUT)
        assert ns.flush()
        budget = scope.recording.budget
        budget.overhead_pct  # noqa: B018  reads the clocks
        told.clear()
        yield scope


def records(scope: ns.Scope, layer: str | None = None) -> list[LayerRecord]:
    """What the scope has, but for the warming up."""
    return [
        record
        for record in scope.artifact.telemetry.layer_snapshots
        if record.model != "warm" and layer in (None, record.layer_id)
    ]


def watched(model: nn.Module | None = None) -> Any:
    model = model or make_net()
    ns.Model.wrap(model).attach_probe("**", SUMMARY)
    return model


def comparable(record: LayerRecord) -> tuple[Any, ...]:
    summary = record.summary
    assert summary is not None
    return (
        record.model, record.layer_id, record.step, record.shape, record.dtype, record.role, record.index,
        record.trace_id, record.span_id, record.fidelity, record.tensor, dict(record.attributes), summary,
    )  # fmt: skip


def _nobody_comes(_: object) -> None:
    """The worker does not hear of notes."""


def _without_end(budget: Budget) -> None:
    budget.allowance.left = 1e12


def test_what_is_noted_becomes_the_records_that_are_told_one_by_one(
    scope: ns.Scope, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same layers, steps, shapes, types, spans and statistics, in the same order."""
    inputs = [INPUT, INPUT[:1], INPUT.double().float() * 0 + float("nan"), INPUT * 3]
    model = watched()
    for value in inputs:
        model(value)
    layers = len(records(scope)) // len(inputs)
    assert len(told) == layers  # the first run of each, and no other
    quick = [comparable(record) for record in records(scope)]
    times = [record.time_unix_ns for record in records(scope)]
    assert times == sorted(times)

    told.clear()
    monkeypatch.setattr(notes, "_bound", [])
    slow_model = make_net()
    ns.Model.wrap(slow_model).attach_probe("**", ns.probes.LayerActivations(Fidelity.SUMMARY))
    ENGINE.drain()
    first = len(records(scope))
    for value in inputs:
        slow_model(value)
    assert len(told) == layers * len(inputs)
    slow = [comparable(record) for record in records(scope)[first:]]
    steps_apart = [(*row[:2], row[2] - len(inputs), *row[3:]) for row in slow]  # of one call, of one name
    assert list(map(repr, steps_apart)) == list(map(repr, quick))


def test_a_span_tells_of_noted_runs_as_of_others(scope: ns.Scope) -> None:
    """Aggregates, coverage and counts include them, whenever the span is asked."""
    model = watched()
    for _ in range(5):
        model(INPUT)
    root = scope.recording.root
    assert root is not None
    assert root.model_call is not None
    attributes = root.model_call.attributes()
    layers = attributes["neuronscope.layers.observed"]
    assert attributes["neuronscope.layers.skipped"] == 0
    assert attributes["neuronscope.layers.records"] >= 5 * (layers // 2)
    assert UNSETTLED.waiting == 0
    ran = {entry.layer: entry for entry in scope.recording.budget.coverage}
    assert all(entry.ran == entry.captured for entry in ran.values())
    assert max(entry.ran for entry in ran.values()) >= 5


def test_a_recomputation_is_told_and_marked(scope: ns.Scope, told: list[str]) -> None:
    """Of a layer whose other runs are noted."""
    model = watched()
    model(INPUT)
    told.clear()
    out = cast(Any, checkpoints).checkpoint(model, INPUT.clone().requires_grad_(), use_reentrant=False)
    assert not told
    out.sum().backward()
    assert told
    marked = [bool(record.attributes.get("recomputed")) for record in records(scope, told[0])]
    assert marked == [False, False, True]
    assert [record.step for record in records(scope, told[0])] == [0, 1, 2]


def test_what_is_no_plain_tensor_is_told(scope: ns.Scope, told: list[str]) -> None:
    """Strided views, subclasses, and tensors whose memory is gone: as before, by the long way."""

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Mine(torch.Tensor):
        pass

    model = watched(nn.Sequential(Odd()))
    model(torch.ones(4, 4))
    told.clear()
    for value in (torch.ones(4, 8)[:, ::2], torch.ones(4).as_subclass(Mine), torch.zeros(0, 4)):
        model(value)
        assert told.pop() == "0"
    gone = torch.ones(4)
    gone.untyped_storage().resize_(0)
    model(gone)
    assert told == ["0"]
    model(torch.ones(4, 4))
    assert told == ["0"]
    assert [record.step for record in records(scope, "0")] == [0, 1, 2, 3, 5]


def test_a_rank_is_told(scope: ns.Scope, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """While there are process groups no run is noted."""
    model = watched()
    model(INPUT)
    told.clear()
    groups: dict[Any, Any] = cast(Any, torch.distributed).distributed_c10d._pg_map
    monkeypatch.setitem(groups, "a group", ("gloo", None))
    model(INPUT)
    assert told
    monkeypatch.delitem(groups, "a group")
    told.clear()
    model(INPUT)
    assert not told


def test_another_scope_or_context_is_no_occasion_to_note(scope: ns.Scope, told: list[str]) -> None:
    """A permit holds where it was given; both scopes get what is theirs."""
    model = watched()
    model(INPUT)
    told.clear()
    with ns.Scope("inner", max_overhead_pct=1000.0, overhead_action="warn") as inner:
        model(INPUT)
        assert told
    own = inner.artifact.telemetry.layer_snapshots
    assert own
    assert all(record in records(scope) for record in own)
    assert inner.recording.root is not None
    assert {record.span_id for record in own} == {inner.recording.root.get_span_context().span_id}


def test_an_observer_beside_is_told_of_each_run(scope: ns.Scope, told: list[str]) -> None:
    """Where somebody has to be told, everybody is."""
    from neuronscope_instrumentation.torch import slots

    model = watched()
    model(INPUT)
    told.clear()
    seen: list[tuple[int, ...]] = []
    undo = slots.observe(model.first, lambda snapshot: seen.append(snapshot.shape))
    model(INPUT)
    assert told == ["first"]
    assert len(seen) == 1
    undo()
    told.clear()
    model(INPUT)
    assert not told


def test_threads_note_side_by_side(scope: ns.Scope) -> None:
    """Every run of every thread is on record once, with steps that are its own."""
    model = watched()

    def run() -> None:
        with torch.no_grad():
            for _ in range(50):
                model(INPUT)

    threads = [threading.Thread(target=ns.propagate(run)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.step for record in records(scope, "first")) == list(range(200))


def test_a_tight_budget_withholds_as_ever(told: list[str]) -> None:
    """Noted captures are paid for: with next to nothing to spend, most runs go by, and are counted."""
    model = make_net()
    with ns.Scope("tight", max_overhead_pct=0.01) as scope:
        watched(model)
        for _ in range(300):
            model(INPUT)
    budget = scope.recording.budget
    assert budget.skipped > 0
    ran = sum(entry.ran for entry in budget.coverage)
    captured = sum(entry.captured for entry in budget.coverage)
    assert captured == len(scope.artifact.telemetry.layer_snapshots)
    assert ran == captured + budget.skipped


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_notes_alone(
    scope: ns.Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the parent's to tell."""
    monkeypatch.setattr(ENGINE, "later", _nobody_comes)
    model = watched()
    model(INPUT)
    ENGINE.drain()
    model(INPUT)
    assert UNSETTLED.waiting > 0
    child = os.fork()
    if child == 0:
        os._exit(min(100, UNSETTLED.waiting))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    waiting = UNSETTLED.waiting
    assert waiting > 0
    UNSETTLED.settle()
    assert UNSETTLED.waiting == 0


def test_nothing_waits_for_ever_without_a_worker(
    scope: ns.Scope, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """So much is kept and no more; then runs are told again, and nothing is lost."""
    monkeypatch.setattr(ENGINE, "later", _nobody_comes)
    model = watched(nn.Sequential(nn.Identity()))
    runs = 9_000
    monkeypatch.setattr(Budget, "advance", _without_end)
    for _ in range(runs):
        model(INPUT)
    assert UNSETTLED.waiting < 8_400
    assert 1 <= len(told) <= 4
    assert [record.step for record in records(scope, "0")] == list(range(runs))
