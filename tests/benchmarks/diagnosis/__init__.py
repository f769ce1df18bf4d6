"""The group ``diagnosis``: how fast two recordings are compared, and how often what changed is named."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    from tests.benchmarks.diagnosis import compare, laboratory

    yield from compare.figures(run)
    yield from laboratory.figures(run)
