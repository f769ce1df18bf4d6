"""Interventions beside nnsight: what a touched module costs, in stacks of 50 to 5,000 modules, in one
process.

The model is a stack of ``Linear(8, 8)``, so that nearly all of the time is interception.  Each figure is the
thread CPU time of a traced call over that of the plain one, for each module.  Variants take turns; the median
is given.  The machine's memory and neighbours move these figures by half: judge by the ratio to nnsight.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import requires, version
from typing import Any, Final

from tests.benchmarks.children import OUR_ROOTS, Child
from tests.benchmarks.figures import Figure, Goal, Run, at_least, at_most
from tests.benchmarks.pairs import middle
from tests.benchmarks.venvs import ROOT, UnavailableError, environment

MODULE: Final = "tests.benchmarks.interventions_child"
SIZES: Final = (50, 200, 500, 2_000, 5_000)
NNSIGHT: Final = "nnsight==0.8.1"
# The largest that each may cost, in µs for each module.
GOALS: Final[Mapping[str, Goal]] = {"read": at_most(2.5), "read_write": at_most(2.5)}
KINDS: Final = ("idle", "untouched", "read", "tree", "edit", "read_write", "input_output", "cache")
TOUCHING: Final = frozenset(KINDS) - {"idle", "untouched"}
RATIO: Final = at_least(2.5)
SMOLLM2_PAIRS: Final = 8  # for each round of the others: forwards of 0.1 s that differ by 2 %


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    python, env, note = _python(run)
    with Child(MODULE, python=python, env=env) as child:
        for size in SIZES:
            wanted = [kind for kind in KINDS if run.wants(f"interventions.{kind}.{size}")]
            if wanted:
                told = child.ask("stack", size=size, rounds=max(5, run.rounds * min(1, 500 / size)))
                yield from _stack(size, wanted, told, note)
        if run.wants("interventions.fixed", "interventions.ops", "interventions.generation"):
            yield from _others(child.ask("others", rounds=run.rounds), note)
        if run.wants("interventions.smollm2"):
            yield from _smollm2(child.ask("smollm2", rounds=SMOLLM2_PAIRS * run.rounds), note)


def _python(run: Run) -> tuple[str, dict[str, str], str]:
    """An interpreter with nnsight: this one if it has it, else that of an environment made for both."""
    if importlib.util.find_spec("nnsight") is not None:
        return sys.executable, {}, ""
    try:
        made = environment(
            "nnsight", [NNSIGHT, f"torch=={version('torch')}", "greenlet", *_our_dependencies()]
        )
    except UnavailableError as error:
        run.facts.append(str(error))
        return sys.executable, {}, f"; {error}"
    return str(made.python), {"PYTHONPATH": os.pathsep.join([str(ROOT), *OUR_ROOTS])}, ""


def _our_dependencies() -> list[str]:
    """What every install of ours needs."""
    return [line for line in requires("neuronscope") or () if "extra ==" not in line]


def _stack(size: int, kinds: list[str], told: Mapping[str, Any], note: str) -> Iterator[Figure]:
    how = f"stack of {size:,} Linear(8, 8); median of {told['rounds']} rounds over the plain call{note}"
    for kind in kinds:
        ours, theirs = told["ours"][kind], told["nnsight"].get(kind)
        yield Figure(
            f"interventions.{kind}.{size}", ours, "µs", GOALS.get(kind), peers={"nnsight": theirs}, note=how
        )
        if kind in TOUCHING and theirs is not None:
            yield Figure(
                f"interventions.{kind}_ratio.{size}", theirs / ours, "×", RATIO,
                note=f"nnsight's cost over ours, in the same rounds: {theirs:.2f} and {ours:.2f} µs",
            )  # fmt: skip


def _others(told: Mapping[str, Any], note: str) -> Iterator[Figure]:
    for name, how in (
        ("fixed", "a trace that touches nothing, over the plain call"),
        ("ops", "one read of a torch function inside a module, over an untouched trace"),
        ("generation", "each step of a loop that reads and writes one module"),
    ):
        ours, theirs = told["ours"][name], told["nnsight"].get(name)
        yield Figure(
            f"interventions.{name}", ours, "µs", peers={"nnsight": theirs},
            note=f"{how}; median of {told['rounds']} rounds{note}",
        )  # fmt: skip
        if theirs is not None:
            yield Figure(
                f"interventions.{name}_ratio", theirs / ours, "×", RATIO if name != "fixed" else None,
                note=f"nnsight's cost over ours, in the same rounds: {theirs:.1f} and {ours:.1f} µs",
            )  # fmt: skip


def _smollm2(told: Mapping[str, Any], note: str) -> Iterator[Figure]:
    ours, noise = middle(told["ours"]), middle(told["noise"])
    theirs = None if told["nnsight"] is None else middle(told["nnsight"]).value
    yield Figure(
        "interventions.smollm2", ours.value, "%", at_most(1.0), peers={"nnsight": theirs},
        interval=(ours.low, ours.high, ours.pairs),
        note=f"one read and write for each of {told['layers']} layers, over a plain forward of "
        f"{told['tokens']} tokens ({told['plain_ms']:.0f} ms); median of pairs; pairs of plain forwards say "
        f"{noise.value:+.1f} % [{noise.low:.1f}, {noise.high:.1f}]{note}",
    )  # fmt: skip
