"""Finding the tensors in whatever a module returns, without running any code of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from neuronscope_instrumentation.common.structures import NODE_LIMIT, nodes


def first_tensor(output: object) -> torch.Tensor | None:
    """The first tensor of an output, depth first; None if there is none within `NODE_LIMIT`."""
    if issubclass(type(output), torch.Tensor):
        return cast(torch.Tensor, output)
    return next(tensor_leaves(output), None)


def tensor_leaves(output: object, limit: int = NODE_LIMIT) -> Iterator[torch.Tensor]:
    """The tensors of a structure in order, of its first `limit` objects; see `nodes`."""
    return cast("Iterator[torch.Tensor]", nodes(output, limit, torch.Tensor))
