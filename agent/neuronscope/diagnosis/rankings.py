"""How alike two lists of results are, and what moved between them.

Source: Webber, Moffat, Zobel, "A Similarity Measure for Indefinite Rankings" (ACM TOIS 28(4), 2010), for
rank-biased overlap, its extrapolation (their equation 32) and the weight that a prefix holds (21).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

# By depth of the lists: how much the top counts.  Of 0.9 the first ten ranks hold 86 % of the weight, of 0.8
# the first five.
PERSISTENCE_DEEP: Final = 0.9
PERSISTENCE_SHALLOW: Final = 0.8


def persistence(k: int) -> float:
    """The customary `p` of rank-biased overlap for lists of `k`."""
    return PERSISTENCE_DEEP if k > 5 else PERSISTENCE_SHALLOW


def overlap(left: Sequence[Hashable], right: Sequence[Hashable], k: int) -> float:
    """Share of the first `k` that both lists have; of the longer list's length if none has `k`.

    Empty lists agree.
    """
    depth = min(k, max(len(left), len(right)))
    return len(set(left[:k]) & set(right[:k])) / depth if depth else 1.0


def jaccard(left: Sequence[Hashable], right: Sequence[Hashable], k: int) -> float:
    """Items that both have among the first `k`, over those that any has.  Empty lists agree."""
    a, b = set(left[:k]), set(right[:k])
    return len(a & b) / len(a | b) if a or b else 1.0


def rbo(left: Sequence[Hashable], right: Sequence[Hashable], p: float = PERSISTENCE_DEEP) -> float:
    """Rank-biased overlap, extrapolated beyond the lists' ends; 1 for equal lists, 0 for disjoint ones.

    Lists may differ in length; an item counts once.  Empty lists agree.
    """
    short, long = sorted((list(dict.fromkeys(left)), list(dict.fromkeys(right))), key=len)
    s, length = len(short), len(long)
    if length == 0:
        return 1.0
    if s == 0:
        return 0.0
    common = _common(short, long)
    total = sum(x / d * p**d for d, x in enumerate(common, start=1))
    total += sum(common[s - 1] * (d - s) / (s * d) * p**d for d in range(s + 1, length + 1))
    tail = (common[-1] - common[s - 1]) / length + common[s - 1] / s
    return (1 - p) / p * total + tail * p**length


def _common(short: Sequence[Hashable], long: Sequence[Hashable]) -> list[int]:
    """Size of the intersection of the first d items, for each depth d of the longer list."""
    seen_short: set[Hashable] = set()
    seen_long: set[Hashable] = set()
    sizes: list[int] = []
    size = 0
    for depth, item in enumerate(long):
        seen_long.add(item)
        size += item in seen_short
        if depth < len(short):
            other = short[depth]
            seen_short.add(other)
            size += other in seen_long
        sizes.append(size)
    return sizes


@dataclass(frozen=True, slots=True)
class RankChange:
    """What a stage, a reranker for example, did to the order of what it was given.

    Attributes:
        moves: ranks that each item rose (positive) or fell, in the new order; ranks begin with 0.
        dropped: items that were given and not returned, in their old order.
        promoted: the new first item's old rank.
        rbo: rank-biased overlap of the new order with as many of the old; 1: nothing changed.
    """

    moves: tuple[int, ...]
    dropped: tuple[str, ...]
    promoted: int | None
    rbo: float


def rank_change(before: Sequence[str], after: Sequence[str]) -> RankChange:
    """Compare the order before a stage with the order after it; items that are new after it have no move."""
    ranks = {item: rank for rank, item in enumerate(before)}
    returned = set(after)
    return RankChange(
        moves=tuple(ranks[item] - rank for rank, item in enumerate(after) if item in ranks),
        dropped=tuple(item for item in before if item not in returned),
        promoted=ranks.get(after[0]) if after else None,
        rbo=rbo(before[: len(after)], after, persistence(len(after))),
    )
