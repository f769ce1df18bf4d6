"""The specification's platform example: a strict budget that only warns, relaxed for one scope."""

from __future__ import annotations

import logging

import pytest
import torch

import neuronscope as ns
import tinymodels
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity


def test_the_platform_example() -> None:
    """The platform's budget holds everywhere but in the scope that brings its own."""
    model = tinymodels.llama(layers=2)
    inputs = torch.arange(3, 11)[None]

    platform = ns.Platform(
        max_overhead_pct=5,  # strict: abort if overhead > 5%
        overhead_action="warn",  # "warn" | "reduce" | "abort"
    )

    # Or override per-scope for batch profiling runs where overhead is acceptable
    with ns.Scope("profiling_run", max_overhead_pct=50) as scope:
        # Overhead limit is relaxed for this scope only
        output = model.generate(inputs, max_new_tokens=3)

    assert output.shape == (1, 11)
    assert platform.settings.max_overhead_pct == 5
    assert platform.settings.overhead_action == "warn"
    assert scope.overhead_pct < 50
    assert scope.artifact.telemetry.spans[0].name == "profiling_run"


def test_the_default_budget_is_fifteen_per_cent() -> None:
    """As the specification says; and it is checked like any setting."""
    assert Settings().max_overhead_pct == 15
    with pytest.raises(ValueError, match="max_overhead_pct"):
        ns.Platform(max_overhead_pct=-1)
    with pytest.raises(ValueError, match="overhead_action"):
        ns.Platform(overhead_action="panic")  # type: ignore[arg-type]


class Costly(torch.nn.Module):
    """A layer whose output costs far more to copy than to make."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(2_000, 1_000)


def run_beyond(budget_pct: float, action: str, forwards: int = 400) -> ns.Scope:
    """Observe in full what takes no time: far beyond any budget."""
    model = torch.nn.Sequential(Costly())
    ns_model = ns.Model.wrap(model)
    scope = ns.Scope("costly", max_overhead_pct=budget_pct, overhead_action=action)  # type: ignore[arg-type]
    with scope:
        ns_model.attach_probe(layers=["0"], kind=ns.probes.LayerActivations)
        for _ in range(forwards):
            model(torch.ones(1, 1))
    return scope


def test_beyond_twice_the_budget_the_scope_ends_with_an_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`warn` withholds nothing: a warning with percentage and probe, then the exception."""
    with caplog.at_level(logging.WARNING, "neuronscope"), pytest.raises(ns.OverheadBudgetExceeded) as raised:
        run_beyond(5, "warn")
    assert "LayerActivations" in caplog.text
    assert "budget is 5 %" in caplog.text
    assert "LayerActivations" in str(raised.value)


def test_reducing_withholds_captures_and_the_scope_ends_well() -> None:
    """`reduce` takes full tensors while they are affordable, and then fewer and less."""
    scope = run_beyond(40, "reduce")
    records = scope.artifact.telemetry.layer_snapshots
    assert records[0].fidelity is Fidelity.FULL
    assert len(records) < 400
    assert scope.artifact.telemetry.spans[0].attributes[names.FIDELITY_REASON] == "budget"
