"""What the detectors of index, search and filters share: pairs of searches, and how to name them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from neuronscope.diagnosis.comparing.case import Case, Group, groups
from neuronscope.diagnosis.comparing.columns import Columns, Mask, Table
from neuronscope.diagnosis.comparing.found import Found, compare_found
from neuronscope.diagnosis.comparing.result import Evidence

MIN_PAIRS: Final = 10
OVERLAP_FLOOR: Final = 0.02  # of overlap lost, beyond what the store does by itself
SHARE_FLOOR: Final = 0.05
OTHER_K_FLOOR: Final = 0.05  # of overlap, where k is another


def searches(side: Columns) -> Table:
    """The table that these detectors look at."""
    return side.searches


def by_place(case: Case, least: int = 3) -> list[Group]:
    """Searches by route, store and collection; of a route that searches elsewhere now, all its searches."""
    found = groups(case, searches, ("route", "store", "collection"), least)
    same = {route for (route, _, _), _, _ in found}
    for (route,), before, after in groups(case, searches, ("route",), least):
        if route not in same:
            found.append(((route, "the store", ""), before, after))
    return found


def unfiltered(case: Case) -> Found | None:
    """Pairs of searches without a filter, whose fault must not look like the index's; else all."""
    return paired(case, filtered=False) or paired(case)


def paired(case: Case, *, filtered: bool | None = None) -> Found | None:
    """What pairs of searches found; None where there are too few.

    Without pairs of vectors those of texts do not serve: another embedder would look like another index.
    """
    name = f"found {filtered}"
    if name not in case.memo:
        case.memo[name] = _paired(case, filtered)
    found: Found | None = case.memo[name]
    return found


def _paired(case: Case, filtered: bool | None) -> Found | None:
    tables = case.before.searches, case.after.searches
    ways = [
        list(zip(*(table.labels(name) for name in ("store", "collection", "namespace")), strict=True))
        for table in tables
    ]
    flags = tables[0].labels("filtered")
    k = tables[0].number("k"), tables[1].number("k")
    rows = [
        (row, later)
        for row, later in case.pairs.vectors
        if ways[0][row] == ways[1][later] and (filtered is None or flags[row] is filtered)
    ]
    if len(rows) < MIN_PAIRS:
        return None
    # With another k the hits that both would show are compared.
    other = [abs(k[0][row] - k[1][later]) > 0 for row, later in rows]
    most = [
        int(min(k[0][row], k[1][later])) if differs else None
        for (row, later), differs in zip(rows, other, strict=True)
    ]
    found = compare_found(tables[0], tables[1], rows, case.pairs.repeated, most)
    # An approximate search looks less far for fewer hits.
    return None if any(other) and found.moved < OTHER_K_FLOOR and not found.rescored else found


def overlap(case: Case, found: Found) -> Evidence:
    """Pairs that do not find the same, against repeats on one side that do not.

    Many repeats that all find the same make few pairs that do not telling.
    """
    repeats = max(found.n, found.repeats)
    share = case.share(
        "pairs of equal query vectors with other hits",
        (round((1.0 - found.alone) * repeats), len(found.changed)),
        (repeats, found.n),
    )
    return Evidence(
        "overlap of the hits of equal query vectors",
        found.alone,
        found.overlap,
        found.moved,
        "overlap",
        "1",
        found.n,
        found.n,
        share.p if share is not None else None,
    )


def changed_traces(case: Case, found: Found) -> tuple[list[str], list[str]]:
    """Traces of both sides whose pairs find something else."""
    names = case.before.searches.labels("trace"), case.after.searches.labels("trace")
    return [names[0][row] for row, _ in found.changed], [names[1][row] for _, row in found.changed]


def rows_of(side: Columns, mask: Mask, name: str) -> list[Any]:
    """A column of the searches' table."""
    return side.searches.rows(mask, name)


def traces_of(case: Case, before: Mask, after: Mask) -> tuple[list[str], list[str]]:
    """Traces of both sides."""
    return rows_of(case.before, before, "trace"), rows_of(case.after, after, "trace")


def filtered_empty(side: Columns, mask: Mask) -> tuple[int, int]:
    """How many searches with a filter find nothing, and how many there are."""
    return _empty(side, mask, filtered=True)


def bare_empty(side: Columns, mask: Mask) -> tuple[int, int]:
    """How many searches without a filter find nothing, and how many there are."""
    return _empty(side, mask, filtered=False)


def _empty(side: Columns, mask: Mask, *, filtered: bool) -> tuple[int, int]:
    table = side.searches
    returned = table.number("returned")
    rows = mask & np.array(table.labels("filtered"), bool).__eq__(filtered) & np.isfinite(returned)
    return int((returned[rows] == 0).sum()), int(rows.sum())


def subject_of(case: Case) -> str:
    """The collection that is searched most."""
    for side in case.sides:
        names = side.searches.labels("collection")
        if names:
            return str(max(set(names), key=names.count) or side.searches.labels("store")[0])
    return ""
