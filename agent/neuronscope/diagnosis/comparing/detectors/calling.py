"""What the detectors of model calls share: rows of both sides, and how to name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from neuronscope.diagnosis.comparing.case import Case, groups
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask, Table

Masks: TypeAlias = tuple[Mask, Mask]  # rows before, rows after
WRITERS: Final = frozenset({"chat", "text_completion", "generate_content"})


def calls(side: Columns) -> Table:
    """The table that these detectors look at."""
    return side.calls


def written(case: Case, least: int = 3) -> Iterator[tuple[str, Masks]]:
    """Calls to models that write, by route."""
    for (operation, route), before, after in groups(case, calls, ("operation", "route"), least):
        if operation in WRITERS:
            yield route, (before, after)


def both(case: Case, masks: Masks, column: str) -> tuple[list[Any], list[Any]]:
    """A column of labels of both sides."""
    return case.before.calls.rows(masks[0], column), case.after.calls.rows(masks[1], column)


def known(case: Case, masks: Masks, column: str) -> tuple[list[Any], list[Any]]:
    """The same without labels that are empty."""
    before, after = both(case, masks, column)
    return [value for value in before if value], [value for value in after if value]


def numbers(case: Case, masks: Masks, column: str) -> tuple[Floats, Floats]:
    """A column of numbers of both sides."""
    return case.before.calls.number(column)[masks[0]], case.after.calls.number(column)[masks[1]]


def traces(case: Case, masks: Masks) -> tuple[list[str], list[str]]:
    """Traces of both sides."""
    return both(case, masks, "trace")


def at_route(route: str) -> str:
    """A route, as the end of a phrase."""
    return f" of {route}" if route else ""
