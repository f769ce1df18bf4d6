"""The governor on the demo: both programs of it, observed and not, question by question, under each budget.

What is compared is the CPU time of a question in both processes of the demo: its service (MiniLM, Qdrant, the
OpenAI client) and its model server (SmolLM2, 30 layers), each switched between the arms (`governor_arms`).
Every module is watched, in full, and recorded into `.nsz` files: demand far beyond every budget.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from tests.benchmarks.children import child_environment
from tests.benchmarks.figures import Figure, Run, at_most
from tests.benchmarks.governor_arms import OFF, ON, QUIET, there_and_back
from tests.benchmarks.governor_program import SOCKETS, Program, socket_path
from tests.benchmarks.pairs import agreement, excess, turns

from neuronscope.demo.models import prepare_smollm2
from neuronscope.demo.programs import MODEL_SERVER, RAG_SERVICE
from neuronscope.demo.runner import DemoProcesses, load_questions

# What is compared under each budget.  At one per cent next to nothing is captured.
BUDGETS: Final[Mapping[str, Sequence[str]]] = {
    "1": (OFF, ON),
    "5": (OFF, QUIET, ON),
    "15": (OFF, QUIET, ON),
}
KINDS: Final = ("demo", "demo_inside")
PREFIX: Final = (sys.executable, "-m", "tests.benchmarks.governor_program")
MOST_TURNS: Final = 400
LOAD_S: Final = (
    12.0  # how long the turns of one load and budget go on; an experiment takes a minute or two more
)
PRECISE: Final = 0.5  # points of an interval's half at which no more turns are needed
SOME: Final = 3  # questions at the same time
EXPERIMENT_S: Final = 300.0  # after which it has come to nothing
Load: TypeAlias = Callable[[DemoProcesses, int], None]


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time in µs, of each turn, by program and arm."""

    by_program: Mapping[str, Mapping[str, list[float]]]

    def both(self, arm: str) -> list[float]:
        """Of both programs together."""
        return [sum(turn) for turn in zip(*(spent[arm] for spent in self.by_program.values()), strict=True)]


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

    def experiment(self, load: Load) -> list[float] | None:
        """The model server's own experiment under this load: see `Arms.end_experiment`."""
        self.model.ask("start_experiment")
        end = time.monotonic() + EXPERIMENT_S
        for turn in itertools.count():
            if self.model.ask("experiment_ended") or time.monotonic() > end:
                break
            load(self.processes, turn)
        found: list[float] | None = self.model.ask("end_experiment")
        return found

    def turns(self, load: Load, arms: Sequence[str], run: Run) -> Cpu:
        """The load in each arm, there and back, so often as there is time for."""
        cpu = Cpu({name: {arm: [] for arm in arms} for name in self.programs})
        limit = run.seconds or (20 * LOAD_S if run.full else LOAD_S)
        for turn in turns(MOST_TURNS, limit, lambda: excess(cpu.both(ON), cpu.both(OFF)).half < PRECISE):
            self._turn(partial(load, self.processes, turn), arms, cpu)
        self.switch(ON)
        return cpu

    def _turn(self, load: Callable[[], object], arms: Sequence[str], cpu: Cpu) -> None:
        for spent in cpu.by_program.values():
            for arm in arms:
                spent[arm].append(0.0)
        for arm in there_and_back(arms):
            self.switch(arm)
            start = self._cpu()
            load()
            for name, now in self._cpu().items():
                cpu.by_program[name][arm][-1] += now - start[name]

    def _cpu(self) -> dict[str, float]:
        return {name: program.ask("cpu") for name, program in self.programs.items()}

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def figures(run: Run) -> Iterator[Figure]:
    """Overhead of each budget under each load; and whether what the agent says of it is so."""
    for budget, arms in BUDGETS.items():
        wanted = [
            load for load in LOADS if run.wants(*(f"governor.{kind}.{load}.{budget}" for kind in KINDS))
        ]
        if not wanted:
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            Demo(Path(folder) / budget, prepare_smollm2(), budget) as demo,
        ):
            for load in wanted:
                yield from overhead(load, budget, arms, demo, run)


def environment(budget: str, folder: Path) -> dict[str, str]:
    """Settings of both programs; short answers, so that more questions go into the time."""
    return {
        "PYTHONPATH": child_environment(sys.executable)["PYTHONPATH"],
        SOCKETS: str(folder),
        "RAG_MAX_TOKENS": "8",
        "NEURONSCOPE_MAX_OVERHEAD_PCT": budget,
        "NEURONSCOPE_PROBES": "**:full",
        "NEURONSCOPE_NSZ": str(folder / "segments"),
        "NEURONSCOPE_NSZ_KEEP_BYTES": str(1 << 30),
        "NEURONSCOPE_PROMETHEUS": "0",
    }


def overhead(load: str, budget: str, arms: Sequence[str], demo: Demo, run: Run) -> Iterator[Figure]:
    """What observation costs the demo under a load; and whether what the agent says of it is so.

    Where much is captured the agent first measures itself, as it does by default, and learns from that.
    """
    inside = demo.experiment(LOADS[load]) if QUIET in arms else None
    before = demo.model.ask("accounts")
    cpu = demo.turns(LOADS[load], arms, run)
    told = demo.model.ask("accounts")
    found = excess(cpu.both(ON), cpu.both(OFF))
    captured, closed = (told[key] - before[key] for key in ("captured", "unseen_calls"))
    yield Figure(
        f"governor.demo.{load}.{budget}",
        found.value,
        "%",
        at_most(float(budget) + 1),
        interval=(found.low, found.high, found.pairs),
        note=(
            "CPU of both of the demo's processes for the same questions, observed and not, in turns there "
            f"and back; the model server: accounted {told['accounted']:.2f} %, factor {told['factor']:.2f}, "
            f"{captured} captures of {told['layers']} modules, {closed} calls not looked into"
        ),
    )
    if QUIET in arms:
        model = cpu.by_program[MODEL_SERVER]
        yield agreement(f"governor.demo_inside.{load}.{budget}", inside, excess(model[ON], model[QUIET]))


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
