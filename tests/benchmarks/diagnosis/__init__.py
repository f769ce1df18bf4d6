"""The group ``diagnosis``: how fast two recordings are compared, and how often what changed is named."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    from tests.benchmarks.diagnosis import compare, laboratory

    yield from compare.figures(run)
    scores = ("diagnosis.top1_pct", "diagnosis.top3_pct", "diagnosis.false_alarms_pct", "diagnosis.fault.")
    if run.wants(*scores):
        yield from laboratory.figures(run)
