"""A small torch model, and a way to watch it: what the tests of the torch backend share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.torch import ADAPTER

INPUT = torch.linspace(-1, 1, 16).view(2, 8)
PATHS = ("", "first", "rest", "rest.0", "rest.1")


class Net(nn.Module):
    """Two linear layers with an in-place activation between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.rest = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both layers."""
        return self.rest(self.first(x))  # type: ignore[no-any-return]


def make_net(seed: int = 0) -> Net:
    """The model, with the weights of a seed."""
    torch.manual_seed(seed)
    return Net().eval()


def watch(model: nn.Module, *paths: str) -> tuple[list[str], Callable[[], None]]:
    """Summarise layers (all of `Net` by default); gives the ids as they are seen, and the undo of all."""
    seen: list[str] = []
    undo = [ADAPTER.observe_layer(model, path, _Observer(path, seen)) for path in paths or PATHS]

    def undo_all() -> None:
        for step in undo:
            step()

    return seen, undo_all


class _Observer:
    def __init__(self, path: str, seen: list[str]) -> None:
        self.path = path
        self.seen = seen

    def __call__(self, snapshot: TensorSnapshot) -> None:
        snapshot.summarize()
        self.seen.append(self.path)


def watched_entries(model: nn.Module) -> list[str]:
    """What watching has left in the modules' instance dictionaries."""
    plain = vars(nn.Linear(1, 1)).keys() | {"in_features", "out_features", "inplace", "_is_replica"}
    return [
        key
        for module in model.modules()
        for key in vars(module).keys() - plain
        if key not in {"first", "rest"}
    ]
