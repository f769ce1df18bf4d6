"""Puts the engine around methods that an integration's table names, and takes it away again."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.imports import after_import
from neuronscope.engine.wrappers import carrier, follower, noticing, wrapper_for
from neuronscope.instrumentation import ClientIntegration, HandOff, ResponseSeam, WrappedMethod

Undo = Callable[[], None]
# What a wrapper of ours is for; one method may have one of each.
CALLS, COPIES = "calls", "copies"


class Installation:
    """One integration, installed.

    Attributes:
        everything: observe all objects of the library; else only those added by `include`.
        installed: targets that were found and wrapped.
        missing: targets that the installed version does not have.
    """

    def __init__(self, integration: ClientIntegration) -> None:
        self.integration = integration
        self.library = f"neuronscope.{integration.name}"
        self.everything = False
        self.active = True
        self.installed: set[str] = set()
        self.missing: set[str] = set()
        self._objects: dict[int, weakref.ref[Any]] = {}  # by identity: clients may be equal, or not hash
        self._undo: list[Undo] = []

    def install(self) -> None:
        """Wrap everything now loaded, and the rest when it is imported."""
        for module, work in self._by_module().items():
            self._undo.append(after_import(module, functools.partial(self._on_import, work)))

    def uninstall(self) -> None:
        """Restore every function; wrappers that others have wrapped meanwhile only pass through."""
        self.active = False
        for undo in reversed(self._undo):
            GUARD.call("wrap.uninstall", undo)
        self._undo.clear()

    def include(self, obj: Any) -> None:
        """Observe this object, and those that act for it."""
        members = self.integration.members
        for each in (obj, *(members(obj) if members is not None else ())):
            key = id(each)
            self._objects[key] = weakref.ref(each, functools.partial(self._forget, key))

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        if self._objects.get(key) is gone:
            del self._objects[key]

    def covers(self, args: tuple[Any, ...]) -> bool:
        """Is a method's call with these arguments to be observed?  The first is its instance."""
        if not (ENGINE.active and self.active and args):
            return False  # without an instance Python will complain
        return self.everything or self._included(args[0])

    def covers_function(self, _: tuple[Any, ...]) -> bool:
        """Is a function's call to be observed?"""
        return ENGINE.active and self.active and self.everything

    def _included(self, instance: Any) -> bool:
        members = self.integration.members
        return self._is_among(instance) or (
            members is not None and bool(self._objects) and any(map(self._is_among, members(instance)))
        )

    def _is_among(self, obj: Any) -> bool:
        found = self._objects.get(id(obj))
        return found is not None and found() is obj

    def _by_module(self) -> dict[str, list[Callable[[ModuleType], None]]]:
        work: dict[str, list[Callable[[ModuleType], None]]] = {}
        integration = self.integration
        for method in integration.methods:
            work.setdefault(_module(method.target), []).append(functools.partial(self._wrap, method))
        for handoff in integration.handoffs:
            work.setdefault(_module(handoff.target), []).append(functools.partial(self._carry, handoff))
        for seam in integration.responses:
            work.setdefault(_module(seam.target), []).append(functools.partial(self._notice, seam))
        for target in integration.copies:
            work.setdefault(_module(target), []).append(functools.partial(self._follow, target))
        if integration.install is not None:
            for module in integration.modules:
                work.setdefault(module, []).append(self._hand_over)
        return work

    def _on_import(self, work: list[Callable[[ModuleType], None]], module: ModuleType) -> None:
        for step in work:
            GUARD.call(f"wrap.{self.integration.name}", step, module)
        prepare = ENGINE.prepare_models
        if prepare is not None and any(method.model is not None for method in self.integration.methods):
            GUARD.call("wrap.prepare_models", prepare)

    def _hand_over(self, module: ModuleType) -> None:
        install = self.integration.install
        if install is not None and self.active:
            self._undo.append(install(ENGINE, module.__name__))
            self.installed.add(module.__name__)

    def _wrap(self, method: WrappedMethod, module: ModuleType) -> None:
        self._wrap_one(method, module)
        if method.subclasses:
            for name in _overrides(method.target, module):
                self._wrap_one(replace(method, target=name), module)

    def _wrap_one(self, method: WrappedMethod, module: ModuleType) -> None:
        original = self._find(method.target, module, optional=method.optional, inherited=method.inherited)
        if original is not None and method.inside is not None:
            self._wrap_inside(method, original, method.inside)
        elif original is not None:
            self._replace(method.target, module, original, wrapper_for(self, method, original))

    def _wrap_inside(self, method: WrappedMethod, decorated: Callable[..., Any], variable: str) -> None:
        """Wrap the function that a decorator's wrapper holds in its closure, in its place there."""
        cells = dict(zip(decorated.__code__.co_freevars, decorated.__closure__ or (), strict=False))
        cell = cells.get(variable)
        if cell is None:
            self.missing.add(method.target)
            return
        original = cell.cell_contents
        if getattr(original, "__neuronscope__", None) == (self, CALLS):
            return
        wrapper: Any = wrapper_for(self, method, original)
        wrapper.__neuronscope__ = (self, CALLS)
        cell.cell_contents = wrapper
        self.installed.add(method.target)

        def undo() -> None:
            if cell.cell_contents is wrapper:
                cell.cell_contents = original

        self._undo.append(undo)

    def _carry(self, handoff: HandOff, module: ModuleType) -> None:
        original = self._find(handoff.target, module, optional=True)
        if original is not None:
            self._replace(handoff.target, module, original, carrier(self, handoff, original))

    def _notice(self, seam: ResponseSeam, module: ModuleType) -> None:
        original = self._find(seam.target, module, optional=True)
        if original is not None:
            self._replace(seam.target, module, original, noticing(self, seam, original))

    def _follow(self, target: str, module: ModuleType) -> None:
        original = self._find(target, module, optional=True, role=COPIES)
        if original is not None:
            self._replace(target, module, original, follower(self, original), role=COPIES)

    def _find(
        self,
        target: str,
        module: ModuleType,
        *,
        optional: bool,
        role: str = CALLS,
        inherited: bool = False,
    ) -> Callable[..., Any] | None:
        owner, name = _owner(target, module)
        function = cast("Any", None if owner is None else vars(owner).get(name))
        if function is None and inherited and owner is not None:
            function = inspect.getattr_static(owner, name, None)
        if inspect.isfunction(function):
            return None if getattr(function, "__neuronscope__", None) == (self, role) else function
        if not optional:
            self.missing.add(target)
        return None

    def _replace(
        self,
        target: str,
        module: ModuleType,
        original: Callable[..., Any],
        wrapper: Callable[..., Any],
        role: str = CALLS,
    ) -> None:
        owner, name = _owner(target, module)
        is_own = name in vars(owner)
        wrapper.__neuronscope__ = (self, role)  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)
        self.installed.add(target)

        def undo() -> None:
            if vars(owner).get(name) is not wrapper:
                return
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        self._undo.append(undo)


def _module(target: str) -> str:
    return target.partition(":")[0]


def _overrides(target: str, module: ModuleType) -> list[str]:
    """Targets of a method's overrides in subclasses that the library keeps beside the class."""
    where, _, path = target.partition(":")
    *outer, _, name = path.split(".")
    owner, _ = _owner(target, module)
    place: Any = functools.reduce(getattr, outer, module)
    found: list[type] = []
    waiting: list[type] = [owner] if isinstance(owner, type) else []
    for kind in waiting:
        all_of_it: list[type] = type.__subclasses__(kind)
        subclasses = [each for each in all_of_it if each not in waiting]
        waiting.extend(subclasses)
        found.extend(each for each in subclasses if getattr(place, each.__name__, None) is each)
    return [f"{where}:{'.'.join([*outer, kind.__name__, name])}" for kind in found if name in vars(kind)]


def _owner(target: str, module: ModuleType) -> tuple[Any, str]:
    """The object that holds the attribute (None if absent), and the attribute's name."""
    *path, name = target.partition(":")[2].split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part, None)
        if owner is None:
            break
    return owner, name
