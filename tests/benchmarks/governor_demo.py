"""The governor on the demo: both programs of it, bare and under each budget, block by block in turn.

What is compared is the CPU time of a question in all processes of a demo: its service (MiniLM, Qdrant, the
OpenAI client) and its model server (SmolLM2, 30 layers).  Every module is watched, in full, and recorded into
`.nsz` files: demand far beyond every budget.  A demo is charged all that it does from one of its blocks to
the next, so that nothing is left out that a worker does later.
"""

from __future__ import annotations

import http.client
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from tests.benchmarks.figures import Figure, Run, at_most
from tests.benchmarks.pairs import Excess, excess, turns

from neuronscope.cli.demo import PREFIX
from neuronscope.demo.models import prepare_smollm2
from neuronscope.demo.runner import DemoProcesses, load_questions

BARE: Final = "bare"
BUDGETS: Final = ("1", "5", "15")
SETTLE_S: Final = 2.0  # until the workers have done what the last block left them
MOST_ROUNDS: Final = 16
LOAD_S: Final = 42.0  # how long the rounds of one load go on; the whole group has ten minutes
PRECISE: Final = 2.0  # points of an interval's half at which no more rounds are needed
SOME: Final = 3  # questions at the same time


def figures(run: Run) -> Iterator[Figure]:
    """Overhead of each budget under each load."""
    wanted = [load for load in LOADS if run.wants(f"governor.demo.{load}")]
    if not wanted:
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = prepare_smollm2()
        demos = {
            mode: stack.enter_context(
                DemoProcesses(
                    folder / mode,
                    model,
                    command_prefix=() if mode == BARE else PREFIX,
                    environment=environment(mode, folder),
                )
            )
            for mode in (BARE, *BUDGETS)
        }
        for load in wanted:
            yield from overhead(load, demos, run)


def environment(mode: str, folder: Path) -> dict[str, str]:
    """Settings of both programs; short answers, since these machines write three tokens a second."""
    rag = {"RAG_MAX_TOKENS": "8"}
    if mode == BARE:
        return rag
    return {
        **rag,
        "NEURONSCOPE_MAX_OVERHEAD_PCT": mode,
        "NEURONSCOPE_PROBES": "**:full",
        "NEURONSCOPE_OVERHEAD_MEASURE": "false",  # it would switch captures off meanwhile
        "NEURONSCOPE_NSZ": str(folder / f"{mode}.segments"),
        "NEURONSCOPE_NSZ_KEEP_BYTES": str(1 << 30),
        "NEURONSCOPE_PROMETHEUS": "0",
    }


def overhead(load: str, demos: dict[str, DemoProcesses], run: Run) -> Iterator[Figure]:
    """Interleaved blocks of one load; each budget against the bare demo."""
    readings: dict[str, list[float]] = {mode: [] for mode in demos}

    def found(budget: str) -> Excess:
        return excess(list(_steps(readings[budget])), list(_steps(readings[BARE])))

    for demo in demos.values():
        LOADS[load](demo, 0)  # warms up
    time.sleep(SETTLE_S)
    most, limit = (4 * MOST_ROUNDS, 8 * LOAD_S) if run.full else (MOST_ROUNDS, LOAD_S)
    if run.seconds is not None:
        most, limit = 64 * MOST_ROUNDS, run.seconds
    enough = partial(_precise, found)
    for turn in turns(most, limit, enough):
        for mode in demos if turn % 2 == 0 else reversed(demos):
            readings[mode].append(cpu_s(demos[mode]))
            LOADS[load](demos[mode], turn)
    time.sleep(SETTLE_S)
    for mode, demo in demos.items():
        readings[mode].append(cpu_s(demo))
    for budget in BUDGETS:
        told = found(budget)
        yield Figure(
            f"governor.demo.{load}.{budget}",
            told.value,
            "%",
            at_most(float(budget) + 1),
            interval=(told.low, told.high, told.pairs),
            note=(
                "CPU for the same questions of all the demo's processes, against the same demo without "
                "NeuronScope; without the agent's own experiment, so that captures are never off"
            ),
        )


def _steps(readings: Sequence[float]) -> Iterator[float]:
    return (later - earlier for earlier, later in itertools.pairwise(readings))


def _precise(found: Callable[[str], Excess]) -> bool:
    return all(found(budget).half < PRECISE for budget in BUDGETS)


def cpu_s(demo: DemoProcesses) -> float:
    """CPU time of the demo's programs so far."""
    total = 0.0
    for pid in demo.pids.values():
        for process in psutil.Process(pid).children(recursive=True):
            times = process.cpu_times()
            total += times.user + times.system
    return total


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


LOADS: Final[dict[str, Callable[[DemoProcesses, int], None]]] = {
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
