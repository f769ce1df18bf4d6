"""Runs a PyTorch model under one probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import neuronscope as ns

FULL = 1000.0  # per cent: the largest budget there is; and beyond it, warn only


def records(run: Callable[[ns.Model], object], model: nn.Module, **probe: Any) -> list[ns.LayerRecord]:
    """The layer records of a run with one probe."""
    with ns.Scope("test", max_overhead_pct=FULL, overhead_action="warn") as scope:
        wrapped = ns.Model.wrap(model)
        wrapped.attach_probe(**probe)
        run(wrapped)
    return list(scope.artifact.telemetry.layer_snapshots)


def skipped(scope: ns.Scope) -> tuple[int, str]:
    """How many runs a scope's root span counts as skipped, and why."""
    (root,) = scope.artifact.telemetry.spans
    return (
        int(str(root.attributes["neuronscope.layers.skipped"])),
        str(root.attributes["neuronscope.fidelity.reason"]),
    )


def array_of(record: ns.LayerRecord) -> Any:
    assert record.tensor is not None
    return record.tensor.numpy()
