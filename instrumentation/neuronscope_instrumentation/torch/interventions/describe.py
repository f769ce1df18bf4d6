"""The model's modules in words: what can be asked for under which path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from neuronscope.interventions.views import View
from neuronscope_instrumentation.torch.interventions.ops import shapes
from neuronscope_instrumentation.torch.interventions.sites import Site
from neuronscope_instrumentation.torch.interventions.tree import Tree
from neuronscope_instrumentation.torch.interventions.values import inputs_first

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.trace import Trace

Shapes = dict[tuple[str, str], str]  # of views' values, by the module's path and the view's name


def tree(tree: Tree, found: Shapes) -> str:
    """A line for each module: path, class, parameters' shapes, and the views that it has."""
    names = {path: name for name, path in tree.aliases.items()}
    return "\n".join(_lines(tree, names, found))


def observe_views(trace: Trace, tree: Tree, found: Shapes) -> None:
    """Note the shape of each view's value in the first call of its module in this trace."""
    for site in (trace.root, *trace.sites("**")):
        if views := tree.views_of(site.path, site.module):
            site.observe(_Views(views, found))


class _Views:
    """Reads views as their module runs."""

    __slots__ = ("_found", "_views")

    def __init__(self, views: list[View], found: Shapes) -> None:
        self._views = views
        self._found = found

    def output(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        for view in self._views:
            of = output if view.on == "output" else (args, kwargs)
            value = view.read(inputs_first(args, kwargs) if view.on == "input" else of, site.module)
            self._found.setdefault((site.path, view.name), shapes(value))
        return output


def _lines(tree: Tree, names: dict[str, str], found: Shapes) -> Iterator[str]:
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
            if shape := found.get((path, view.name)):
                line += f" = {shape}"
        yield line
