"""How a model is run under a trace, where that may differ from how it runs alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Options:
    """What changes the model's execution, and so is never done unasked.

    Attributes:
        eager: run without compiled code (`torch.compile`), so that modules inside it are reached.  torch
            keeps this for the whole process: other threads' compiled models run eagerly meanwhile.
        unfuse: run `nn.TransformerEncoder` and `nn.MultiheadAttention` without their fused kernels, so that
            modules inside are reached.  For the whole process as well; last bits may differ.
        fake: run on fake tensors: shapes and dtypes, no values, no memory.
    """

    eager: bool = False
    unfuse: bool = False
    fake: bool = False


PLAIN: Final = Options()
