"""How often ``ns.compare`` names the truth: every fault of the laboratory with two seeds, and 105 controls.

Recordings are made at the agent's default settings with content off; see `tests.faults.changes`.  Seeds and
users are of a set that no detector was written or changed with: who changes one for what this finds, takes
another set from then on (`tests.faults.scoring`).  Faults and controls are recorded at once, a process each.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.figures import Figure, Run, at_least, at_most
from tests.faults.scoring import Outcome, in_another_process, score

HELD_APART = 5  # the set of seeds; those before it were looked at
SEEDS = 2
CONTROLS = 105


def figures(run: Run) -> Iterator[Figure]:
    """The score, then one figure a fault; ten seeds and 420 controls in the long variant."""
    seeds, controls = (10, 420) if run.full else (SEEDS, CONTROLS)
    of = ("--set", str(HELD_APART))
    waiting = [
        in_another_process("--seeds", str(seeds), "--controls", "0", *of),
        in_another_process("--seeds", "0", "--controls", str(controls), *of),
    ]
    outcomes = [outcome for wait in waiting for outcome in wait()]
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
