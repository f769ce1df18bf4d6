"""Runs changes through ``ns.compare`` and counts how often the truth was named.

Days before a fault are recorded once a seed and starting point; days of the controls stand in rings, each
compared with the next, so that every one is a "before" once and an "after" once.

Seeds come in sets that share no day.  Thresholds were looked at with the first two; a score counts from a set
that no detector was changed for.  But for the first set, every seed and every ring has users of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.changes import CONTROLS, FAULTS, Change
from tests.faults.recorder import Studio

import neuronscope as ns
from neuronscope.diagnosis.kinds import Kind

if TYPE_CHECKING:
    from neuronscope.diagnosis.comparing.result import Comparison

TUNED = 0  # the set of seeds with which detectors are written
SET = 100  # seeds of a set
RING = 5  # days of controls that have the same users


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was made of one change.

    Attributes:
        kinds: causes named, likeliest first.
        comparison: all that was said; None if another process said it.
    """

    change: Change
    seed: int
    kinds: tuple[Kind, ...]
    seconds: float
    comparison: Comparison | None = None

    @property
    def rank(self) -> int | None:
        """Place of the first cause that names the truth, from 1; None if none does."""
        places = (place for place, kind in enumerate(self.kinds, 1) if kind in self.change.expected)
        return next(places, None)

    @property
    def right(self) -> bool:
        """The truth first; for a control, nothing."""
        return self.rank == 1 if self.change.expected else not self.kinds


@dataclass(frozen=True, slots=True)
class Score:
    """Shares, in per cent.

    Attributes:
        top1, top3: of the faults.
        false_alarms: of the controls.
        by_fault: top-1 by the fault's name.
    """

    top1: float
    top3: float
    false_alarms: float
    faults: int
    controls: int
    by_fault: dict[str, float] = field(default_factory=dict[str, float])


def score(outcomes: Sequence[Outcome]) -> Score:
    """Count."""
    faults = [item for item in outcomes if item.change.expected]
    controls = [item for item in outcomes if not item.change.expected]
    by_fault: dict[str, list[bool]] = {}
    for item in faults:
        by_fault.setdefault(item.change.name, []).append(item.right)
    return Score(
        top1=_share([item.right for item in faults]),
        top3=_share([item.rank is not None and item.rank <= 3 for item in faults]),
        false_alarms=_share([not item.right for item in controls]),
        faults=len(faults),
        controls=len(controls),
        by_fault={name: _share(found) for name, found in by_fault.items()},
    )


def in_another_process(*arguments: str) -> Callable[[], list[Outcome]]:
    """Start ``python -m tests.faults`` with these arguments; the function returned waits for its outcomes."""
    command = [sys.executable, "-m", "tests.faults", *arguments, "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    changes = {change.name: change for change in (*FAULTS, *CONTROLS)}

    def outcomes() -> list[Outcome]:
        out, errors = child.communicate()
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{errors}")
        return [
            Outcome(
                changes[told["change"]], told["seed"], tuple(map(Kind, told["kinds"])), float(told["seconds"])
            )
            for told in map(json.loads, out.splitlines())
        ]

    return outcomes


def _share(found: Sequence[bool]) -> float:
    return 100 * sum(found) / len(found) if found else 0.0


class Scoring:
    """Recordings in a folder, and comparisons of them.

    Args:
        number: of the set of seeds.
    """

    def __init__(self, studio: Studio, folder: Path, number: int = TUNED) -> None:
        self._studio = studio
        self._folder = folder
        self._set = number
        self._before: dict[tuple[str, int], Path] = {}

    def compare(self, change: Change, seed: int) -> Outcome:
        """A day without the change, a day with it, and what is made of the two."""
        return _compared(change, seed, *self.record(change, seed))

    def record(self, change: Change, seed: int) -> tuple[Path, Path]:
        """Both days."""
        seed += SET * self._set
        start = (change.start.__name__, seed)
        if start not in self._before:
            name = f"before {start[0]} {seed}"
            self._before[start] = self._record(name, change, seed, 2 * seed, applied=False)
        after = self._record(f"{change.name} {seed}", change, seed, 2 * seed + 1)
        return self._before[start], after

    def _record(self, name: str, change: Change, users: int, seed: int, *, applied: bool = True) -> Path:
        day = change.start()
        if self._set != TUNED:
            day.traffic = day.traffic.of_others(users)
        if applied:
            change.apply(day)
        return self._studio.record(self._folder / name, day, seed)

    def faults(self, seeds: Sequence[int], faults: Sequence[Change] = FAULTS) -> Iterator[Outcome]:
        """Every fault with every seed of the set."""
        for seed in seeds:
            for fault in faults:
                yield self.compare(fault, seed)

    def controls(self, n: int, controls: Sequence[Change] = CONTROLS) -> Iterator[Outcome]:
        """So many comparisons of days between which nothing changed that is a cause."""
        for number, control in enumerate(controls):
            size = n // len(controls) + (number < n % len(controls))
            first = 10_000 + 1_000 * self._set + 100 * number
            for at in range(0, size, RING):
                yield from self._ring(control, first + at, min(RING, size - at))

    def _ring(self, control: Change, seed: int, size: int) -> Iterator[Outcome]:
        days = [
            # Every second day has what the control is about, so that each comparison has it on one side.
            self._record(f"{control.name} {at} control", control, seed, at, applied=bool((at - seed) % 2))
            for at in range(seed, seed + max(2, size))
        ]
        for at in range(size):
            yield _compared(control, seed + at, days[at], days[(at + 1) % len(days)])


def _compared(change: Change, seed: int, before: Path, after: Path) -> Outcome:
    began = time.perf_counter()
    found = ns.compare(before, after)
    return Outcome(change, seed, found.kinds, time.perf_counter() - began, found)
