"""Whether runs of layers may be noted: see `neuronscope.notes`."""

from __future__ import annotations

from neuronscope import notes
from neuronscope_instrumentation.torch.internals import graph_task, process_groups


def begin() -> None:
    """Let runs be noted, where torch shows what there is to know of them."""
    groups = process_groups()
    if groups is not None:
        notes.bind(graph_task, groups)
