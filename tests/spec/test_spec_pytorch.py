"""The specification's PyTorch example, on a Llama of 32 small blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import neuronscope as ns
import tinymodels

NEW_TOKENS = 5


@pytest.mark.parametrize("instrumented", [False, True])
def test_the_pytorch_example(tmp_path: Path, capsys: pytest.CaptureFixture[str], instrumented: bool) -> None:
    """As printed in the specification: with and without `ns.instrument`, one record per layer and step."""
    if instrumented:
        ns.instrument("transformers")
    model = tinymodels.llama(layers=32)
    input_ids = torch.arange(3, 11)[None]
    path = tmp_path / "llama_run.nsz"

    # Wrap with NeuronScope — adapter auto-selected as "torch"
    ns_model = ns.Model.wrap(model)
    print(f"Adapter: {ns_model.adapter_name}")  # "torch"
    print(f"Layers:  {len(ns_model.layers)}")

    # Attach layer activation probes at specific layers
    with ns.Scope("llama_inference", max_overhead_pct=1000) as scope:
        ns_model.attach_probe(
            layers=["model.layers.0", "model.layers.15", "model.layers.31"],
            kind=ns.probes.LayerActivations,
        )
        output = model.generate(input_ids, max_new_tokens=NEW_TOKENS)

    artifact = scope.save(path)
    print(f"Recorded {len(artifact.telemetry.layer_snapshots)} layer snapshots")

    steps = output.shape[1] - input_ids.shape[1]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Adapter: torch"
    assert printed[-1] == f"Recorded {3 * steps} layer snapshots"
    assert len(ns_model.layers) > 200
    records = artifact.telemetry.layer_snapshots
    assert {record.layer_id for record in records} == {f"model.layers.{i}" for i in (0, 15, 31)}
    assert all(record.tensor is not None for record in records)
    assert all("_call_impl" not in vars(module) for module in model.modules())

    loaded = ns.load(path)
    assert [(r.layer_id, r.step, r.shape, r.summary) for r in loaded.telemetry.layer_snapshots] == [
        (r.layer_id, r.step, r.shape, r.summary) for r in records
    ]
    for stored, live in zip(loaded.telemetry.layer_snapshots, records, strict=True):
        assert stored.tensor is not None
        assert live.tensor is not None
        assert (stored.tensor.numpy() == live.tensor.numpy()).all()
    assert len(loaded.llm_spans) == instrumented


def test_the_pytorch_example_fits_the_default_budget(tmp_path: Path) -> None:
    """Nothing is relaxed, as printed: each of the three layers is recorded, and the first step in full."""
    model = tinymodels.llama(layers=32)
    input_ids = torch.arange(3, 11)[None]
    ns_model = ns.Model.wrap(model)
    with ns.Scope("llama_inference") as scope:
        ns_model.attach_probe(
            layers=["model.layers.0", "model.layers.15", "model.layers.31"],
            kind=ns.probes.LayerActivations,
        )
        model.generate(input_ids, max_new_tokens=NEW_TOKENS)
    artifact = scope.save(tmp_path / "llama_run.nsz")
    records = artifact.telemetry.layer_snapshots
    assert {record.layer_id for record in records} == {f"model.layers.{i}" for i in (0, 15, 31)}
    assert records[0].tensor is not None


def test_snapshots_share_no_memory_and_no_graph_with_the_model() -> None:
    """Tensors are detached host copies: what the model does next does not change them."""
    layer = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(layer, torch.nn.ReLU(inplace=True))
    inputs = torch.linspace(-1, 1, 8).reshape(2, 4)
    expected = layer(inputs).detach().numpy().copy()
    with ns.Scope("training", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe(layers=["0"], kind=ns.probes.LayerActivations)
        model(inputs).sum().backward()
    (record,) = scope.artifact.telemetry.layer_snapshots
    assert record.tensor is not None
    assert (record.tensor.numpy() == expected).all()
    assert layer.weight.grad is not None
