"""Sharded modules (FSDP2) that a stopped model has left whole."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


def reshard(model: nn.Module) -> None:
    """Shard every module's weights again: their own hooks do so after a forward, and it did not end."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        return
    for module in model.modules():
        if isinstance(module, kind):
            whole: Any = module
            whole.reshard()
