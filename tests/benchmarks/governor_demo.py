"""The governor on the demo: both programs of it, bare and under each budget, block by block in turn.

What is compared is the CPU time of a question in all processes of a demo: its service (MiniLM, Qdrant, the
OpenAI client) and its model server (SmolLM2, 30 layers).  Every module is watched, in full, and recorded into
`.nsz` files: demand far beyond every budget.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from tests.benchmarks.figures import Figure, Run, at_most
from tests.benchmarks.measure import spread

from neuronscope.cli.demo import PREFIX
from neuronscope.demo.models import prepare_smollm2
from neuronscope.demo.runner import DemoProcesses, load_questions

BARE: Final = "bare"
BUDGETS: Final = ("1", "5", "15")
SETTLE_S: Final = 0.3  # until the workers have written what a block left them
LEAST_ROUNDS: Final = 4
LOAD_S: Final = 50.0  # how long the rounds of one load go on; the whole group has ten minutes
SOME: Final = 3  # questions of a block


def turns(rounds: int, limit_s: float) -> Iterator[int]:
    """Numbers of the rounds: as many as asked for, or as go into the time, but `LEAST_ROUNDS`."""
    started = time.monotonic()
    for turn in range(rounds):
        if turn >= LEAST_ROUNDS and time.monotonic() - started > limit_s:
            return
        yield turn


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
            yield from overhead(load, demos, run.rounds)


def environment(mode: str, folder: Path) -> dict[str, str]:
    """Settings of both programs; short answers, since these machines write three tokens a second."""
    rag = {"RAG_MAX_TOKENS": "8"}
    if mode == BARE:
        return rag
    return {
        **rag,
        "NEURONSCOPE_MAX_OVERHEAD_PCT": mode,
        "NEURONSCOPE_PROBES": "**:full",
        "NEURONSCOPE_NSZ": str(folder / f"{mode}.segments"),
        "NEURONSCOPE_NSZ_KEEP_BYTES": str(1 << 30),
        "NEURONSCOPE_PROMETHEUS": "0",
    }


def overhead(load: str, demos: dict[str, DemoProcesses], rounds: int) -> Iterator[Figure]:
    """Interleaved blocks of one load; each budget against the bare demo."""
    ratios: dict[str, list[float]] = {budget: [] for budget in BUDGETS}
    for demo in demos.values():
        LOADS[load](demo)  # warms up
    for turn in turns(rounds, LOAD_S):
        order = list(demos) if turn % 2 == 0 else list(reversed(demos))
        cpu = {mode: block(demos[mode], LOADS[load]) for mode in order}
        for budget, values in ratios.items():
            values.append(100 * (cpu[budget] / cpu[BARE] - 1))
    for budget, values in ratios.items():
        found = spread(values)
        yield Figure(
            f"governor.demo.{load}.{budget}",
            found.median,
            "%",
            at_most(float(budget) + 1),
            spread=found,
            note="CPU per question of all the demo's processes against the same demo without NeuronScope",
        )


def block(demo: DemoProcesses, load: Callable[[DemoProcesses], int]) -> float:
    """CPU time of a question in seconds, over one block."""
    before = cpu_s(demo)
    asked = load(demo)
    time.sleep(SETTLE_S)
    return (cpu_s(demo) - before) / asked


def cpu_s(demo: DemoProcesses) -> float:
    """CPU time of the demo's programs so far."""
    total = 0.0
    for pid in demo.pids.values():
        for process in psutil.Process(pid).children(recursive=True):
            times = process.cpu_times()
            total += times.user + times.system
    return total


# --- loads ---------------------------------------------------------------------------------------
def steady(demo: DemoProcesses) -> int:
    """One question after the other."""
    for question in load_questions()[:SOME]:
        demo.ask(question.question)
    return SOME


def long(demo: DemoProcesses) -> int:
    """Questions of a thousand characters: one large prefill."""
    text = " ".join(question.question for question in load_questions())
    for start in range(2):
        demo.ask(text[start : start + 990])
    return 2


def threads(demo: DemoProcesses) -> int:
    """Questions at the same time."""
    with ThreadPoolExecutor(SOME) as pool:
        texts = [question.question for question in load_questions()[:SOME]]
        return sum(pool.map(partial(one, demo), texts))


def bursts(demo: DemoProcesses) -> int:
    """Many requests that need no model, then one that does, then silence."""
    for _ in range(20):
        health(demo)
    demo.ask(load_questions()[0].question)
    time.sleep(0.5)
    return 1


LOADS: Final[dict[str, Callable[[DemoProcesses], int]]] = {
    "steady": steady,
    "bursts": bursts,
    "long": long,
    "threads": threads,
}


def one(demo: DemoProcesses, question: str) -> int:
    """A question on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.service_port, timeout=150)
    try:
        connection.request(
            "POST", "/ask", json.dumps({"question": question}), {"Content-Type": "application/json"}
        )
        connection.getresponse().read()
    finally:
        connection.close()
    return 1


def health(demo: DemoProcesses) -> None:
    """A request that costs the service almost nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.service_port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    finally:
        connection.close()
