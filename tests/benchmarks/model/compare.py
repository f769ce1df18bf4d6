"""Runs every way in turn, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Final

from tests.benchmarks.children import Child, ChildError
from tests.benchmarks.figures import Figure, Goal, Run, at_most
from tests.benchmarks.measure import spread
from tests.benchmarks.pairs import middle
from tests.benchmarks.venvs import UnavailableError, environment

MODULE: Final = "tests.benchmarks.model.child"
# Without their dependencies: they must run on this environment's torch.
PACKAGES: Final = (
    "nvdlfw-inspect==0.2.2", "torchlens==2.36.1", "transformer-lens==4.3.0", "einops", "jaxtyping",
    "wadler-lindig", "beartype", "fancy-einsum", "better-abc", "typeguard", "pandas", "python-dateutil",
    "pytz", "pyyaml", "datasets", "dill", "multiprocess",
    "xxhash", "sentencepiece", "graphviz",
)  # fmt: skip
PEERS: Final = ("naive torch", "torch.profiler", "TransformerLens", "nvdlfw-inspect", "torchlens")
GOALS: Final = {
    "adapter": at_most(5.0),
    "platform": at_most(5.0),
    "sampled": at_most(0.5),
    "idle": at_most(1.0),
}
KERNEL: Final = {10_000: None, 1_000_000: at_most(2.2), 10_000_000: at_most(1.8)}
LONG: Final = 10_000_000  # elements for which peers take a second: in fewer rounds
FORWARDS: Final = {"small": 4, "base": 2}
ROUNDS: Final = {"small": 5, "base": 3}  # of peers
# Of ours: so many that what is next to nothing can be told from it, in a minute a size.
OURS: Final = {
    "small": {"adapter": 15, "platform": 15, "sampled": 15, "idle": 31},
    "base": {"adapter": 7, "platform": 7, "sampled": 9, "idle": 15},
}


def figures(run: Run) -> Iterator[Figure]:
    """All figures."""
    site = _site(run)
    if run.wants("model.kernel"):
        yield from _kernel(run, site)
    for size in FORWARDS:
        if run.wants(f"model.{size}"):
            yield from _whole(run, size, site)


def _site(run: Run) -> str | None:
    try:
        made = environment("model-peers", ("six",), alone=PACKAGES)
    except UnavailableError as error:
        run.facts.append(f"Peers: {error}.")
        return None
    for name in ("nvdlfw-inspect", "torchlens", "transformer-lens"):
        run.versions[name] = made.version(name)
    (folder,) = (made.python.parent.parent / "lib").glob("python*/site-packages")
    return str(folder)


def _kernel(run: Run, site: str | None) -> Iterator[Figure]:
    ways = ("ours", "naive torch", "numpy", "nvdlfw-inspect")
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for way in ways:
            if way != "nvdlfw-inspect" or site is not None:
                children[way] = stack.enter_context(
                    Child(MODULE, f"kernel-{way}", "small", *filter(None, [site]))
                )
        for elements, goal in KERNEL.items():
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(min(run.rounds, 5 if elements < LONG else 3)):
                for way, child in children.items():
                    try:
                        found[way].append(float(child.ask("kernel", way=way, elements=elements)))
                    except ChildError as error:
                        run.facts.append(f"{way}: {error}.")
            yield Figure(
                f"model.kernel.{elements:.0e}".replace("+0", ""),
                median(found["ours"]),
                "× torch.sum",
                goal,
                {way: median(found[way]) if found[way] else None for way in ways[1:]},
                spread(found["ours"]),
                "count, mean, deviation, norm, extremes, zeros, NaN, Inf of float32; nvdlfw-inspect: five "
                "statistics, formatted and logged",
            )


def _whole(run: Run, size: str, site: str | None) -> Iterator[Figure]:
    ours = OURS[size]
    peers = PEERS if size == "small" else PEERS[:2]
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for way in (*ours, *peers):
            arguments = [way, size, *filter(None, [site])]
            children[way] = stack.enter_context(Child(MODULE, *arguments))
        for turn in range(max(ours.values())):
            for way, child in list(children.items()):
                if turn >= ours.get(way, ROUNDS[size]):
                    continue
                slow = way in {"torchlens", "sampled"}
                try:
                    without, with_ = child.ask("round", forwards=1 if slow else FORWARDS[size])
                    found.setdefault(way, []).append(100.0 * (with_ / without - 1.0))
                except ChildError as error:
                    run.facts.append(f"{way}: {error}.")
                    del children[way]
    told: dict[str, float | None] = {peer: median(found[peer]) if peer in found else None for peer in peers}
    notes = {
        "adapter": "slots and summaries of all 135 modules, kept in a list",
        "platform": "the same through a scope: accounted, noted, turned into records by the worker",
        "sampled": "as adapter, in one forward of 16, put in and taken out for it",
        "idle": "after everybody who watched has gone",
    }
    for way in ours:
        goal: Goal | None = GOALS.get(way)
        excess = middle(found[way])
        yield Figure(
            f"model.{size}.{way}",
            excess.value,
            "% of a forward",
            goal,
            told if way == "adapter" else {},
            None,
            f"{notes[way]}; thread CPU time; the median of pairs",
            (excess.low, excess.high, excess.pairs),
        )
