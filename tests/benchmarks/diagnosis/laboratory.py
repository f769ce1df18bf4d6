"""How often ``ns.compare`` names the truth: every fault of the laboratory with two seeds, and fifty controls.

Recordings are made at the agent's default settings with content off; see `tests.faults.changes`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import Figure, Run, at_least, at_most
from tests.faults.recorder import Studio
from tests.faults.scoring import Outcome, Scoring, score

SEEDS = (0, 1)
CONTROLS = 50


def figures(run: Run) -> Iterator[Figure]:
    """The score, then one figure a fault; ten seeds and two hundred controls in the long variant."""
    seeds, controls = (range(10), 200) if run.full else (SEEDS, CONTROLS)
    with tempfile.TemporaryDirectory() as folder, Studio() as studio:
        scoring = Scoring(studio, Path(folder))
        outcomes = [*scoring.faults(seeds), *scoring.controls(controls)]
    found = score(outcomes)
    wrong = "; ".join(filter(None, map(_told, outcomes)))
    faults, days = f"{found.faults} comparisons with a fault", f"{found.controls} comparisons without one"
    yield Figure(
        "diagnosis.top1_pct", found.top1, "%", at_least(95), note=f"{faults}; wrong: {wrong or 'none'}"
    )
    yield Figure("diagnosis.top3_pct", found.top3, "%", at_least(99), note=faults)
    yield Figure("diagnosis.false_alarms_pct", found.false_alarms, "%", at_most(1), note=days)
    by_name = {item.change.name: item.change for item in outcomes}
    for name, share in found.by_fault.items():
        change = by_name[name]
        note = "; ".join(filter(None, (f"recording level: {change.level}", change.simulated)))
        yield Figure(f"diagnosis.fault.{name.replace(' ', '_')}", share, "%", note=note)


def _told(outcome: Outcome) -> str:
    """What was said instead; empty if it was right."""
    if outcome.right:
        return ""
    return f"{outcome.change.name}: {', '.join(outcome.kinds) or 'nothing'}"
