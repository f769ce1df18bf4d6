"""Runs a callback when a module has been imported, without importing it.

Libraries that a service never uses cost nothing, and the order of imports does not matter.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from neuronscope.engine.guard import GUARD

Callback = Callable[[ModuleType], None]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as the other finders would, and listens to its execution."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._busy = threading.local()

    def add(self, name: str, callback: Callback) -> None:
        self._callbacks.setdefault(name, []).append(callback)

    def discard(self, name: str, callback: Callback) -> None:
        if callback in self._callbacks.get(name, []):
            self._callbacks[name].remove(callback)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._callbacks.get(fullname) or getattr(self._busy, "name", None) == fullname:
            return None
        self._busy.name = fullname
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(fullname, path, target)
                if spec is not None:
                    GUARD.call("imports", self._listen, spec)
                    return spec  # type: ignore[no-any-return]
            return None
        finally:
            self._busy.name = None

    def _listen(self, spec: importlib.machinery.ModuleSpec) -> None:
        # The loader keeps its type and identity: only this instance's exec_module is ours, once.
        loader: Any = spec.loader
        if loader is None or isinstance(loader, type):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.run(spec.name, module)

        loader.exec_module = exec_module

    def run(self, name: str, module: ModuleType) -> None:
        for callback in tuple(self._callbacks.get(name, ())):
            GUARD.call(f"imports.{name}", callback, module)


_FINDER = _AfterImport()


def after_import(name: str, callback: Callback) -> Callable[[], None]:
    """Call `callback(module)` now if the module is loaded, and whenever it is; returns an undo."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.add(name, callback)
    module = sys.modules.get(name)
    # A module that is still executing is in sys.modules already: its own import calls us when done.
    if module is not None and not _initializing(module):
        GUARD.call(f"imports.{name}", callback, module)
    return lambda: _FINDER.discard(name, callback)


def _initializing(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
