"""The group ``calls``: what observing calls costs, in the caller's thread and behind it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    # Here, because children read this package in environments that lack what these modules import.
    from tests.benchmarks.calls import clients, pipeline

    yield from clients.figures(run)
    yield from pipeline.figures(run)
