"""Plans: interventions as data, checked before anything runs."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronscope as ns
from neuronscope.interventions import Plan, PlanError
from neuronscope.signals import names
from tracednets import Blocks, X, blocks, left_on


@pytest.fixture
def net() -> Blocks:
    """A stack of three blocks."""
    return blocks()


def plan(*steps: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """A plan with these steps."""
    return {"neuronscope_plan": 1, "steps": list(steps), **rest}


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ({"op": "scale", "factor": 2}, lambda h: h * 2),
        ({"op": "add", "vector": [1.0] * 8, "scale": 0.5}, lambda h: h + 0.5),
        ({"op": "zero"}, lambda h: h * 0),
        ({"op": "mean", "vector": [float(i) for i in range(8)]}, lambda h: torch.arange(8.0).expand_as(h)),
        ({"op": "clamp", "low": 0.1, "high": 0.2}, lambda h: h.clamp(0.1, 0.2)),
        ({"op": "replace", "value": [[1.0] * 8] * 2}, torch.ones_like),
        ({"op": "zero", "rows": [1]}, lambda h: h * torch.tensor([[1.0], [0.0]])),
        ({"op": "zero", "units": [0, 3]}, lambda h: h * torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 1])),
        (
            {"op": "zero", "rows": [0], "units": [0, 3]},
            lambda h: torch.stack([h[0] * torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 1]), h[1]]),
        ),
    ],
)
def test_operations_do_what_they_say(net: Blocks, step: dict[str, Any], change: Any) -> None:
    """Each as the same edit by hand."""
    result = ns.Model.wrap(net).run_plan(plan({"site": "h.1", **step}), X)
    hidden = change(net.h[1](net.h[0](X)[0])[0])
    assert torch.allclose(result.output, net.head(net.h[2](hidden)[0]))
    assert not left_on(net)


def test_reads_are_kept_at_their_place_in_the_order(net: Blocks) -> None:
    """Before and after a change of the same site; for patterns and repeated runs."""
    result = ns.Model.wrap(net).run_plan(
        plan(
            {"site": "head", "op": "read"},
            {"site": "head", "op": "scale", "factor": 0},
            {"site": "h.*", "op": "read"},
        ),
        X,
        3,
        method="rollout",
    )
    assert list(result.reads) == ["head", "h.0", "h.1", "h.2"]
    assert [len(kept) for kept in result.reads.values()] == [3, 3, 3, 3]
    assert torch.equal(result.reads["head"][0], net(X))
    assert not result.output.any()


def test_files_come_from_the_plan_s_folder_only(net: Blocks, tmp_path: Path) -> None:
    """No path leads out, and without a folder there are no files."""
    np.save(tmp_path / "v.npy", np.ones(8, np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    written = tmp_path / "plan.json"
    written.write_text(json.dumps(plan({"site": "head", "op": "add", "vector": {"file": "v.npy"}})))
    model = ns.Model.wrap(net)
    assert torch.equal(model.run_plan(Plan.load(written), X).output, net(X) + 1)
    with pytest.raises(PlanError, match="may not read files"):
        model.run_plan(written.read_text(), X)
    (tmp_path / "inner").mkdir()
    for name, why in (
        ("../v.npy", "not in the plan's folder"),
        (str(tmp_path / "v.npy"), "not in the plan's folder"),
        ("none.npy", "there is no"),
        (3, "by its name"),
    ):
        bad = plan({"site": "head", "op": "add", "vector": {"file": name}})
        with pytest.raises(PlanError, match=why):
            model.run_plan(Plan.of(bad, files=tmp_path / "inner"), X)
    (tmp_path / "inner" / "link.npy").symlink_to(tmp_path / "v.npy")
    with pytest.raises(PlanError, match="not in the plan's folder"):
        model.run_plan(
            Plan.of(plan({"site": "head", "op": "add", "vector": {"file": "link.npy"}}), tmp_path / "inner"),
            X,
        )
    with pytest.raises(PlanError, match="cannot be read"):
        model.run_plan(
            Plan.of(plan({"site": "head", "op": "add", "vector": {"file": "objects.npy"}}), tmp_path), X
        )
    assert not left_on(net)


def test_patching_from_a_recording(net: Blocks, tmp_path: Path) -> None:
    """A layer of a good run put into a bad one gives the good result from there on."""
    model = ns.Model.wrap(net)
    with ns.Scope("good", max_overhead_pct=1000) as scope:
        model.attach_probe("h.1", fidelity="full")
        good = net(X)
    scope.save(tmp_path / "good.nsz")
    bad = X * 3 + 1
    patch = plan({"site": "h.1", "op": "patch", "artifact": "good.nsz"})
    assert not torch.equal(net(bad), good)
    assert torch.allclose(model.run_plan(Plan.of(patch, tmp_path), bad).output, good)
    missing = plan({"site": "h.1", "op": "patch", "artifact": "good.nsz", "step": 5})
    with pytest.raises(PlanError, match="no full tensor"):
        model.run_plan(Plan.of(missing, tmp_path), X)


def test_a_recording_carries_the_plan(net: Blocks, tmp_path: Path) -> None:
    """As an attribute of the span in which it ran; read back, it can be run again."""
    steps = plan({"site": "h.0", "op": "scale", "factor": 0.5}, name="halve")
    model = ns.Model.wrap(net)
    with ns.Scope("s") as scope:
        first = model.run_plan(steps, X)
    scope.save(tmp_path / "run.nsz")
    spans = ns.load(tmp_path / "run.nsz").telemetry.spans
    carried = [str(span.attributes[names.PLAN]) for span in spans if names.PLAN in span.attributes]
    assert [span.name for span in spans if names.PLAN in span.attributes] == ["plan halve"]
    assert json.loads(carried[0]) == steps
    assert torch.equal(model.run_plan(carried[0], X).output, first.output)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("{", "not JSON"),
        ({"steps": []}, "neuronscope_plan"),
        (plan(), "list of steps"),
        ({**plan({"site": "h.0", "op": "zero"}), "code": "x"}, r"not \['code'\]"),
        (plan("zero"), "step 0 is not an object"),  # type: ignore[arg-type]  # that is the point
        (plan({"op": "zero"}), "step 0 has no site"),
        (
            plan({"site": "h.0", "op": "zero"}, {"site": "h.0", "op": "explode"}),
            "step 1: the operation 'explode'",
        ),
        (plan({"site": "h.0", "op": "scale"}), r"needs \['factor'\]"),
        (plan({"site": "h.0", "op": "zero", "factor": 1}), r"cannot have \['factor'\]"),
        (plan({"site": "h.0", "op": "scale", "factor": "2"}), "factor is a number"),
        (plan({"site": "h.0", "op": "zero", "units": "all"}), "units is a list"),
        (plan({"site": "h.0", "op": "add", "vector": ["a"]}), "vector is a list of numbers"),
        (plan({"site": "h.0", "op": "patch", "artifact": 3}), "artifact is a text"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_runs(told: Any, why: str) -> None:
    """With the step, and what it needs."""
    with pytest.raises(PlanError, match=why):
        Plan.of(told)


def test_sites_and_shapes_are_checked_against_the_model(net: Blocks) -> None:
    """Unknown sites, values of another shape."""
    model = ns.Model.wrap(net)
    with pytest.raises(PlanError, match=r"step 0 \(zero\).*nowhere"):
        model.run_plan(plan({"site": "nowhere", "op": "zero"}), X)
    with pytest.raises(PlanError, match=r"\(1,\) for \(2, 8\)"):
        model.run_plan(plan({"site": "head", "op": "replace", "value": [1.0]}), X)
    with pytest.raises(PlanError, match=r"step 0 \(add at 'head'\), on hidden states of shape \(2, 8\)"):
        model.run_plan(plan({"site": "head", "op": "add", "vector": [1.0, 2.0]}), X)
    with pytest.raises(PlanError, match=r"step 1 \(zero at 'head'\).*index 9 is out of bounds"):
        model.run_plan(plan({"site": "head", "op": "read"}, {"site": "head", "op": "zero", "units": [9]}), X)
    with pytest.raises(PlanError, match="units cannot be told apart"):
        model.run_plan(plan({"site": "head", "op": "zero", "positions": [0], "units": [0]}), X)
    assert not left_on(net)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "site": st.sampled_from(["h.0", "head", "", "x"]),
                "op": st.sampled_from(["zero", "add", "patch", "q"]),
            },
            optional=dict.fromkeys(("vector", "units", "rows", "artifact", "step", "scale"), json_values),
        ),
        max_size=3,
    )
)
def test_any_json_is_a_plan_or_refused(steps: list[dict[str, Any]]) -> None:
    """Nothing else comes out of the check."""
    try:
        checked = Plan.of(json.dumps(plan(*steps)))
    except PlanError:
        return
    assert Plan.of(checked.to_json()).steps == checked.steps
