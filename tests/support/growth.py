"""What repeated use leaves behind, told apart from what other threads of this process do meanwhile."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

TRIES = 4


def growth(counted: Callable[[], int], use: Callable[[], object], enough: int) -> int:
    """By how much a count of the whole process grows with each use: the least of some tries.

    What a use leaves, it leaves every time; a server of another test, or a library's pool, does not.

    Args:
        counted: what is counted.
        use: done once for each try.
        enough: a growth below it needs no other try.
    """
    grown: list[int] = []
    while len(grown) < TRIES and (not grown or grown[-1] >= enough):
        gc.collect()
        before = counted()
        use()
        gc.collect()
        grown.append(counted() - before)
    return min(grown)


def traced_growth(use: Callable[[], object], enough: int) -> int:
    """The same of Python's memory, in bytes."""
    tracemalloc.start()
    try:
        return growth(lambda: tracemalloc.get_traced_memory()[0], use, enough)
    finally:
        tracemalloc.stop()
