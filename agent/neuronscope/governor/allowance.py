"""Captures that are decided beforehand: noted when they happen, and settled in bulk later.

Asking the budget for each capture, and paying for each, costs more than most captures.  So a budget advances
an allowance, out of which compiled code takes what captures are expected to cost (`_native/torch_notes.c`).
What they really cost is settled before anybody decides by the balance again, or reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from neuronscope import compiled


class AllowanceInPython:
    """What a budget has advanced.

    Attributes:
        left: what has not been taken yet, in ns.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0.0


Allowance: Final[Any] = compiled.choose("Allowance", AllowanceInPython)


class Unsettled:
    """Notes of captures that no budget has been told of.  `neuronscope.notes` says how they are settled."""

    __slots__ = ("_busy", "_settle", "_waiting")

    def __init__(self) -> None:
        self._busy = 0
        self._waiting: Callable[[], int] = compiled.find("notes_waiting") or int
        self._settle: Callable[[], None] = _nothing

    def by(self, settle: Callable[[], None]) -> None:
        """This is how; nobody is about it."""
        self._settle = settle
        self._busy = 0

    @property
    def waiting(self) -> int:
        """How many captures that are."""
        return self._waiting()

    def settle(self) -> None:
        """Tell the budgets, and everybody else; wait for whoever is about it.

        Never call it with a budget's lock held.
        """
        if self._busy or self._waiting():
            self._settle()

    @contextmanager
    def settling(self) -> Generator[None]:
        """Within, notes are taken and told: by one thread at a time."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1


def _nothing() -> None:
    return None


UNSETTLED: Final = Unsettled()
