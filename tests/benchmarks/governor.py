"""The governor: what a decision costs, and whether whole processes keep to their budgets.

The truth is an outside comparison: the same service without NeuronScope, in another process, block by
block in turn; CPU time of the process for a request.  Watched is every module, in full: demand far beyond
every budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from tests.benchmarks import governor_demo
from tests.benchmarks.children import Child
from tests.benchmarks.figures import Figure, Run, at_least, at_most
from tests.benchmarks.governor_child import PATTERNS
from tests.benchmarks.governor_demo import turns
from tests.benchmarks.measure import loop_us, spread

BUDGETS: Final = ("1", "5", "15")
BLOCK_S: Final = 1.0
WARM_S: Final = 3.0
PATTERN_S: Final = 45.0  # how long the rounds of one pattern go on, see `turns`
ESTIMATES: Final = 20
MODULE: Final = "tests.benchmarks.governor_child"


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    if run.wants("governor.decision"):
        yield from decisions()
    patterns = [pattern for pattern in PATTERNS if run.wants(f"governor.overhead.{pattern}")]
    if patterns:
        modes = ("off", "idle", *BUDGETS)
        with ExitStack() as stack:
            children = {mode: stack.enter_context(Child(MODULE, mode)) for mode in modes}
            for pattern in patterns:
                yield from overhead(pattern, children, run)
    if run.wants("governor.measured"):
        yield from measured(run)
    if run.wants("governor.estimates"):
        yield from estimated()
    yield from governor_demo.figures(run)


# --- a decision ----------------------------------------------------------------------------------
def decisions() -> Iterator[Figure]:
    """Thread CPU time of a decision: one that grants, and one that refuses."""
    from neuronscope.governor import Budget
    from neuronscope.signals.records import Fidelity

    summary, off = Fidelity.SUMMARY, Fidelity.OFF  # looking them up takes a third as long as a decision
    budget = Budget(1000.0)
    budget.enter()
    site = budget.site("probe", "layer")

    def capture() -> None:
        if budget.admit(site, summary, 4096) is not off:
            budget.spend(site, summary, 4096, 2_000)
            budget.charge_worker("probe", 2_000, 1)

    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        capture()

    def granted() -> None:
        setattr(budget, "_surplus", 1e12)  # noqa: B010 - private: as if much had been earned
        budget.admit(site, summary, 4096)

    def set_only() -> None:
        setattr(budget, "_surplus", 1e12)  # noqa: B010 - private: as if much had been earned

    poor = Budget(1.0)
    poor.enter()
    other = poor.site("probe", "layer")
    while poor.admit(other, summary, 1 << 20) is not off:
        poor.spend(other, summary, 1 << 20, 5_000_000)

    note = "hot loop, least of 15 rounds, the loop's own cost taken off; granted: balance ample"
    yield Figure(
        "governor.decision.granted", _least(granted) - _least(set_only), "µs", at_most(0.3), note=note
    )
    refused = _least(lambda: poor.admit(other, summary, 1 << 20)) - _least(lambda: None)
    yield Figure("governor.decision.refused", refused, "µs", at_most(0.3), note="the same; captures closed")


def _least(call: Callable[[], Any]) -> float:
    return min(loop_us(call, 20_000) for _ in range(15))


# --- whole processes -----------------------------------------------------------------------------
def overhead(pattern: str, children: dict[str, Child], run: Run) -> Iterator[Figure]:
    """Overhead of each budget under a load pattern, against the same service unobserved."""
    modes = list(children)
    before = {mode: child.ask("tell") for mode, child in children.items() if mode != "off"}
    for child in children.values():
        child.ask("block", seconds=WARM_S, pattern=pattern)
    ratios: dict[str, list[float]] = {mode: [] for mode in modes[1:]}
    for turn in turns(run.rounds, PATTERN_S):
        order = modes if turn % 2 == 0 else modes[::-1]
        cpu = {
            mode: children[mode].ask("block", seconds=BLOCK_S, pattern=pattern)["cpu_us"] for mode in order
        }
        for mode, values in ratios.items():
            values.append(100 * (cpu[mode] / cpu["off"] - 1))
    told = {mode: children[mode].ask("tell") for mode in modes[1:]}
    for mode, values in ratios.items():
        found, facts = spread(values), told[mode]
        captured, skipped = (facts[key] - before[mode][key] for key in ("captured", "skipped"))
        yield Figure(
            f"governor.overhead.{pattern}.{mode}",
            found.median,
            "%",
            None if mode == "idle" else at_most(float(mode) + 1),
            spread=found,
            note=(
                f"CPU per request of the process against the same process without NeuronScope; accounted "
                f"{facts['accounted']:.2f} %; {captured} captures of {facts['layers']} modules, {skipped} "
                f"runs not captured"
            ),
        )


def estimated() -> Iterator[Figure]:
    """Is the truth within the error that is told, where only some of the runs were captured?"""
    with Child(MODULE, "1") as child:
        found = child.ask("estimates", rounds=ESTIMATES)
    yield Figure(
        "governor.estimates.within",
        100 * found["within"] / found["estimated"],
        "%",
        at_least(90),
        note=(
            f"layer means of {ESTIMATES} generations of 48 tokens within the told 95 % interval of the mean "
            f"over all runs ({found['estimated']} estimates, {100 * found['captured']:.0f} % of the runs); "
            "steps follow one another and are no independent sample"
        ),
    )


def measured(run: Run) -> Iterator[Figure]:
    """The agent's own experiment beside the outside truth: captures on against captures off."""
    with ExitStack() as stack:
        inside = stack.enter_context(Child(MODULE, "15", "0.5"))
        outside = {mode: stack.enter_context(Child(MODULE, mode)) for mode in ("idle", "15")}
        for child in outside.values():
            child.ask("block", seconds=WARM_S)
        inside.ask("block", seconds=2.0)
        ratios: list[float] = []
        for turn in turns(run.rounds, PATTERN_S):
            inside.ask("block", seconds=2.0)
            order = ("idle", "15") if turn % 2 == 0 else ("15", "idle")
            cpu = {mode: outside[mode].ask("block", seconds=BLOCK_S)["cpu_us"] for mode in order}
            ratios.append(100 * (cpu["15"] / cpu["idle"] - 1))
        told: Any = None
        for _ in range(10):
            told = inside.ask("tell")["measured"]
            if told is not None:
                break
            inside.ask("block", seconds=5.0)
    truth = spread(ratios)
    if told is None:
        yield Figure("governor.measured.error", None, "%", note="insufficient data")
        return
    estimate, low, high, accounted = (100 * value for value in told)
    yield Figure(
        "governor.measured.error",
        max(0.0, low - truth.median, truth.median - high),
        "%",
        at_most(1.0),
        spread=truth,
        note=(
            f"points by which the outside truth ({truth.median:.1f} %) lies beyond the agent's own interval "
            f"({low:.1f} to {high:.1f} %, estimate {estimate:.1f} %; accounted {accounted:.1f} %)"
        ),
    )
