"""Takes an instrumentation's patches off and puts them on again, so that calls with and without it can
be measured in turn in one process, whoever made the patches and however."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_ABSENT = object()


class Patches:
    """What an instrumentation changes in some packages; made before it is switched on.

    Args:
        packages: packages whose modules and classes it may change.
    """

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        # Holds every owner, so that no other object can take over its id.
        self._before = {id(owner): (owner, _attributes(owner)) for owner in self._owners()}
        self._changes: list[tuple[Any, str, Any, Any]] = []
        self._on = True

    def found(self) -> int:
        """Look for the changes, now that it is switched on; returns their number."""
        for owner, before in self._before.values():
            for name, value in _attributes(owner).items():
                earlier = before.get(name, _ABSENT)
                if earlier is not value and _may_be_patch(owner, name, earlier, value):
                    self._changes.append((owner, name, earlier, value))
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

    def _owners(self) -> Iterator[Any]:
        """Modules of the packages, and the classes in them."""
        for module_name, module in list(sys.modules.items()):
            if self._covers(module_name):
                yield module
                for value in _attributes(module).values():
                    if isinstance(value, type) and self._covers(value.__module__):
                        yield value

    def _covers(self, module: str) -> bool:
        return any(module == package or module.startswith(package + ".") for package in self._packages)


def _attributes(owner: object) -> dict[str, Any]:
    return dict(vars(owner))


def _may_be_patch(owner: Any, name: str, before: Any, after: Any) -> bool:
    """Not what imports and pydantic's late model building change."""
    if before is _ABSENT and not isinstance(owner, type):
        return False
    return not name.startswith("__pydantic") and callable(after)
