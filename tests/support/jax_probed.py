"""Runs a JAX model under one probe."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import neuronscope as ns

jax: Any = importlib.import_module("jax")  # much of it has no types


def calling(function: Any, *args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*args, **options)


def probed(
    model: Any, layers: str | list[str], probe: Any, run: Callable[[], Any], **wrap: Any
) -> tuple[Any, list[ns.LayerRecord], dict[str, Any]]:
    """What a run gives, its records, and the scope's attributes."""
    wrapped = ns.Model.wrap(model, **wrap)
    with ns.Scope("probes", max_overhead_pct=1000, overhead_action="warn") as scope:
        wrapped.attach_probe(layers, probe)
        output = run()
    telemetry = scope.artifact.telemetry
    return output, list(telemetry.layer_snapshots), dict(telemetry.spans[-1].attributes)


def array_of(record: ns.LayerRecord) -> NDArray[Any]:
    assert record.tensor is not None
    return record.tensor.numpy()


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
