"""The public methods of one library, and what we say of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

# Parameters that tell that a model is meant.
SUSPICIOUS: Final = frozenset(
    {
        "agent_id",
        "contents",
        "conversation_id",
        "data_1",
        "document",
        "documents",
        "input",
        "inputs",
        "message",
        "messages",
        "model",
        "model_id",
        "prompt",
        "prompts",
        "query",
        "sentences",
        "text",
        "texts",
    }
)
OPENING: Final = frozenset({"connect", "parse", "parse_stream", "stream"})


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The public methods of one library that a model may work for.

    Patterns are those of `fnmatch` over ``module:Class.method``, without the package's name.  Asynchronous
    twins (``AsyncThings``, ``method_async``) go by the name of the other.

    Attributes:
        name: the adapter's.
        package: what the targets leave out.
        found: targets of the methods, as the installed release has them; imports the library.
        covered: a span is made for these.
        bookkeeping: no model works for these, or none that is called by them.
    """

    name: str
    package: str
    found: Callable[[], Iterable[str]]
    covered: tuple[str, ...]
    bookkeeping: tuple[str, ...] = ()

    def suspects(self) -> set[str]:
        """All suspected methods, by their short names."""
        return {self.short(target) for target in self.found()}

    def short(self, target: str) -> str:
        """A target as patterns have it: without the package, and as its synchronous twin."""
        module, _, path = target.partition(":")
        *owners, name = path.split(".")
        inner = module.removeprefix(self.package).removeprefix(".")
        plain = [*(owner.removeprefix("Async") for owner in owners), name.removesuffix("_async")]
        return ":".join(filter(None, (inner, ".".join(plain))))

    def unknown(self, gaps: Iterable[str]) -> set[str]:
        """Suspects that nobody has said anything about."""
        known = {self.short(target) for target in gaps}
        patterns = (*self.covered, *self.bookkeeping)
        return {
            target
            for target in self.suspects()
            if target not in known and not any(fnmatchcase(target, pattern) for pattern in patterns)
        }

    def stale(self) -> set[str]:
        """Patterns that fit nothing any more."""
        suspects = self.suspects()
        return {
            pattern
            for pattern in (*self.covered, *self.bookkeeping)
            if not any(fnmatchcase(target, pattern) for target in suspects)
        }


def is_suspected(name: str, function: Any) -> bool:
    """Does a function open a connection, or take what models take?"""
    return name in OPENING or not SUSPICIOUS.isdisjoint(inspect.signature(function).parameters)


def suspected(classes: Iterable[type]) -> Iterator[str]:
    """Targets of the classes' own public methods that are suspected."""
    for cls in classes:
        for name, function in public(vars(cls)):
            if is_suspected(name, function):
                yield f"{cls.__module__}:{cls.__name__}.{name}"


def public(members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Public functions; an asynchronous twin (``achat``) goes by the other."""
    for name, function in members.items():
        twin = name.startswith("a") and name[1:] in members
        if inspect.isfunction(function) and not name.startswith("_") and not twin:
            yield name, function
