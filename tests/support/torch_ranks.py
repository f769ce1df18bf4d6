"""One rank of a distributed run, as a program: ``torch_ranks.py PORT RANK WORLD`` prints what it saw as JSON.

Each way to distribute a model runs plainly and watched; what every rank must show is compared by the test.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import neuronscope as ns
from neuronscope.engine.guard import GUARD

BATCH = torch.linspace(-2, 2, 6 * 8).view(6, 8)


class Block(nn.Module):
    """Two projections with an activation between."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both, and the residual."""
        out: torch.Tensor = x + self.down(self.act(self.up(x)))
        return out


class Net(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for block in self.blocks:
            x = block(x)
        return x


def make() -> Net:
    """Always the same weights."""
    torch.manual_seed(0)
    return Net()


def plain(_: Any) -> nn.Module:
    """Data parallel without a wrapper: every rank its rows."""
    return make()


def ddp(_: Any) -> nn.Module:
    """DistributedDataParallel."""
    return nn.parallel.DistributedDataParallel(make())


def fsdp2(mesh: Any) -> nn.Module:
    """`fully_shard`: parameters are DTensors, activations are each rank's own."""
    from torch.distributed.fsdp import fully_shard

    model = make()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp1(_: Any) -> nn.Module:
    """FullyShardedDataParallel: parameters are freed between uses."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    wrapper: Any = FullyShardedDataParallel
    model: nn.Module = wrapper(
        make(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    return model


def tensor_parallel(mesh: Any) -> nn.Module:
    """Columns of `up`, rows of `down`: activations between are DTensors or shards."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = make()
    for block in model.blocks:
        plan: Any = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    return model


WAYS: dict[str, tuple[Callable[[Any], nn.Module], bool]] = {  # and: has each rank rows of its own?
    "plain": (plain, True),
    "ddp": (ddp, True),
    "fsdp2": (fsdp2, True),
    "fsdp1": (fsdp1, True),
    "tensor_parallel": (tensor_parallel, False),
}


def step(model: nn.Module, rows: torch.Tensor) -> list[str]:
    """A training step's output and gradients, as bytes."""
    output = model(rows)
    output.square().sum().backward()
    found = [output.detach().numpy().tobytes().hex()]
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        if gradient is not None and parameter.numel():
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            found.append(local.numpy().tobytes().hex())
    return found


def watched(model: nn.Module, rows: torch.Tensor) -> tuple[list[str], list[dict[str, Any]], str]:
    """The same step with a probe on every layer, gradients too; its records, and why runs were skipped."""
    with ns.Scope("rank", max_overhead_pct=1000, overhead_action="warn") as scope:
        wrapped = ns.Model.wrap(model)
        wrapped.attach_probe("**", ns.probes.LayerActivations(ns.Fidelity.SUMMARY))
        wrapped.attach_probe("**.act", ns.probes.LayerGradients)
        bits = step(model, rows)
    artifact = scope.artifact
    records = [
        {
            "layer": record.layer_id,
            "role": record.role,
            "shape": record.shape,
            "attributes": dict(record.attributes),
            "summary": [
                getattr(record.summary, name) for name in ("count", "mean", "std", "l2", "min", "max")
            ]
            + [getattr(record.summary, name) for name in ("abs_max", "zero_count", "nan_count", "inf_count")],
        }
        for record in artifact.telemetry.layer_snapshots
    ]
    reason = str(artifact.telemetry.spans[0].attributes.get("neuronscope.fidelity.reason", ""))
    return bits, records, reason


def main(port: str, rank: int, world: int) -> None:
    """Run every way."""
    GUARD.reraise = True
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (world,))
    told: dict[str, Any] = {}
    for name, (way, own_rows) in WAYS.items():
        rows = BATCH.chunk(world)[rank] if own_rows else BATCH
        expected = step(way(mesh), rows)
        bits, records, reason = watched(way(mesh), rows)
        told[name] = {"equal": bits == expected, "records": records, "reason": reason}
    sys.stdout.write(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
