"""Small models for interventions: blocks that return tuples, as transformers' do, and what is left on
them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuronscope_instrumentation.torch.internals import CALL, COMPILED_CALL


class Block(nn.Module):
    """Returns its hidden states and its input, in a tuple."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states and input."""
        return torch.relu(self.lin(hidden)) * scale, hidden


class Blocks(nn.Module):
    """A stack of blocks and a head; `rollout` runs it repeatedly."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.h = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All blocks, then the head."""
        for block in self.h:
            x = block(x)[0]
        return self.head(x)  # type: ignore[no-any-return]

    def rollout(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        """Feed the output back."""
        for _ in range(steps):
            x = self(x)
        return x


X = torch.linspace(-1, 1, 16).view(2, 8)


def blocks(depth: int = 3, seed: int = 0) -> Blocks:
    """The model, with the weights of a seed."""
    torch.manual_seed(seed)
    return Blocks(depth).eval()


def left_on(model: nn.Module) -> list[str]:
    """What interventions have left in the modules' instance dictionaries."""
    copying = ("__getstate__", "__reduce__", "__deepcopy__", "_replicate_for_data_parallel")
    ours = (CALL, COMPILED_CALL, "compile", *copying, "forward")
    anything: Any = model
    modules: list[tuple[str, nn.Module]] = list(anything.named_modules())
    return [f"{path}:{name}" for path, module in modules for name in ours if name in vars(module)]
