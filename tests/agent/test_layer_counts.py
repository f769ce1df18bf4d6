"""Layers are counted as layers, however many probes look at each of them."""

from __future__ import annotations

import io

import torch
from rich.console import Console
from torch import nn

import neuronscope as ns
from neuronscope.artifact import Artifact, Telemetry
from neuronscope.cli.view import show
from neuronscope.signals import names


def observed(layers: int) -> Artifact:
    """A model whose every layer is looked at by two probes, run forward and back."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    wrapped = ns.Model.wrap(model)
    with ns.Scope("training", max_overhead_pct=1000) as scope:
        for kind in (ns.probes.LayerActivations, ns.probes.NumericHealth, ns.probes.LayerGradients):
            wrapped.attach_probe(layers=["*"], kind=kind)
        model(torch.ones(1, 4)).sum().backward()
    return scope.artifact


def shown(artifact: Artifact, *, all_layers: bool = False) -> str:
    """What `view` prints."""
    console = Console(file=io.StringIO(), width=200)
    show(console, artifact, all_layers=all_layers)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_two_layers_with_three_probes_are_two_layers() -> None:
    """Each probe's runs are told by themselves; the layers are two all the same."""
    artifact = observed(2)
    (span,) = artifact.telemetry.spans
    assert span.attributes[names.LAYERS_OBSERVED] == 2
    assert span.attributes[names.LAYERS_RECORDS] == 6
    told = span.attributes[names.LAYERS_IDS]
    assert isinstance(told, tuple | list)
    assert len(told) == 6
    assert "2 layers, 6 " in shown(artifact)


def test_what_view_leaves_out_is_called_what_it_is() -> None:
    """Lines, where some are a layer's gradients; layers, where each line is one."""
    artifact = observed(5)
    assert "and 2 more lines (--all-layers shows them)" in shown(artifact)
    assert "more" not in shown(artifact, all_layers=True)
    artifact = observed(9)
    outputs = [record for record in artifact.telemetry.layer_snapshots if record.role == "output"]
    alone = Artifact(Telemetry(artifact.telemetry.spans, outputs))
    assert "and 1 more layer (--all-layers shows it)" in shown(alone)
