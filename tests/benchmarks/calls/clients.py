"""What observing a client costs its caller: ours beside each peer, on the real clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.benchmarks import callgrind
from tests.benchmarks.calls.openai_client import CHUNKS
from tests.benchmarks.calls.peers import PEERS
from tests.benchmarks.calls.side_by_side import OURS
from tests.benchmarks.children import Child, ChildError
from tests.benchmarks.figures import Figure, Goal, Run, at_least, at_most
from tests.benchmarks.measure import Spread, spread
from tests.benchmarks.venvs import UnavailableError, environment

OPENAI: Final = "tests.benchmarks.calls.openai_child"
QDRANT: Final = "tests.benchmarks.calls.qdrant_child"
OTHERS: Final = "tests.benchmarks.calls.others_child"
# The dearest two peers never are the best one, and starting them under callgrind takes minutes.
NOT_COUNTED: Final = frozenset({"openlit", "logfire"})
# Calls in a round: (hot, in situ).
REPEATS: Final = {
    "chat": (200, 20),
    "stream": (4, 3),
    "embeddings": (200, 20),
    "query": (200, 20),
    "anthropic_chat": (200, 10),
    "anthropic_stream": (4, 2),
    "anthropic_helper": (2, 2),
    "gemini": (200, 10),
    "cohere": (200, 10),
}
STREAMS: Final = frozenset({"stream", "anthropic_stream", "anthropic_helper"})
HOT_GOALS: Final[Mapping[str, Goal]] = {
    "chat": at_most(10),
    "chat_content": at_most(15),
    "stream": at_most(0.3),
    "stream_content": at_most(0.3),
    "embeddings": at_most(10),
    "query": at_most(10),
    "anthropic_chat": at_most(10),
    "anthropic_stream": at_most(0.3),
    "gemini": at_most(10),
    "cohere": at_most(10),
}


@dataclass(frozen=True, slots=True)
class Series:
    """A comparison: one kind of child, with each peer that can do it.

    Attributes:
        module: the child's.
        arguments: of the child, after the peer's name.
        calls: what is called.
        suffix: of the figures' names.
        peers: names in `PEERS`.
        counted: are instructions counted?  It takes callgrind a minute for a peer.
    """

    module: str
    arguments: tuple[str, ...]
    calls: tuple[str, ...]
    suffix: str
    peers: tuple[str, ...]
    counted: bool = True


def _others(library: str, *calls: str) -> Series:
    """A further SDK: timed only."""
    peers = tuple(name for name, peer in PEERS.items() if library in peer.others)
    return Series(OTHERS, (library,), calls, "", peers, counted=False)


SERIES: Final = (
    Series(
        OPENAI,
        ("no_content",),
        ("chat", "stream", "embeddings"),
        "",
        tuple(name for name, peer in PEERS.items() if peer.openai),
    ),
    Series(
        OPENAI,
        ("content",),
        ("chat", "stream"),
        "_content",
        tuple(name for name, peer in PEERS.items() if peer.openai),
    ),
    Series(QDRANT, (), ("query",), "", tuple(name for name, peer in PEERS.items() if peer.qdrant)),
    _others("anthropic", "anthropic_chat", "anthropic_stream", "anthropic_helper"),
    _others("google_genai", "gemini"),
    _others("cohere", "cohere"),
)


@dataclass(slots=True)
class Added:
    """What an instrumentation adds, by call."""

    hot: dict[str, Spread] = field(default_factory=dict[str, Spread])
    situ: dict[str, Spread] = field(default_factory=dict[str, Spread])
    base: dict[str, Spread] = field(default_factory=dict[str, Spread])
    instructions_pct: dict[str, float] = field(default_factory=dict[str, float])
    problem: str = ""


def figures(run: Run) -> Iterator[Figure]:
    """All figures on calls of clients."""
    wanted = [
        series
        for series in SERIES
        if run.wants(*(name for call in series.calls for name in _names(series, call)))
    ]
    pythons = _pythons(run, {name for series in wanted for name in series.peers})
    for series in wanted:
        yield from _figures(run, series, pythons)


def _names(series: Series, call: str) -> list[str]:
    name = f"calls.{call}{series.suffix}"
    whats = ("hot", "situ", "instructions", "instructions_vs_best")
    return [f"{name}_{what}" for what in (whats if series.counted else whats[:2])]


def _pythons(run: Run, wanted: Set[str]) -> dict[str, Path | str]:
    """Interpreter by peer; a peer that cannot be installed is told, and left out."""
    pythons: dict[str, Path | str] = {OURS: sys.executable}
    for name, peer in PEERS.items():
        if name not in wanted:
            continue
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


def _figures(run: Run, series: Series, pythons: Mapping[str, Path | str]) -> Iterator[Figure]:
    names = [OURS, *(name for name in series.peers if name in pythons)]
    added = {name: Added() for name in names}
    _time(run, series, pythons, added)
    reason = _count(run, series, pythons, added) if series.counted else ""
    for call in series.calls:
        hot, situ, *counted = _names(series, call)
        name = call + series.suffix
        unit, scale = ("µs/chunk", 1 / CHUNKS) if call in STREAMS else ("µs", 1.0)
        if name in HOT_GOALS:  # a helper is made of many functions, and is called whole only
            yield _timed(
                hot,
                unit,
                scale,
                {n: a.hot.get(call) for n, a in added.items()},
                added,
                HOT_GOALS[name],
                "thread CPU added to the wrapped function alone, called in a loop",
            )
        base = added[OURS].base.get(call)
        note = "thread CPU added to the whole call, in a service's place"
        if base is not None:
            note += f"; the call itself takes {base.median * scale:.3g} {unit}"
        yield _timed(situ, unit, scale, {n: a.situ.get(call) for n, a in added.items()}, added, None, note)
        if counted:
            pct, best = counted
            yield from _counted(pct, best, call, added, reason)


def _timed(
    name: str,
    unit: str,
    scale: float,
    samples: Mapping[str, Spread | None],
    added: Mapping[str, Added],
    goal: Goal | None,
    note: str,
) -> Figure:
    ours = samples[OURS]
    scaled = None if ours is None else ours.scaled(scale)
    peers = {
        PEERS[peer].title: None if value is None else value.median * scale
        for peer, value in samples.items()
        if peer != OURS
    }
    problem = f"not measured: {added[OURS].problem}; " if scaled is None else ""
    return Figure(name, None if scaled is None else scaled.median, unit, goal, peers, scaled, problem + note)


def _counted(
    name: str, best_name: str, call: str, added: Mapping[str, Added], reason: str
) -> Iterator[Figure]:
    ours = added[OURS].instructions_pct.get(call)
    peers = {
        PEERS[peer].title: one.instructions_pct.get(call)
        for peer, one in added.items()
        if peer != OURS and one.instructions_pct
    }
    note = "instructions added to the caller's thread by callgrind, as a share of the SDK's own"
    if call == "embeddings":
        note += "; ours looks lower than it is: the worker frees the answer, which the SDK's caller would"
    if ours is None:
        note = f"not measured: {reason or added[OURS].problem or 'see the log under .bench'}; {note}"
    figure = Figure(name, ours, "% of the call", at_most(1.0), peers, note=note)
    yield figure
    if call != "embeddings" and peers:
        times = figure.peer / ours if ours and figure.peer is not None and ours > 0 else None
        yield Figure(
            best_name,
            times,
            "×",
            at_least(15) if call == "chat" else None,
            note="how many times fewer instructions than the best peer",
        )


# --- measuring -----------------------------------------------------------------------------------------
def _time(run: Run, series: Series, pythons: Mapping[str, Path | str], added: Mapping[str, Added]) -> None:
    """Thread CPU: all children alive at once, every round goes through all of them."""
    samples: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for name in added:
            child = Child(series.module, name, *series.arguments, python=pythons[name])
            children[name] = stack.enter_context(child)
        for name, child in list(children.items()):
            try:
                _check(child.ask("verify"), series.calls)
            except ChildError as error:
                added[name].problem = str(error)
                run.facts.append(f"{_title(name)} was not measured in {series.module}: {error}.")
                del children[name]
        for turn in range(run.rounds):
            for name, child in children.items():
                for call in series.calls:
                    for hot in (True, False):
                        n = REPEATS[call][0 if hot else 1]
                        off, on = child.ask("round", name=call, hot=hot, n=n, turn=turn)
                        samples.setdefault((name, call, hot), []).append((off, on))
    for (name, call, hot), pairs in samples.items():
        result = spread([on - off for off, on in pairs])
        (added[name].hot if hot else added[name].situ)[call] = result
        if not hot:
            added[name].base[call] = spread([off for off, _ in pairs])


def _check(told: Mapping[str, Mapping[str, int]], calls: Sequence[str]) -> None:
    for call in calls:
        for kind in ("hot", "situ"):
            if told[f"{call}_{kind}"]["spans"] < 1:
                raise ChildError(f"{call} ({kind}) made no span")


def _count(run: Run, series: Series, pythons: Mapping[str, Path | str], added: Mapping[str, Added]) -> str:
    """Instructions; returns why they could not be counted, if so."""
    names = [name for name, one in added.items() if not one.problem and (run.full or name not in NOT_COUNTED)]
    if series.suffix and not run.full:
        names = [OURS]  # content makes little difference to the peers; the timed rows show it

    def one(name: str) -> None:
        arguments = [name, *series.arguments, "--instructions"]
        try:
            dumps = callgrind.count(pythons[name], series.module, arguments)
        except ChildError as error:
            run.facts.append(f"The instructions of {_title(name)} were not counted: {error}.")
            return
        for call in series.calls:
            off = dumps[f"{call}.off"][callgrind.MAIN_THREAD]
            on = dumps[f"{call}.on"][callgrind.MAIN_THREAD]
            added[name].instructions_pct[call] = 100 * (on - off) / off

    try:
        callgrind.library()
    except UnavailableError as error:
        return str(error)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, names))
    return ""


def _title(name: str) -> str:
    return "NeuronScope" if name == OURS else PEERS[name].title
