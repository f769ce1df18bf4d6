"""The group ``retrieval``: what observing a vector query costs its caller, by store, beside the peers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    # Here, because children read this package in environments that lack what the module imports.
    from tests.benchmarks.retrieval import queries

    yield from queries.figures(run)
