"""Takes an instrumentation's patches off and puts them on again, so that calls with and without it can
be measured in turn in one process, whoever made the patches and however."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_ABSENT = object()
# Written by the interpreter, not by instrumentations.
_SKIPPED = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"})


class Patches:
    """What an instrumentation changes in some packages; made before it is switched on.

    Args:
        packages: packages whose modules and classes it may change.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        # Holds every owner, so that no other object can take over its id.
        self._owners: dict[int, tuple[Any, dict[str, Any]]] = {}
        for owner, name, value in self._places():
            self._owners.setdefault(id(owner), (owner, {}))[1][name] = value
        self._changes: list[tuple[Any, str, Any, Any]] = []
        self._on = True

    def found(self) -> int:
        """Look for the changes, now that it is switched on; returns their number."""
        seen: set[tuple[int, str]] = set()
        for owner, name, value in self._places():
            if id(owner) not in self._owners or (id(owner), name) in seen:
                continue
            seen.add((id(owner), name))
            before = self._owners[id(owner)][1].get(name, _ABSENT)
            if before is not value and _may_be_patch(owner, name, before, value):
                self._changes.append((owner, name, before, value))
        return len(self._changes)

    def off(self) -> None:
        """Put back what was there before."""
        if not self._on:
            return
        self._on = False
        for owner, name, before, _ in self._changes:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def on(self) -> None:
        """Put the instrumentation in place."""
        self._on = True
        for owner, name, _, after in self._changes:
            setattr(owner, name, after)

    def _places(self) -> Iterator[tuple[Any, str, Any]]:
        for module_name, module in list(sys.modules.items()):
            if not self._ours(module_name):
                continue
            for name, value in list(vars(module).items()):
                if name.startswith("__"):
                    continue
                yield module, name, value
                if isinstance(value, type) and self._ours(value.__module__ or ""):
                    for attribute, held in list(vars(value).items()):
                        if attribute not in _SKIPPED:
                            yield value, attribute, held

    def _ours(self, module: str) -> bool:
        return any(module == package or module.startswith(package + ".") for package in self._packages)


def _may_be_patch(owner: Any, name: str, before: Any, after: Any) -> bool:
    """Not what imports and pydantic's late model building change."""
    if before is _ABSENT and not isinstance(owner, type):
        return False
    return not name.startswith("__pydantic") and callable(after)
