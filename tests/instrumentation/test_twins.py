"""Twins: one transformer in each runtime, with the same weights, gives the same summary of each layer."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flax import nnx

import neuronscope as ns
import twins
from neuronscope.signals.tensors import TensorSummary


def run_torch(model: Any) -> Any:
    return model(torch.from_numpy(twins.TOKENS))


def run_jax(model: Any) -> Any:
    return model(twins.TOKENS)


def run_jax_compiled(model: Any) -> Any:
    return nnx.jit(lambda model, tokens: model(tokens))(model, twins.TOKENS)


TWINS: dict[str, tuple[Callable[[twins.Weights], Any], Callable[[Any], Any]]] = {
    "torch": (twins.TorchTwin, run_torch),
    "jax": (twins.JaxTwin, run_jax),
    "jax, compiled": (twins.JaxTwin, run_jax_compiled),
}


def summaries(name: str, fidelity: str) -> dict[str, TensorSummary]:
    """The summary of each layer of a twin."""
    make, run = TWINS[name]
    model = make(twins.make_weights())
    with ns.Scope("twin", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe(twins.LAYERS, fidelity=fidelity)
        run(model)
    records = scope.artifact.telemetry.layer_snapshots
    assert sorted(record.layer_id for record in records) == sorted(twins.LAYERS)
    return {record.layer_id: record.summary for record in records if record.summary is not None}


@pytest.fixture(scope="module")
def reference() -> dict[str, TensorSummary]:
    return summaries("torch", "summary")


@pytest.mark.parametrize("fidelity", ["summary", "full"])
@pytest.mark.parametrize("name", list(TWINS)[1:])
def test_twins_give_the_same_summaries(name: str, fidelity: str, reference: dict[str, TensorSummary]) -> None:
    """To float32's accuracy, layer by layer; counts exactly."""
    found = summaries(name, fidelity)
    for layer, wanted in reference.items():
        got = found[layer]
        scale = wanted.abs_max
        assert (got.count, got.nan_count, got.inf_count) == (wanted.count, 0, 0)
        assert got.zero_count == wanted.zero_count, layer
        for statistic in ("mean", "std", "min", "max", "abs_max"):
            expected = pytest.approx(getattr(wanted, statistic), rel=1e-4, abs=2e-6 * scale)
            assert getattr(got, statistic) == expected, (layer, statistic)
        assert got.l2 == pytest.approx(wanted.l2, rel=1e-5), layer
