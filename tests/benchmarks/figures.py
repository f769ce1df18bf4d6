"""A figure: one thing measured, the goal it has, and what the peers showed in the same run."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from tests.benchmarks.measure import Spread
from tests.benchmarks.venvs import ROOT

RESULTS = ROOT / "benchmarks.json"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must reach; the bound is in the figure's unit."""

    relation: Literal["≤", "≥"]
    bound: float

    def met_by(self, value: float) -> bool:
        """Does the value reach the goal?"""
        return value <= self.bound if self.relation == "≤" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


def at_most(bound: float) -> Goal:
    """A goal from above."""
    return Goal("≤", bound)


def at_least(bound: float) -> Goal:
    """A goal from below."""
    return Goal("≥", bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: ``group.figure``.
        value: ours; None when it could not be measured (`note` says why).
        goal: what we owe, if this figure has a goal.
        peers: what each peer showed in the same run, by its title; None where it could not be measured.
        spread: quartiles and number of samples behind `value`.
        note: how it was measured, and what was not equal work.
        interval: ends of the 95 % interval of `value`, and the number of pairs behind it.
    """

    name: str
    value: float | None
    unit: str
    goal: Goal | None = None
    peers: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    spread: Spread | None = None
    note: str = ""
    interval: tuple[float, float, int] | None = None

    @property
    def ok(self) -> bool | None:
        """Is the goal met?  None without a goal or a value."""
        return None if self.goal is None or self.value is None else self.goal.met_by(self.value)

    @property
    def peer(self) -> float | None:
        """The best peer's value: the lowest, or the highest where more is better."""
        known = [value for value in self.peers.values() if value is not None]
        if not known:
            return None
        return max(known) if self.goal is not None and self.goal.relation == "≥" else min(known)

    def to_json(self) -> dict[str, Any]:
        """The printed object."""
        told: dict[str, Any] = {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "goal": None if self.goal is None else str(self.goal),
            "peer": _rounded(self.peer),
            "ok": self.ok,
        }
        if self.peers:
            told["peers"] = {title: _rounded(value) for title, value in self.peers.items()}
        if self.spread is not None:
            told["iqr"] = [_rounded(self.spread.low), _rounded(self.spread.high)]
            told["n"] = self.spread.n
        if self.interval is not None:
            low, high, told["n"] = self.interval
            told["ci95"] = [_rounded(low), _rounded(high)]
        if self.note:
            told["note"] = self.note
        return told


def _rounded(value: float | None) -> float | None:
    """Four significant digits: more would be noise."""
    return None if value is None else float(f"{value:.4g}")


@dataclass(slots=True)
class Run:
    """What one run of the benchmarks was asked for, and what groups tell about it.

    Attributes:
        full: take the long variant (a million calls).
        rounds: interleaved rounds of each comparison.
        only: measure only figures whose name contains one of these; all, if empty.
        seconds: how long one comparison may go on, where a group heeds it; None: its own limit.
        versions: versions of what was measured, by title; filled by groups.
        facts: further facts for the report, in sentences; filled by groups.
    """

    full: bool = False
    rounds: int = 11
    only: tuple[str, ...] = ()
    seconds: float | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    facts: list[str] = field(default_factory=list[str])

    def wants(self, *names: str) -> bool:
        """Is any of these figures (or families of them) asked for?"""
        return not self.only or any(part in name or name in part for part in self.only for name in names)


def save(
    group: str,
    run: Run,
    figures: Iterable[Figure],
    seconds: float,
    path: Path = RESULTS,
    *,
    merge: bool = False,
) -> None:
    """Put a group's figures into the results, in place of its earlier ones: of all, or of the same names."""
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    before: dict[str, Any] = results.get(group, {}) if merge else {}
    measured = {figure.name: figure.to_json() for figure in figures}
    kept = {figure["name"]: figure for figure in before.get("figures", ())}
    results[group] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "seconds": round(seconds) + before.get("seconds", 0),
        "versions": {**before.get("versions", {}), **_own_versions(), **run.versions},
        "facts": [*before.get("facts", ()), *run.facts],
        "figures": list({**kept, **measured}.values()),
    }
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def machine() -> str:
    """This machine in a line."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} × {model}, {platform.system()} {platform.release()}, CPython {platform.python_version()}"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def _own_versions() -> dict[str, str]:
    shown = ("openai", "qdrant-client", "opentelemetry-sdk", "protobuf", "neuronscope")
    installed = {dist.metadata["Name"].lower(): dist.version for dist in distributions()}
    return {name: installed[name] for name in shown if name in installed}
