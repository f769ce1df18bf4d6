"""The group ``model``: what looking into a model costs, from one tensor to every module."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    from tests.benchmarks.model import compare

    yield from compare.figures(run)
