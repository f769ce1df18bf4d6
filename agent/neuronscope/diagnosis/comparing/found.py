"""What paired searches found before and after: the pattern that tells lost documents from a lazy search.

Two searches with the same query vector must find the same documents with the same scores, as often as two on
the same side do.  Where they do not, the pattern says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from neuronscope.diagnosis.comparing.columns import Table
from neuronscope.diagnosis.comparing.pairs import Rows
from neuronscope.diagnosis.rankings import overlap

SAME_SCORE = 2e-4  # relative: what another order of summation, or half precision of the answer, does


@dataclass
class Found:
    """Differences of pairs of searches, all together.

    Attributes:
        overlap: mean share of hits that both have; `alone`: the same of `repeats` on one side.
        lost: hits that are gone; `vanished`: of those, hits of documents that the other side never finds.
        arrived: new hits; `unseen`: of those, of documents that the first side never finds.
        rescored: of hits that both have, those with another score; `fell`: to a lower one.
        rescored_documents: (documents with another score, documents compared).
        shortened: pairs whose later list is the first part of the earlier one; `lengthened`: the reverse.
        emptied: pairs that find nothing any more; `filled`: the reverse.
        twins: hits with the very score of their neighbour, before and after.
        hits: before and after.
    """

    n: int = 0
    overlap: float = 1.0
    alone: float = 1.0
    repeats: int = 0
    lost: int = 0
    vanished: int = 0
    arrived: int = 0
    unseen: int = 0
    common: int = 0
    rescored: int = 0
    fell: int = 0
    rescored_documents: tuple[int, int] = (0, 0)
    shortened: int = 0
    lengthened: int = 0
    emptied: int = 0
    filled: int = 0
    reordered: int = 0
    twins: list[int] = field(default_factory=lambda: [0, 0])
    hits: list[int] = field(default_factory=lambda: [0, 0])
    vanished_documents: set[str] = field(default_factory=set[str])
    unseen_documents: set[str] = field(default_factory=set[str])
    changed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    score_ratio: float = 1.0

    @property
    def moved(self) -> float:
        """How much less alike than by themselves."""
        return max(0.0, self.alone - self.overlap)


def compare_found(
    before: Table, after: Table, pairs: Rows, repeated: tuple[Rows, Rows], most: Sequence[int | None]
) -> Found:
    """Compare the hits of paired searches, and of searches that each side repeated.

    Args:
        most: of each pair, how many hits both were asked for at least; None: as many as there are.
    """
    found = Found()
    found.alone, found.repeats = _by_itself((before, after), repeated)
    ids = before.labels("ids"), after.labels("ids")
    scores = before.labels("scores"), after.labels("scores")
    seen = tuple({name for each in side for name in each} for side in ids)
    total = 0.0
    documents: dict[str, list[int]] = {}
    ratios: list[float] = []
    for (row, later), least in zip(pairs, most, strict=True):
        old, new = ids[0][row][:least], ids[1][later][:least]
        _note_list(found, old, new)
        k = max(len(old), len(new))
        alike = overlap(old, new, k) if k else 1.0
        total += alike
        if alike < 1.0:
            found.changed.append((row, later))
        gone, fresh = set(old) - set(new), set(new) - set(old)
        found.lost += len(gone)
        found.arrived += len(fresh)
        missing, unseen = gone - seen[1], fresh - seen[0]
        found.vanished += len(missing)
        found.unseen += len(unseen)
        found.vanished_documents |= missing
        found.unseen_documents |= unseen
        values = scores[0][row][:least], scores[1][later][:least]
        _note_scores(found, (old, values[0]), (new, values[1]), documents, ratios)
    found.n = len(pairs)
    found.overlap = total / found.n if found.n else 1.0
    changed = sum(1 for same, other in documents.values() if other > same)
    found.rescored_documents = changed, len(documents)
    if ratios:
        ratios.sort()
        found.score_ratio = ratios[len(ratios) // 2]
    return found


def _by_itself(tables: tuple[Table, Table], repeated: tuple[Rows, Rows]) -> tuple[float, int]:
    """Mean overlap of two searches with the same vector on the same side, and how many there are."""
    values = [
        overlap(ids[row], ids[later], max(len(ids[row]), len(ids[later]), 1))
        for table, rows in zip(tables, repeated, strict=True)
        for ids in (table.labels("ids"),)
        for row, later in rows[:2_000]
    ]
    return (sum(values) / len(values), len(values)) if len(values) >= 5 else (1.0, 0)


def _note_list(found: Found, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    if old and not new:
        found.emptied += 1
    elif new and not old:
        found.filled += 1
    elif len(new) < len(old) and new == old[: len(new)]:
        found.shortened += 1
    elif len(old) < len(new) and old == new[: len(old)]:
        found.lengthened += 1
    if set(old) == set(new) and old != new:
        found.reordered += 1


def _note_scores(
    found: Found,
    old: tuple[tuple[str, ...], tuple[float, ...]],
    new: tuple[tuple[str, ...], tuple[float, ...]],
    documents: dict[str, list[int]],
    ratios: list[float],
) -> None:
    for place, (ids, values) in enumerate((old, new)):
        found.hits[place] += len(ids)
        found.twins[place] += sum(math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-9) for a, b in pairwise(values))
    if len(old[0]) != len(old[1]) or len(new[0]) != len(new[1]):
        return
    later = dict(zip(*new, strict=True))
    for name, score in zip(*old, strict=True):
        now = later.get(name)
        if now is None:
            continue
        found.common += 1
        other = abs(now - score) > SAME_SCORE * max(abs(score), abs(now), 1e-6)
        found.rescored += other
        found.fell += other and now < score
        documents.setdefault(name, [0, 0])[other] += 1
        if other and score:
            ratios.append(now / score)


def twins(table: Table) -> tuple[int, int]:
    """(hits with the very score of their neighbour, hits) of all searches."""
    same = hits = 0
    for scores in table.labels("scores"):
        hits += max(0, len(scores) - 1)
        same += sum(math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-9) for a, b in pairwise(scores))
    return same, hits


def popularity(table: Table) -> tuple[Counter[str], int]:
    """By how many different query vectors each document was found, and how many found any."""
    asked: dict[object, set[str]] = {}
    for row, (vector, ids) in enumerate(zip(table.labels("fingerprint"), table.labels("ids"), strict=True)):
        if ids:  # what finds nothing at all tells of a filter, or of everything
            asked.setdefault(vector or row, set()).update(ids)
    return Counter(name for ids in asked.values() for name in ids), len(asked)
