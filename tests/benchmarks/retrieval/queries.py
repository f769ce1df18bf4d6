"""What observing a query adds to its caller's thread: ours beside the peers that cover the store."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.benchmarks.calls.side_by_side import OURS
from tests.benchmarks.children import Child, ChildError
from tests.benchmarks.figures import Figure, Run, at_most
from tests.benchmarks.measure import Spread, spread
from tests.benchmarks.retrieval.peers import PEERS
from tests.benchmarks.venvs import UnavailableError, environment

CHILD: Final = "tests.benchmarks.retrieval.store_child"
STORES: Final = ("qdrant", "chroma", "pinecone")
REPEATS: Final = {True: 200, False: 20}  # calls in a round: hot, in situ
GOAL: Final = at_most(10)
_NOTES: Final = {
    True: "thread CPU added to the wrapped function alone, called in a loop",
    False: "thread CPU added to the whole query, in a service's place",
}


def figures(run: Run) -> Iterator[Figure]:
    """Two figures a store."""
    wanted = [store for store in STORES if run.wants(*(_name(store, hot) for hot in REPEATS))]
    pythons = _pythons(run) if wanted else {}
    for store in wanted:
        yield from _figures(run, store, pythons)


def _name(store: str, hot: bool) -> str:
    return f"retrieval.{store}_{'hot' if hot else 'situ'}"


def _pythons(run: Run) -> dict[str, Path | str]:
    pythons: dict[str, Path | str] = {OURS: sys.executable}
    for name, peer in PEERS.items():
        try:
            made = environment(name, peer.requirements, peer.alone)
        except UnavailableError as error:
            run.facts.append(f"{peer.title} was not measured: {error}.")
            continue
        pythons[name] = made.python
        run.versions[peer.title] = made.version(peer.distribution)
        if peer.inequality:
            run.facts.append(f"{peer.title}: {peer.inequality}.")
    return pythons


def _figures(run: Run, store: str, pythons: Mapping[str, Path | str]) -> Iterator[Figure]:
    samples, problems = _measure(run, store, pythons)
    for hot in REPEATS:
        added = {
            name: spread([on - off for off, on in samples[name, hot]])
            for name in pythons
            if (name, hot) in samples
        }
        ours = added.get(OURS)
        note = _NOTES[hot]
        if not hot and ours is not None:
            base: Spread = spread([off for off, _ in samples[OURS, hot]])
            note += f"; the query itself takes {base.median:.3g} µs"
        if ours is None:
            note = f"not measured: {problems.get(OURS, '')}; {note}"
        peers = {
            PEERS[name].title: added[name].median if name in added else None
            for name in pythons
            if name != OURS
        }
        yield Figure(
            _name(store, hot),
            None if ours is None else ours.median,
            "µs",
            GOAL if hot else None,
            peers,
            ours,
            note,
        )


def _measure(
    run: Run, store: str, pythons: Mapping[str, Path | str]
) -> tuple[dict[tuple[str, bool], list[tuple[float, float]]], dict[str, str]]:
    """Thread CPU without and with: all children alive at once, every round goes through all of them."""
    samples: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    problems: dict[str, str] = {}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for name, python in pythons.items():
            children[name] = stack.enter_context(Child(CHILD, name, store, python=python))
        for name, child in list(children.items()):
            try:
                told = child.ask("verify")
                if min(told[f"query_{kind}"]["spans"] for kind in ("hot", "situ")) < 1:
                    raise ChildError("the query made no span")
            except ChildError as error:
                problems[name] = str(error)
                title = "NeuronScope" if name == OURS else PEERS[name].title
                run.facts.append(f"{title} was not measured on {store}: {error}.")
                del children[name]
        for turn in range(run.rounds):
            for name, child in children.items():
                for hot, n in REPEATS.items():
                    off, on = child.ask("round", name="query", hot=hot, n=n, turn=turn)
                    samples.setdefault((name, hot), []).append((off, on))
    return samples, problems
