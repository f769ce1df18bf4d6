"""What a handle on a model keeps between traces: its paths, aliases and views."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from torch import nn

from neuronscope.interventions.errors import TraceClosedError
from neuronscope.interventions.views import View
from neuronscope_instrumentation.torch import layers
from neuronscope_instrumentation.torch.interventions.run import Run
from neuronscope_instrumentation.torch.interventions.sites import Site
from neuronscope_instrumentation.torch.slot import Slot
from neuronscope_instrumentation.torch.slots import visit

SPARE_RUNS: Final = 4  # kept for the next traces of a handle; each knows the sites that it had
# A module's place: the module, a slot for it, the path of the module around it that runs, if that is not the
# model, and from `_WAY` on the way to it: for each step from the model on, a dictionary, a key and what is
# there.  In one piece, since what a read costs in a large model is memory that is in none of the caches.
_Place = tuple[Any, ...]
_WAY: Final = 3


class Tree:
    """The modules of one model, by path.

    Attributes:
        model: the model.
        aliases: other names for the beginnings of paths.
        attached: modules that are not the model's own, by name; `hosts`: paths of the modules around them.
        views: values over sites, by name.
        watch_ops: lets a site's torch functions be watched.
    """

    __slots__ = (
        "_matched",
        "_places",
        "_runs",
        "aliases",
        "attached",
        "hosts",
        "model",
        "site_class",
        "views",
        "watch_ops",
    )

    def __init__(self, model: nn.Module, watch_ops: Callable[[Site], object]) -> None:
        self.model = model
        self.watch_ops = watch_ops
        self.aliases: dict[str, str] = {}
        self.attached: dict[str, nn.Module] = {}
        self.hosts: dict[str, str] = {}
        self.views: dict[str, list[View]] = {}
        self.site_class: type[Site] = Site
        self._runs: list[Run] = []
        self._matched: dict[str, tuple[list[str], list[str]]] = {}
        self._places: dict[str, _Place] = {
            "": (model, Slot(model).prepare(model), None, {"": model}, "", model)
        }

    def site(self, run: Run, path: str) -> Site:
        """The site of a path in a run; made, and its module watched, when first asked for.

        Raises:
            LayerNotFoundError: there is no such module; the message names what is close.
        """
        site = run.sites.get(path)
        return site if site is not None and site.here else self.new_site(run, path)

    def new_site(self, run: Run | None, path: str) -> Site:
        """The same for a path that has not been asked for yet in this run."""
        if run is None or run.closed:
            raise TraceClosedError(f"{path or 'the model'!r} was asked for outside of the trace's block")
        site = run.sites.get(path)
        place = self._places.get(path) if site is None else site.place
        if place is None or not _leads_there(place):
            run.sites.pop(path, None)
            full = self.resolve(path)
            if full != path:
                return self.site(run, full)
            place = self._places[path] = self._place(path)
            site = None
        module, slot, above = place[:_WAY]
        if above is not None:  # now: it may begin before it is asked for, and its output be read after this
            self.site(run, above)
        if site is None or site.__class__ is not self.site_class:
            site = self.site_class(self, run, path, module)
            site.place = place
        elif site.here:  # a module with several paths is one site
            return site
        there: object = visit(slot, module, site)
        if there is not site:
            site = cast(Site, there)
        if site.path == path:
            run.sites[path] = site
        if not site.here:
            site.here = True
            run.present.append(site)
            if site.slot.edits:
                site.see_edits()
        return site

    def come_again(self, run: Run, site: Site) -> Site:
        """A site of an earlier run, asked for in this one: `new_site` without its look-ups."""
        module, slot, above = site.place[:_WAY]
        if not _leads_there(site.place) or site.__class__ is not self.site_class or run.closed:
            return self.new_site(run, site.path)
        if above is not None:
            self.site(run, above)
        if visit(slot, module, site) is not site:
            return self.new_site(run, site.path)
        site.here = True
        run.present.append(site)
        if site.slot.edits:
            site.see_edits()
        return site

    def take_run(self) -> Run:
        """A run that is ready to begin: one of an earlier trace, or a new one."""
        try:
            return self._runs.pop()
        except IndexError:
            return Run()

    def give_back(self, run: Run) -> None:
        """A trace has ended in order: its run may serve the next one."""
        run.release()
        if len(self._runs) < SPARE_RUNS:
            self._runs.append(run)

    def resolve(self, path: str) -> str:
        """The path with its first part's alias replaced."""
        head, dot, rest = path.partition(".")
        target = self.aliases.get(head)
        if target is None:
            return path
        return f"{target}{dot}{rest}"

    def add_alias(self, name: str, path: str) -> None:
        """Another name for the beginning of a path."""
        self.aliases[name] = path
        self._matched.clear()

    def find(self, path: str) -> nn.Module | None:
        """The module at a path now; None if there is none."""
        module: Any = self.model
        parts = path.split(".") if path else []
        if parts and parts[0] in self.attached:
            module = self.attached[parts.pop(0)]
        for part in parts:
            children = module._modules
            if part not in children or children[part] is None:
                return None
            module = children[part]
        return cast(nn.Module, module)

    def match(self, pattern: str) -> list[str]:
        """Paths that a path or pattern stands for, in the model's order."""
        names = _names(self.model)
        found = self._matched.get(pattern)
        if found is None or found[0] != names:  # a module that took another's place is found by its site
            found = self._matched[pattern] = names, layers.match_layers(self.model, self.resolve(pattern))
        return found[1]

    @staticmethod
    def children(module: nn.Module) -> dict[str, Any]:
        """A module's submodules by name; TorchScript keeps them in a dictionary of its own kind."""
        return dict(cast(Any, module)._modules.items())

    # --- below a site ------------------------------------------------------------------------------

    def child(self, site: Site, index: object) -> Any:
        """A child by number, several by a slice, or one further down by its path from here."""
        names = list(self.children(site.module))
        if isinstance(index, slice):
            return [self._below(site, name) for name in names[index]]
        if isinstance(index, int):
            if not -len(names) <= index < len(names):
                raise IndexError(
                    f"{site.path or 'the model'!r} has {len(names)} submodules, no number {index}"
                )
            path = _join(site.path, names[index])
            if names[index] == str(index):  # as in every list of modules
                site.names[index] = path
            return self.site(site.run, path)
        if not isinstance(index, str):
            raise TypeError(
                f"sites are asked for by path, pattern, number or slice, not by {type(index).__name__}"
            )
        return self._below(site, index)

    def below(self, site: Site, name: str) -> Any:
        """A child by its name, or a view's value."""
        if name in self.children(site.module):
            site.names[name] = _join(site.path, name)
            return self._below(site, name)
        view = self._view(site, name)
        if view is not None:
            return view.read(self._raw(site, view), site.module)
        if not site.path and (name in self.aliases or name in self.attached):
            return self.site(site.run, self.aliases.get(name, name))
        raise self._no_attribute(site, name)

    def below_model(self, run: Run, name: str) -> Any:
        """The same below the model, which is watched only if that is needed."""
        if name not in self.children(self.model):
            return self.below(self.site(run, ""), name)
        run.names[name] = name
        return self.site(run, name)

    def child_of_model(self, run: Run, index: int | slice) -> Any:
        """The same by number."""
        if isinstance(index, int) and str(index) in self.children(self.model):
            names = list(self.children(self.model))
            if index < len(names) and names[index] == str(index):
                run.names[index] = names[index]
                return self.site(run, names[index])
        return self.child(self.site(run, ""), index)

    def set_view(self, site: Site, name: str, value: Any) -> None:
        """Assign to a view: its site gets the value that the view writes."""
        view = self._view(site, name)
        if view is None:
            raise AttributeError(
                f"{site.path or 'the model'!r} has no view {name!r} to assign to; a site has output, "
                "input and inputs, and what ns_model.view defines"
            )
        if view.write is None:
            raise AttributeError(f"the view {name!r} was defined without write: it can only be read")
        old = self._raw(site, view)
        new = view.write(value, old, site.module)
        if view.on == "input":
            site.input = new
        elif view.on == "inputs":
            site.inputs = new
        else:
            site.output = new

    def define(self, view: View) -> None:
        """Define a view; a later one of the same name and modules goes before an earlier one.

        Raises:
            ValueError: sites have something of this name.
        """
        if hasattr(Site, view.name) or view.name.startswith("_"):
            raise ValueError(f"a view cannot be called {view.name!r}: sites have that already")
        name = view.name
        self.views.setdefault(name, []).append(view)

        def read(site: Site) -> Any:
            return self.below(site, name)

        def write(site: Site, value: Any) -> None:
            self.set_view(site, name, value)

        # A property of the sites' class, since a `__setattr__` would slow down everything else about them.
        self.site_class = type("Site", (self.site_class,), {"__slots__": (), name: property(read, write)})

    def views_of(self, path: str, module: nn.Module) -> list[View]:
        """The views that a module has."""
        return [view for views in self.views.values() for view in views if _has(view, path, module)]

    def _view(self, site: Site, name: str) -> View | None:
        found = [view for view in self.views.get(name, ()) if _has(view, site.path, site.module)]
        return found[-1] if found else None

    def _raw(self, site: Site, view: View) -> Any:
        return getattr(site, view.on)

    def _below(self, site: Site, name: str) -> Site:
        return self.site(site.run, _join(site.path, name))

    def _place(self, path: str) -> _Place:
        parts = [sys.intern(part) for part in path.split(".")]  # as attributes are: the same is found at once
        siblings: Any = self.attached if parts[0] in self.attached else _siblings(self.model)
        way: list[Any] = []
        above = self.hosts.get(parts[0])
        module = self.model
        for number, part in enumerate(parts):
            found: nn.Module | None = siblings.get(part)
            module = layers.find_layer(self.model, path) if found is None else found  # it raises
            way += siblings, part, module
            if number + 1 < len(parts):
                siblings = _siblings(module)
                if layers.computes(module):  # a list of modules is never called
                    above = ".".join(parts[: number + 1])
        return module, Slot(module).prepare(module), above, *way

    def _no_attribute(self, site: Site, name: str) -> AttributeError:
        names: Sequence[str] = [
            *self.children(site.module), *(view.name for view in self.views_of(site.path, site.module)),
            "output", "input", "inputs", "first", "ops", "skip", "edit", "replace", "replace_first",
        ]  # fmt: skip
        close = difflib.get_close_matches(name, names, 3) or names[:6]
        return AttributeError(
            f"{site.path or 'the model'!r} has neither a submodule nor a view {name!r}. "
            f"There are: {', '.join(close)}"
        )


def _siblings(module: nn.Module) -> Any:
    children: Any = cast(Any, module)._modules
    return children if hasattr(children, "get") else Tree.children(module)  # TorchScript's has not


def _leads_there(place: _Place) -> bool:
    """Is the module still where it was found?"""
    return all(place[i].get(place[i + 1]) is place[i + 2] for i in range(_WAY, len(place), 3))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _has(view: View, path: str, module: nn.Module) -> bool:
    if isinstance(view.of, str):
        return layers.pattern_matches(view.of, path)
    return isinstance(module, view.of)


def _names(model: nn.Module) -> list[str]:
    """Names, level for level: as long as these are the same, so are the paths of the model's modules."""
    found: list[str] = []
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is None:
            found.append("/")  # no module's name
        else:
            children: Any = vars(module)["_modules"]
            found += children
            found.append("")
            waiting += children.values()
    return found
