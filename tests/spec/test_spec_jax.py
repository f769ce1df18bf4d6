"""The specification's JAX example, as printed, and the same with a function that was compiled before."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import neuronscope as ns
from neuronscope import joining
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity


class TransformerBlock(nn.Module):
    """The specification's model."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        # NeuronScope intercepts here transparently
        x = nn.SelfAttention(4)(x)
        x = nn.LayerNorm()(x)
        return nn.Dense(256)(x)


# flax 0.12 warns of the layer that the specification uses.
pytestmark = pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated soon:DeprecationWarning")
LAYERS = ["Dense_0", "LayerNorm_0", "SelfAttention_0"]


@pytest.fixture(autouse=True)
def no_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What scopes watch is part of the key of compiled code: models of other tests would come and go."""
    monkeypatch.setattr(joining.MEMBERS, "_models", {})


def test_the_jax_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed: nothing is attached, and each of the block's layers has a record of the compiled run."""
    monkeypatch.chdir(tmp_path)
    inputs = jnp.ones((1, 16, 64))
    model = TransformerBlock()
    ns_model = ns.Model.wrap(model, adapter="jax")

    # JAX adapter uses traced checkpoints — no Python-level hooks needed
    with ns.Scope("jax_inference") as scope:
        params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 16, 64)))
        output = jax.jit(model.apply)(params, inputs)

    scope.save("jax_run.nsz")

    assert ns_model.adapter_name == "jax"
    assert output.shape == (1, 16, 256)
    loaded = ns.load(tmp_path / "jax_run.nsz")
    records = loaded.telemetry.layer_snapshots
    assert sorted(record.layer_id for record in records) == LAYERS
    assert {record.fidelity for record in records} == {Fidelity.SUMMARY}
    by_layer = {record.layer_id: record for record in records}
    dense = by_layer["Dense_0"]
    assert dense.shape == (1, 16, 256)
    assert dense.summary is not None
    values = np.asarray(output, np.float64)
    assert dense.summary.mean == pytest.approx(values.mean(), abs=1e-6)
    assert dense.summary.std == pytest.approx(values.std(), rel=1e-6)
    (span,) = [span for span in loaded.telemetry.spans if span.name == "jax_inference"]
    assert span.attributes[names.MODEL_NAME] == "TransformerBlock"
    assert sorted(span.attributes[names.LAYERS_IDS]) == LAYERS  # type: ignore[arg-type]
    assert [layer.id for layer in ns_model.layers] == [
        "Dense_0", "LayerNorm_0",
        *(f"SelfAttention_0.{part}" for part in ("key", "out", "query", "value")),
    ]  # fmt: skip


def test_the_example_with_a_function_compiled_before_the_scope() -> None:
    """Nine of nine records with one more trace, silence outside, and the same bits everywhere."""
    traces: list[int] = []
    inputs = jnp.linspace(-1, 1, 1024).reshape(1, 16, 64)
    model = TransformerBlock()
    ns_model = ns.Model.wrap(model, adapter="jax")
    params = model.init(jax.random.PRNGKey(0), inputs)

    def forward(params: Any, x: Any) -> Any:
        traces.append(1)
        return model.apply(params, x)

    run = jax.jit(forward)
    expected = np.asarray(run(params, inputs)).tobytes()
    for _ in range(2):
        with ns.Scope("compiled before", max_overhead_pct=1000) as scope:
            ns_model.attach_probe(LAYERS)
            outputs = [np.asarray(run(params, inputs)).tobytes() for _ in range(3)]
        records = scope.artifact.telemetry.layer_snapshots
        assert len(records) == 9
        assert sorted({(r.layer_id, r.step) for r in records}) == [
            (name, n) for name in LAYERS for n in range(3)
        ]
        assert all(record.tensor is not None for record in records)
        assert outputs == [expected] * 3
    assert np.asarray(run(params, inputs)).tobytes() == expected
    assert len(traces) == 2
    assert len(scope.artifact.telemetry.layer_snapshots) == 9
