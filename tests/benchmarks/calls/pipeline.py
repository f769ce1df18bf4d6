"""What happens behind the call: CPU of a span from call to wire, throughput, other threads' delay, exit,
memory; ours beside the SDK with the same telemetry written by hand."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

from tests.benchmarks.calls.openai_child import CHARACTERS_ENV
from tests.benchmarks.calls.pipeline_child import NOTHING
from tests.benchmarks.calls.side_by_side import OURS
from tests.benchmarks.children import Child, ChildError, child_environment, log_path
from tests.benchmarks.figures import Figure, Goal, Run, at_least, at_most
from tests.benchmarks.measure import Spread, spread
from tests.benchmarks.venvs import ROOT

CHILD: Final = "tests.benchmarks.calls.pipeline_child"
CLIENT: Final = "tests.benchmarks.calls.openai_child"
SINK: Final = "tests.benchmarks.sink"
SDK: Final = "OpenTelemetry SDK by hand"
SIDES: Final = {OURS: "NeuronScope", "sdk": SDK}
# Spans a second, tried one after another until one cannot be sustained.
RATES: Final = {
    OURS: (2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000),
    "sdk": (2_500, 5_000, 7_500, 10_000, 15_000, 20_000),
}
EXIT_LIMIT_S: Final = 40.0


def figures(run: Run) -> Iterator[Figure]:
    """All figures on the pipeline; what fails is told as not measured, and the rest goes on."""
    for names, measure in _PARTS:
        if not run.wants(*names):
            continue
        try:
            yield from measure(run)
        except ChildError as error:
            yield from (Figure(name, None, "", note=f"not measured: {error}") for name in names)


# --- one call in other circumstances ---------------------------------------------------------------------
def _modes(run: Run) -> Iterator[Figure]:
    by_hand = _hot(run, "sdk-by-hand")
    note = "thread CPU added to the wrapped function alone, called in a loop; chat, content off"
    never = {"OTEL_TRACES_SAMPLER": "always_off"}
    unsampled = {SDK: _hot(run, "sdk-by-hand", env=never).median}
    yield _mode("off", _hot(run, f"{OURS}:off"), at_most(1), {}, note + "; NEURONSCOPE_ENABLED=false")
    yield _mode(
        "not_sampled",
        _hot(run, OURS, env=never),
        at_most(1),
        unsampled,
        note + "; OTEL_TRACES_SAMPLER=always_off; both sides still record metrics",
    )
    yield _mode(
        "foreign",
        _hot(run, f"{OURS}:foreign"),
        at_most(30),
        {SDK: by_hand.median},
        note + "; the service has a TracerProvider with a processor of its own",
    )
    large, small = (_hot(run, OURS, "content", {CHARACTERS_ENV: size}) for size in ("200000", "1000"))
    yield Figure(
        "calls.prompt_200kB_ratio",
        large.median / small.median,
        "×",
        at_most(2),
        spread=None,
        note=f"hot path with content on, 200 kB prompt ({large.median:.3g} µs) against 1 kB "
        f"({small.median:.3g} µs)",
    )


def _hot(run: Run, name: str, content: str = "no_content", env: Mapping[str, str] | None = None) -> Spread:
    with Child(CLIENT, name, content, env=env) as child:
        rounds = [child.ask("round", name="chat", hot=True, n=200, turn=turn) for turn in range(run.rounds)]
    return spread([on - off for off, on in rounds])


def _mode(name: str, value: Spread, goal: Goal, peers: Mapping[str, float | None], note: str) -> Figure:
    return Figure(f"calls.{name}_hot", value.median, "µs", goal, peers, value, note)


# --- CPU from call to wire -------------------------------------------------------------------------------
def _cpu(run: Run) -> Iterator[Figure]:
    whole: dict[str, list[float]] = {side: [] for side in SIDES}
    hot: dict[str, list[float]] = {side: [] for side in SIDES}
    encode: dict[str, list[float]] = {side: [] for side in SIDES}
    rounds = max(3, run.rounds // 2)
    with _Sides() as sides:
        for _ in range(rounds):
            for side, child in sides.children.items():
                told = child.ask("cpu", n=4 * 512)
                whole[side].append(told["process_us"])
                hot[side].append(told["hot_us"])
        for _ in range(rounds):
            for side, child in sides.children.items():
                encode[side].append(child.ask("encode", n=4))
    value = spread(whole[OURS])
    share = statistics.median(hot[OURS])
    sdk = statistics.median(whole["sdk"])
    yield Figure(
        "calls.span_cpu",
        value.median,
        "µs/span",
        at_most(20),
        {SDK: sdk},
        value,
        f"CPU of the whole process for one call observed, three histogram records and OTLP over "
        f"HTTP to the loopback; of it {share:.3g} µs in the calling thread; ours "
        "also sends its metrics with every batch",
    )
    times = sdk / value.median
    yield Figure(
        "calls.span_cpu_vs_sdk", times, "×", at_least(4.75), note="how many times less than the SDK by hand"
    )
    value = spread(encode[OURS])
    sdk = statistics.median(encode["sdk"])
    yield Figure(
        "calls.encode",
        value.median,
        "µs/span",
        at_most(7),
        {SDK: sdk},
        value,
        "OTLP bytes of finished spans, 512 a batch",
    )


class _Sides:
    """A collector, and a child of each side that exports to it."""

    def __init__(self, *sides: str) -> None:
        self._names = sides or tuple(SIDES)
        self._stack = ExitStack()
        self.children: dict[str, Child] = {}
        self.sink: Child

    def __enter__(self) -> _Sides:
        self.sink = self._stack.enter_context(Child(SINK, "answering"))
        port = str(self.sink.ask("port"))
        for side in self._names:
            self.children[side] = self._stack.enter_context(Child(CHILD, side, port))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


# --- throughput ------------------------------------------------------------------------------------------
def _sustained(run: Run) -> Iterator[Figure]:
    best: dict[str, float] = {}
    tried: dict[str, str] = {}
    for side in SIDES:
        with _Sides(side) as sides:
            best[side], tried[side] = _highest(sides.children[side], sides.sink, RATES[side])
    yield Figure(
        "calls.sustained",
        best[OURS],
        "spans/s",
        at_least(40_000),
        {SDK: best["sdk"]},
        note="highest rate tried (3 s each, one producer, default queues) with nothing dropped, the "
        "pace kept and the queue not growing; three histogram records a span; wall clock, so a "
        f"lower bound on a busy machine. Failed at: NeuronScope "
        f"{tried[OURS]}; SDK {tried['sdk']}",
    )


def _highest(child: Child, sink: Child, rates: tuple[int, ...]) -> tuple[float, str]:
    """The highest sustained rate, and what went wrong at the next."""
    child.ask("produce", rate=1_000, seconds=0.5)
    best = 0.0
    for rate in rates:
        child.ask("cpu", n=512)  # leaves the queue empty
        before = sink.ask("spans")
        made = child.ask("produce", rate=rate, seconds=3.0)
        arrived = sink.ask("spans") - before
        child.ask("cpu", n=512)
        total = sink.ask("spans") - before - 2 * 512
        lost = made["spans"] - total
        real = made["spans"] / made["seconds"]
        # Exports come once a second; what waits longer is a queue that grows.
        backlog = made["spans"] - arrived
        if lost > 0:
            return best, f"{rate:,}/s, {100 * lost / made['spans']:.0f} % lost"
        if real < 0.95 * rate:
            return best, f"{rate:,}/s, the producer reached only {real:,.0f}/s"
        if backlog > 1.3 * rate + 2_048:
            return best, f"{rate:,}/s, {backlog:,.0f} spans behind"
        best = real
    return best, "none of those tried"


# --- other threads ---------------------------------------------------------------------------------------
def _lateness(run: Run) -> Iterator[Figure]:
    late: dict[str, list[dict[str, float]]] = {"idle": [], OURS: [], "sdk": []}
    with _Sides() as sides:
        for _ in range(4):
            late["idle"].append(sides.children[OURS].ask("lateness", rate=1_000, seconds=3.0, observed=False))
            for side, child in sides.children.items():
                late[side].append(child.ask("lateness", rate=1_000, seconds=3.0, observed=True))
    p99 = {side: spread([one["p99"] for one in rounds]) for side, rounds in late.items()}
    yield Figure(
        "calls.wakeup_p99",
        p99[OURS].median,
        "ms",
        at_most(1),
        {SDK: p99["sdk"].median},
        p99[OURS],
        "how late another thread wakes from 1 ms of sleep at 1,000 spans/s; without observation "
        f"{p99['idle'].median:.3g} ms on this machine in the same run",
    )


# --- exit ------------------------------------------------------------------------------------------------
def _exits(run: Run) -> Iterator[Figure]:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = closed.getsockname()[1]
        yield _exit("exit_dead", dead, "nothing listens at the collector's address")
    with Child(SINK, "silent") as sink:
        yield _exit("exit_silent", sink.ask("port"), "the collector accepts connections and never answers")


def _exit(name: str, port: int, note: str) -> Figure:
    plain = _exit_seconds(NOTHING, port)
    seconds = {side: _exit_seconds(side, port) - plain for side in SIDES}
    return Figure(
        f"calls.{name}",
        seconds[OURS],
        "s",
        at_most(2),
        {SDK: seconds["sdk"]},
        note=f"added to the time from a service's last statement to its end ({plain:.2g} s), "
        f"100 spans waiting; {note}; ended by force after {EXIT_LIMIT_S:g} s",
    )


def _exit_seconds(side: str, port: int) -> float:
    env = child_environment(sys.executable)
    with log_path(f"exit-{side}").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", CHILD, side, str(port), "--exit", "100"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=env,
        )
        assert process.stdout is not None
        last = float(process.stdout.readline())
        try:
            process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
    return time.time() - last


# --- memory ----------------------------------------------------------------------------------------------
def _memory(run: Run) -> Iterator[Figure]:
    total = 1_000_000 if run.full else 100_000
    points: dict[str, list[float]] = {}
    with _Sides(OURS) as sides:
        for side, child in sides.children.items():
            points[side] = [child.ask("memory", n=total // 10) for _ in range(10)]
    told = ", ".join(f"{point:.1f}" for point in points[OURS])
    yield Figure(
        "calls.memory_growth",
        _growth(points[OURS]),
        "MiB",
        at_most(2),
        {},
        note=f"resident memory after the last of {total:,} calls against after the third tenth; "
        f"at each tenth: {told}",
    )


def _growth(points: list[Any]) -> float:
    return float(points[-1] - points[2])


_PARTS: Final[tuple[tuple[tuple[str, ...], Callable[[Run], Iterator[Figure]]], ...]] = (
    (
        ("calls.off_hot", "calls.not_sampled_hot", "calls.foreign_hot", "calls.prompt_200kB_ratio"),
        _modes,
    ),
    (("calls.span_cpu", "calls.span_cpu_vs_sdk", "calls.encode"), _cpu),
    (("calls.sustained",), _sustained),
    (("calls.wakeup_p99",), _lateness),
    (("calls.exit_dead", "calls.exit_silent"), _exits),
    (("calls.memory_growth",), _memory),
)
