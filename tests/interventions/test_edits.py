"""Edits that stay: in plain calls and traces, switchable, named on spans, harmless when they fail."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.interventions import Ablate, Clamp, NanGuard, Scale, Steer, WrongValueError, in_force
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue
from tinymodels import llama
from tracednets import Blocks, X, blocks, left_on


@pytest.fixture
def net() -> Blocks:
    """A stack of three blocks."""
    return blocks()


def marks(span: ns.SpanRecord) -> tuple[Any, ...]:
    """The edits that a span names."""
    told: Any = span.attributes.get(names.EDITS, ())
    return tuple(told)


def test_an_edit_is_in_force_in_every_call_until_removed(net: Blocks) -> None:
    """Plain calls and traces alike; tuples keep their rest."""
    model = ns.Model.wrap(net)
    plain = net(X)
    edit = model.edits.add("silence", "h.2", Ablate())
    expected = net.head(torch.zeros(2, 8))
    assert torch.equal(net(X), expected)
    with model.trace(X) as t:
        hidden, rest = t.h[2].output
        assert not hidden.any()
        assert rest.any()
    assert torch.equal(t.result, expected)
    assert edit.runs == 2
    model.edits.remove("silence")
    assert torch.equal(net(X), plain)
    assert not left_on(net)


def test_edits_are_switched_at_run_time(net: Blocks) -> None:
    """The next call sees it."""
    model = ns.Model.wrap(net)
    plain = net(X)
    model.edits.add("double", "head", Scale(2.0))
    assert torch.equal(net(X), plain * 2)
    model.edits["double"].enabled = False
    assert torch.equal(net(X), plain)
    model.edits["double"].enabled = True
    assert torch.equal(net(X), plain * 2)
    model.edits.clear()
    assert len(model.edits) == 0
    assert not left_on(net)


def test_metrics_tell_which_edits_change_answers(net: Blocks) -> None:
    """On, off, and removed: a page shows what a running process does to its model."""

    def told() -> dict[str, float | HistogramValue]:
        return {
            dict(point.labels)["edit"]: point.value
            for family in ENGINE.metrics.collect().families
            if family.metric is names.EDITS_ACTIVE
            for point in family.points
        }

    with ns.Platform():
        model = ns.Model.wrap(net)
        edit = model.edits.add("double", "head", Scale(2.0), version="3")
        assert told()["double@3"] == 1
        edit.enabled = False
        assert told()["double@3"] == 0
        edit.enabled = True
        model.edits.remove("double")
        assert told()["double@3"] == 0


def test_ready_made_changes() -> None:
    """Steer, scale, clamp, ablate, guard."""
    x = torch.tensor([[1.0, -2.0, 3.0]])
    assert Steer([1, 0, 0], 2.0)(x).tolist() == [[3, -2, 3]]
    assert Steer(torch.ones(3, dtype=torch.float64))(x.half()).dtype == torch.float16
    assert Scale(0.5)(x).tolist() == [[0.5, -1, 1.5]]
    assert Clamp(-1, 1)(x).tolist() == [[1, -1, 1]]
    assert Clamp(low=0)(x).tolist() == [[1, 0, 3]]
    assert Ablate([1])(x).tolist() == [[1, 0, 3]]
    assert Ablate([0, 2], to=[7.0, 8.0])(x).tolist() == [[7, -2, 8]]
    assert Ablate(to=[1.0, 2.0, 3.0])(x).tolist() == [[1, 2, 3]]
    bad = torch.tensor([[float("nan"), float("inf"), 1.0]])
    assert NanGuard()(bad)[0, 0] == 0
    assert NanGuard(bound=10.0)(bad).tolist() == [[0, 10, 1]]
    assert x.tolist() == [[1, -2, 3]]


@pytest.mark.parametrize(
    "sites", ["h.0", ["h.0", "again.0"], ["h.*", "**.0"], ["again.*"], ["blocks.0", "h.0"]], ids=str
)
def test_a_module_with_several_paths_is_edited_once_in_each_call(sites: str | list[str], net: Blocks) -> None:
    """However many of them an edit names; a pattern finds it by each of them."""
    net.again = nn.ModuleList([net.h[0]])
    model = ns.Model.wrap(net)
    model.alias("blocks", "h")
    calls: list[torch.Tensor] = []
    shared = net.h[0](X)[0] * 2

    def double(hidden: torch.Tensor) -> torch.Tensor:
        calls.append(hidden)
        return hidden * 2

    with torch.no_grad():
        edit = model.edits.add("double", sites, double)
        assert torch.equal(net.again[0](X)[0], shared)
        calls.clear()
        with model.trace(X) as t:
            assert torch.equal(t["again.0"].first, shared)
    assert len(calls) == len(set(edit.sites) & {"h.0", "again.0"}) + len({"h.1", "h.2"} & set(edit.sites))
    model.edits.clear()
    assert not left_on(net)


def test_several_edits_apply_in_their_order_and_one_name_is_one_edit(net: Blocks) -> None:
    """A new version replaces the old one."""
    model = ns.Model.wrap(net)
    plain = net(X)
    model.edits.add("a", "head", lambda h: h + 1)
    model.edits.add("b", "head", Scale(3.0))
    assert torch.equal(net(X), (plain + 1) * 3)
    model.edits.add("a", "head", lambda h: h + 2, version="2")
    assert torch.equal(net(X), plain * 3 + 2)
    assert [edit.label for edit in model.edits] == ["a@2", "b@1"]
    assert {edit.label for edit in in_force()} >= {"a@2", "b@1"}
    assert "b@1 (on) at head: 2 runs" in repr(model.edits)
    model.edits.clear()
    assert not in_force()


def test_spans_carry_name_and_version(net: Blocks) -> None:
    """Of the edits that took part, and of no others."""
    model: Any = ns.Model.wrap(net)
    model.edits.add("calm", "h.*", Scale(0.5), version="7")
    model.edits.add("off", "head", Scale(0.5)).enabled = False
    with ns.Scope("edited") as scope:
        net(X)
    model.edits.clear()
    with ns.Scope("plain") as other:
        net(X)
    assert marks(scope.artifact.telemetry.spans[0]) == ("calm@7",)
    assert names.EDITS not in other.artifact.telemetry.spans[0].attributes


def test_a_model_call_s_span_is_marked() -> None:
    """What `generate` tells of itself."""
    model = llama(layers=2)
    ns.instrument("transformers")
    handle = ns.Model.wrap(model)
    handle.edits.add("calm", "model.layers.1", Scale(1.0))
    with ns.Scope("s") as scope:
        model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=False)
    handle.edits.clear()
    spans = [span for span in scope.artifact.telemetry.spans if span.name != "s"]
    assert [marks(span) for span in spans] == [("calm@1",)]


def test_a_failing_edit_leaves_the_output_and_is_counted(
    net: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service gets what it would get without."""
    model = ns.Model.wrap(net)
    plain = net(X)
    model.edits.add("broken", "head", lambda _: 1 / 0)
    model.edits.add("wrong", "h.0", lambda _: torch.ones(3))
    monkeypatch.setattr(GUARD, "reraise", False)
    assert torch.equal(net(X), plain)
    assert GUARD.faults["edit:broken", "ZeroDivisionError"] == 1
    assert model.edits["broken"].runs == 0
    assert GUARD.faults["edit:h.0", "WrongValueError"] == 1
    monkeypatch.setattr(GUARD, "reraise", True)
    with pytest.raises(WrongValueError, match="shape"):
        net(X)
    model.edits.clear()


@pytest.mark.parametrize(
    ("sites", "change", "kind"),
    [("head", 2.0, TypeError), ([], Scale(2), ValueError)],
    ids=["change", "sites"],
)
def test_what_can_be_no_edit_is_refused_when_it_is_added(
    sites: Any, change: Any, kind: type[Exception], net: Blocks
) -> None:
    """Not by the guard in every call of the service."""
    model = ns.Model.wrap(net)
    with pytest.raises(kind):
        model.edits.add("slip", sites, change)
    assert "slip" not in model.edits
    assert not left_on(net)


def test_unknown_sites_change_nothing(net: Blocks) -> None:
    """All or nothing."""
    model = ns.Model.wrap(net)
    with pytest.raises(ns.LayerNotFoundError):
        model.edits.add("x", ["h.0", "nowhere"], Scale(2))
    assert "x" not in model.edits
    assert not left_on(net)


def test_copies_of_an_edited_model_are_plain(net: Blocks) -> None:
    """An edit belongs to the model that it was put into."""
    model = ns.Model.wrap(net)
    plain = net(X)
    model.edits.add("double", "head", Scale(2.0))
    twin = copy.deepcopy(net)
    assert torch.equal(twin(X), plain)
    assert torch.equal(net(X), plain * 2)
    model.edits.clear()


def test_edits_and_probes_share_a_module(net: Blocks) -> None:
    """A probe sees the edited value; either may leave first."""
    model = ns.Model.wrap(net)
    edit = model.edits.add("seven", "head", lambda h: h * 0 + 7)
    with ns.Scope("s") as scope:
        model.attach_probe("head")
        net(X)
    record = scope.artifact.telemetry.layer_snapshots[0]
    assert record.summary is not None
    assert record.summary.max == 7
    assert torch.equal(net(X), torch.full((2, 8), 7.0))
    edit.remove()
    assert not left_on(net)


def test_an_edit_is_in_force_at_once_where_a_trace_is(net: Blocks) -> None:
    """A site that has been asked for before it came gives what it makes of the output."""
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        head = t.head
        head.edit(partial(torch.add, other=1))
        model.edits.add("seven", "head", lambda out: out * 0 + 7)
        assert torch.equal(head.output, torch.full((2, 8), 8.0))
    model.edits.clear()
    assert not left_on(net)


def test_gradients_flow_through_edits() -> None:
    """They are part of the graph."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    model = ns.Model.wrap(net)
    model.edits.add("zero", "0", Scale(0.0))
    net(X).sum().backward()
    weight: Any = net[0].weight
    assert not weight.grad.any()
    model.edits.clear()


def test_what_edits_cost_is_accounted(net: Blocks) -> None:
    """The governor knows, and never withholds an edit."""
    model = ns.Model.wrap(net)
    model.edits.add("x", "h.*", Scale(2.0))
    with ns.Scope("s") as scope:
        for _ in range(40):
            net(X)
    (coverage,) = (event for event in scope.artifact.events if event.name == "neuronscope.coverage")
    told: Any = coverage.attributes
    assert told["service_ms"][list(told["probes"]).index("edits")] > 0
    assert model.edits["x"].runs == 120
    model.edits.clear()
