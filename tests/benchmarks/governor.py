"""The governor: what a decision costs, and whether whole processes keep to their budgets.

The truth is an outside comparison: whole processes observed and not observed, block by block, by the CPU time
that they need for the same requests.  Watched is every module, in full: demand far beyond every budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from tests.benchmarks import governor_demo
from tests.benchmarks.children import Child
from tests.benchmarks.figures import Figure, Run, at_least, at_most
from tests.benchmarks.governor_arms import OFF, ON, QUIET
from tests.benchmarks.governor_child import PATTERNS
from tests.benchmarks.measure import loop_us
from tests.benchmarks.pairs import PRECISE, Excess, agreement, excess, turns

from neuronscope.governor import intervals
from neuronscope.governor.hidden import AROUND

BUDGETS: Final = ("1", "5", "15")
# What is compared in each process.  At one per cent next to nothing is captured.
ARMS: Final[Mapping[str, Sequence[str]]] = {
    "idle": (OFF, ON),
    "1": (OFF, ON),
    "5": (OFF, QUIET, ON),
    "15": (OFF, QUIET, ON),
}
WARM_S: Final = 2.0
LIMIT_S: Final = 12.0  # of the turns of one process under one pattern
MOST_TURNS: Final = 60
ESTIMATES: Final = 48
MODULE: Final = "tests.benchmarks.governor_child"


def figures(run: Run) -> Iterator[Figure]:
    """All figures of the group."""
    if run.wants("governor.decision"):
        yield from decisions()
    wanted = [
        pattern
        for pattern in PATTERNS
        if run.wants(*(f"governor.{kind}.{pattern}" for kind in ("overhead", "inside", "unseen")))
    ]
    if wanted:
        with ExitStack() as stack:
            children = {mode: stack.enter_context(Child(MODULE, mode)) for mode in ARMS}
            for pattern in wanted:
                for mode, child in children.items():
                    yield from overhead(pattern, mode, child, run)
    if run.wants("governor.switched_off"):
        yield switched_off(run)
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
def overhead(pattern: str, mode: str, child: Child, run: Run) -> Iterator[Figure]:
    """What observation costs one process under a load; and whether what the agent says of it is so."""
    child.ask("serve", pattern=pattern, seconds=WARM_S)
    arms = ARMS[mode]
    inside: Any = child.ask("measure", pattern=pattern) if QUIET in arms else None
    before = child.ask("tell")
    cpu: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in turns(_most(run), _limit(run), lambda: excess(cpu[ON], cpu[OFF]).half < PRECISE):
        for arm, spent in child.ask("turn", pattern=pattern, arms=arms).items():
            cpu[arm].append(spent)
    told = child.ask("tell")
    found = excess(cpu[ON], cpu[OFF])
    captured, skipped, closed = (told[key] - before[key] for key in ("captured", "skipped", "unseen_calls"))
    yield Figure(
        f"governor.overhead.{pattern}.{mode}",
        found.value,
        "%",
        None if mode == "idle" else at_most(float(mode) + 1),
        interval=(found.low, found.high, found.pairs),
        note=(
            f"CPU of the whole process for the same requests, observed and not, in turns off-on-on-off; "
            f"accounted {told['accounted']:.2f} %; factor {told['factor']:.2f}; {captured} captures of "
            f"{told['layers']} modules, {skipped} runs not captured, {closed} calls not looked into"
        ),
    )
    if mode == "idle":
        yield unseen(f"governor.unseen.{pattern}", told["accounted"], found)
    if QUIET in arms:
        yield agreement(f"governor.inside.{pattern}.{mode}", inside, excess(cpu[ON], cpu[QUIET]))


def unseen(name: str, accounted: float, truth: Excess) -> Figure:
    """By what multiple of its accounted cost the service pays what is never withheld: see `hidden.AROUND`."""
    return Figure(
        name,
        truth.value / accounted,
        "×",
        interval=(truth.low / accounted, truth.high / accounted, truth.pairs),
        note=f"outside cost of spans and looks into calls over the accounted one; taken to be {AROUND:g}",
    )


def switched_off(run: Run) -> Figure:
    """A process whose observation is switched off, against one without NeuronScope: is the switch honest?"""
    cpu: dict[str, list[float]] = {"off": [], "15": []}
    with ExitStack() as stack:
        children = {mode: stack.enter_context(Child(MODULE, mode)) for mode in cpu}
        for child in children.values():
            child.ask("serve", seconds=WARM_S)
        calls = [child.ask("calls", calls=8) for child in children.values()]
        assert calls[0] == calls[1]
        for turn in turns(_most(run), _limit(run)):
            for mode in cpu if turn % 2 == 0 else reversed(cpu):
                cpu[mode].append(children[mode].ask("turn", arms=["off"])["off"])
    found = excess(cpu["15"], cpu["off"])
    return Figure(
        "governor.switched_off",
        found.value,
        "%",
        interval=(found.low, found.high, found.pairs),
        note="two processes: some of it is where things happen to lie in memory, for as long as they live",
    )


def _most(run: Run) -> int:
    return 8 * MOST_TURNS if run.full or run.seconds is not None else MOST_TURNS


def _limit(run: Run) -> float:
    if run.seconds is not None:
        return run.seconds
    return 8 * LIMIT_S if run.full else LIMIT_S


def estimated() -> Iterator[Figure]:
    """Is the truth within the error that is told, and of how many layers is one told?"""
    with Child(MODULE, "1") as child:
        found = child.ask("estimates", rounds=ESTIMATES)
    told, within, layers = found["told"], found["within"], found["layers"]
    known = sum(told["prefill"])
    for stratum, what, suffix in (("decode", "over the decoding", ".decode"), ("call", "over all runs", "")):
        pairs = [pair for pair in zip(within[stratum], told[stratum], strict=True) if pair[1]]
        right, estimates = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        share, half = sum(right) / sum(estimates), intervals.excess(right, estimates)[1]
        yield Figure(
            f"governor.estimates.within{suffix}",
            100 * share,
            "%",
            at_least(90),
            interval=(100 * (share - half), min(100.0, 100 * (share + half)), len(pairs)),
            note=(
                f"layers' means of {ESTIMATES} generations of 48 tokens, captured in scopes of 20, 40 and "
                f"80 %, within the told 95 % interval of the mean {what} ({sum(estimates)} estimates of "
                f"{len(pairs)} independent generations, {100 * found['captured']:.0f} % of the runs)"
            ),
        )
        yield Figure(
            f"governor.estimates.told{suffix}",
            100 * sum(estimates) / layers,
            "%",
            note=(
                f"of the {layers} layers that the spans can tell of: such an interval is told; of the others "
                "the span says that too little is known (a third of the steps before the first captured one "
                "or half of them in a row not captured, fewer than three, or all alike"
                + ("" if suffix else ", or the prefill not captured")
                + f"); the prefill itself is told of {100 * known / layers:.0f} %, "
                f"{sum(within['prefill'])} of {known} rightly"
            ),
        )
