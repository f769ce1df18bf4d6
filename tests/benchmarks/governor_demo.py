"""The governor on the demo: both programs of it, observed and not, question by question, under each budget.

What is compared is the CPU time of a question in both processes of the demo: its service (MiniLM, Qdrant, the
OpenAI client) and its model server (SmolLM2, 30 layers), each switched between the arms (`governor_arms`).
Every module is watched, in full, and recorded into `.nsz` files: demand far beyond every budget.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from tests.benchmarks.children import OUR_ROOTS
from tests.benchmarks.figures import Figure, Goal, Run, at_most
from tests.benchmarks.governor_arms import OFF, ON, QUIET, there_and_back
from tests.benchmarks.governor_program import SOCKETS, Program, socket_path
from tests.benchmarks.pairs import agreement, excess, turns
from tests.benchmarks.venvs import ROOT

from neuronscope.demo.models import prepare_smollm2
from neuronscope.demo.runner import MODEL_SERVER, RAG_SERVICE, DemoProcesses, load_questions

BUDGETS: Final = ("1", "5", "15")
PREFIX: Final = (sys.executable, "-m", "tests.benchmarks.governor_program")
MOST_TURNS: Final = 400
LOAD_S: Final = 12.0  # how long the turns of one load and budget go on; the whole group has ten minutes
PRECISE: Final = 0.5  # points of an interval's half at which no more turns are needed
SOME: Final = 3  # questions at the same time
# The agent's own experiment: a question takes some seconds, and a block has to hold three of them.
EXPERIMENT_BLOCK_S: Final = 8.0
EXPERIMENT_S: Final = 600.0
Load: TypeAlias = Callable[[DemoProcesses, int], None]
INSIDE: Final = {budget: f"governor.demo.inside.{budget}" for budget in ("5", "15")}


class Demo:
    """A running demo, and the benchmark's end of its two programs.

    Args:
        folder: its working directory.
        model: what `prepare_smollm2` returned.
        budget: in per cent.
    """

    def __init__(self, folder: Path, model: Path, budget: str) -> None:
        self._stack = ExitStack()
        self._arm = ON
        folder.mkdir()
        self.processes = self._stack.enter_context(
            DemoProcesses(folder, model, command_prefix=PREFIX, environment=environment(budget, folder))
        )
        self.programs = {
            name: self._stack.enter_context(Program(socket_path(folder, name)))
            for name in (RAG_SERVICE, MODEL_SERVER)
        }

    @property
    def model(self) -> Program:
        """The model server, which is what captures slow down."""
        return self.programs[MODEL_SERVER]

    def switch(self, arm: str) -> None:
        """Be one arm from now on.  What is done once after it is in no block."""
        before, self._arm = self._arm, arm
        if arm == before:
            return
        for program in self.programs.values():
            program.ask("switch", arm=arm)
        if before == OFF:
            one(self.processes, "Well?")

    def cpu(self, only: str | None) -> float:
        """CPU time of one program so far, or of both, in µs."""
        return sum(
            float(program.ask("cpu")) for name, program in self.programs.items() if only in (None, name)
        )

    def turns(
        self, load: Load, arms: tuple[str, str], run: Run, only: str | None = None
    ) -> dict[str, list[float]]:
        """The load in both arms, there and back, so often as there is time for.

        Args:
            load: asks something.
            arms: that are compared.
            run: says how long.
            only: count this program; None: both.

        Returns:
            CPU time in µs, of each turn, by arm.
        """
        cpu: dict[str, list[float]] = {arm: [] for arm in arms}
        limit = run.seconds or (20 * LOAD_S if run.full else LOAD_S)
        base, arm = arms
        for turn in turns(MOST_TURNS, limit, lambda: excess(cpu[arm], cpu[base]).half < PRECISE):
            for one, spent in self._turn(partial(load, self.processes, turn), arms, only).items():
                cpu[one].append(spent)
        self.switch(ON)
        return cpu

    def _turn(self, load: Callable[[], object], arms: Sequence[str], only: str | None) -> dict[str, float]:
        cpu = dict.fromkeys(arms, 0.0)
        for arm in there_and_back(arms):
            self.switch(arm)
            start = self.cpu(only)
            load()
            cpu[arm] += self.cpu(only) - start
        return cpu

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def figures(run: Run) -> Iterator[Figure]:
    """Overhead of each budget under each load; and whether what the agent says of it is so."""
    for budget in BUDGETS:
        wanted = {load: name for load in LOADS if run.wants(name := f"governor.demo.{load}.{budget}")}
        # It takes many minutes: only where it is asked for.
        inside = INSIDE.get(budget) if run.full or any("demo.inside" in part for part in run.only) else None
        if not wanted and not inside:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            Demo(Path(folder) / budget, prepare_smollm2(), budget) as demo,
        ):
            for load, name in wanted.items():
                yield overhead(name, demo, LOADS[load], at_most(float(budget) + 1), run)
            if inside:
                yield told_inside(inside, demo, run)


def environment(budget: str, folder: Path) -> dict[str, str]:
    """Settings of both programs; short answers, since these machines write three tokens a second."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *OUR_ROOTS]),
        SOCKETS: str(folder),
        "RAG_MAX_TOKENS": "8",
        "NEURONSCOPE_MAX_OVERHEAD_PCT": budget,
        "NEURONSCOPE_PROBES": "**:full",
        "NEURONSCOPE_OVERHEAD_BLOCK_S": str(EXPERIMENT_BLOCK_S),
        "NEURONSCOPE_NSZ": str(folder / "segments"),
        "NEURONSCOPE_NSZ_KEEP_BYTES": str(1 << 30),
        "NEURONSCOPE_PROMETHEUS": "0",
    }


def overhead(name: str, demo: Demo, load: Load, goal: Goal, run: Run) -> Figure:
    """What observation costs the demo under a load."""
    before = demo.model.ask("accounts")
    cpu = demo.turns(load, (OFF, ON), run)
    told = demo.model.ask("accounts")
    found = excess(cpu[ON], cpu[OFF])
    captured, closed = (told[key] - before[key] for key in ("captured", "unseen_calls"))
    return Figure(
        name,
        found.value,
        "%",
        goal,
        interval=(found.low, found.high, found.pairs),
        note=(
            "CPU of both of the demo's processes for the same questions, observed and not, in turns "
            f"off-on-on-off; the model server accounts {told['accounted']:.2f} %; {captured} captures of "
            f"{told['layers']} modules, {closed} calls not looked into"
        ),
    )


def told_inside(name: str, demo: Demo, run: Run) -> Figure:
    """Is the model server's captures' cost, measured outside, in the interval that its agent publishes?"""
    demo.model.ask("start_experiment")
    end = time.monotonic() + EXPERIMENT_S
    for turn in itertools.count():
        if demo.model.ask("experiment_ended") or time.monotonic() > end:
            break
        steady(demo.processes, turn)
    inside = demo.model.ask("end_experiment")
    cpu = demo.turns(steady, (QUIET, ON), run, only=MODEL_SERVER)
    return agreement(name, inside, excess(cpu[ON], cpu[QUIET]))


# --- loads ---------------------------------------------------------------------------------------
def steady(demo: DemoProcesses, turn: int) -> None:
    """One question after the other."""
    demo.ask(load_questions()[turn % SOME].question)


def long(demo: DemoProcesses, turn: int) -> None:
    """A question of a thousand characters: one large prefill."""
    text = " ".join(question.question for question in load_questions())
    start = turn % SOME
    demo.ask(text[start : start + 990])


def threads(demo: DemoProcesses, _: int) -> None:
    """Questions at the same time."""
    with ThreadPoolExecutor(SOME) as pool:
        texts = [question.question for question in load_questions()[:SOME]]
        list(pool.map(partial(one, demo), texts))


def bursts(demo: DemoProcesses, turn: int) -> None:
    """Many requests that need no model, then one that does, then silence."""
    for _ in range(20):
        health(demo)
    demo.ask(load_questions()[turn % SOME].question)
    time.sleep(0.5)


LOADS: Final[dict[str, Load]] = {
    "steady": steady,
    "bursts": bursts,
    "long": long,
    "threads": threads,
}


def one(demo: DemoProcesses, question: str) -> None:
    """A question on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.service_port, timeout=150)
    try:
        connection.request(
            "POST", "/ask", json.dumps({"question": question}), {"Content-Type": "application/json"}
        )
        connection.getresponse().read()
    finally:
        connection.close()


def health(demo: DemoProcesses) -> None:
    """A request that costs the service almost nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.service_port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    finally:
        connection.close()
