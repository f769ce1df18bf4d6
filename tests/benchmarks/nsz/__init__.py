"""The group ``nsz``: the file format beside the `mcap` package, Arrow, HDF5, SQLite and safetensors."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    # Here, because children read this package in an environment that lacks what this module imports.
    from tests.benchmarks.nsz import compare

    yield from compare.figures(run)
