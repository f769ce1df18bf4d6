"""Run by `test_jax_devices.py` in a process with two devices: what is recorded of code on both."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
from flax import nnx
from jax import sharding

import jaxnets
import neuronscope as ns
from jaxnets import ROWS

P: Any = sharding.PartitionSpec  # JAX leaves it without types


def main() -> None:
    """Print what each way to use two devices gave."""
    mesh = jax.make_mesh((2,), ("d",))
    model: Any
    model, variables = jaxnets.linen()
    net = jaxnets.NnxNet()
    graph, state = nnx.split(net)
    rows = ROWS[:2]
    spread = jax.device_put(rows, sharding.NamedSharding(mesh, P("d")))
    mapped = jax.shard_map(model.apply, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))
    over = jax.pmap(model.apply, in_axes=(None, 0))
    layered = jax.shard_map(
        lambda s, x: nnx.merge(graph, s)(x), mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d")
    )
    ways: dict[str, tuple[Any, Any]] = {
        "jit over sharded rows": (model, lambda: jax.jit(model.apply)(variables, spread)),
        "shard_map": (model, lambda: jax.jit(mapped)(variables, spread)),
        "shard_map, eager": (model, lambda: mapped(variables, spread)),
        "shard_map, grad": (model, lambda: jax.jit(jax.grad(lambda x: mapped(variables, x).sum()))(spread)),
        "pmap": (model, lambda: over(variables, rows[:, None])),
        "shard_map, nnx": (net, lambda: jax.jit(layered)(state, spread)),
    }
    found: dict[str, Any] = {}
    for way, (watched, run) in ways.items():
        expected = np.asarray(run())
        for fidelity in ("full", "summary"):
            with ns.Scope(way, max_overhead_pct=1000) as scope:
                ns.Model.wrap(watched).attach_probe("head", fidelity=fidelity)
                equal = bool((np.asarray(run()) == expected).all())
            records = scope.artifact.telemetry.layer_snapshots
            found[f"{way}: {fidelity}"] = {
                "equal": equal,
                "shapes": [list(record.shape) for record in records],
                "axes": [list(record.attributes.get("sharded", ())) for record in records],  # type: ignore[arg-type]
                "sum": sum(
                    record.summary.mean * record.summary.count for record in records if record.summary
                ),
            }
    json.dump(found, sys.stdout)


main()
