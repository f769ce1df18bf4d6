"""The model's modules in words: what can be asked for under which path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from neuronscope_instrumentation.torch.interventions.tree import Tree


def tree(tree: Tree) -> str:
    """A line for each module: path, class, parameters' shapes, and the views that it has."""
    names = {path: name for name, path in tree.aliases.items()}
    return "\n".join(_lines(tree, names))


def _lines(tree: Tree, names: dict[str, str]) -> Iterator[str]:
    modules: list[tuple[str, nn.Module]] = list(cast(Any, tree.model).named_modules())
    for path, module in modules:
        anything: Any = module
        own: list[tuple[str, nn.Parameter]] = list(anything.named_parameters(recurse=False))
        shapes = ", ".join(f"{name}{list[int](parameter.shape)}" for name, parameter in own)
        line = f"{'  ' * path.count('.') if path else ''}{path or '(model)'}: {type(module).__name__}"
        line += f"({shapes})" if shapes else ""
        if path in names:
            line += f"  = {names[path]}"
        for view in tree.views_of(path, module):
            line += f"  .{view.name} over {view.on}" + (f": {view.description}" if view.description else "")
        yield line
