"""The model's modules in words: what can be asked for under which path."""

from __future__ import annotations

from collections.abc import Iterator

from neuronscope_instrumentation.torch.interventions.tree import Tree


def tree(tree: Tree) -> str:
    """A line for each module: path, class, parameters' shapes, and the views that it has."""
    names = {path: name for name, path in tree.aliases.items()}
    return "\n".join(_lines(tree, names))


def _lines(tree: Tree, names: dict[str, str]) -> Iterator[str]:
    for path, module in tree.model.named_modules():
        shapes = ", ".join(f"{name}{list(p.shape)}" for name, p in module.named_parameters(recurse=False))
        line = f"{'  ' * path.count('.') if path else ''}{path or '(model)'}: {type(module).__name__}"
        line += f"({shapes})" if shapes else ""
        if path in names:
            line += f"  = {names[path]}"
        for view in tree.views_of(path, module):
            line += f"  .{view.name} over {view.on}" + (f": {view.description}" if view.description else "")
        yield line
