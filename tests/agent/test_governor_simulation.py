"""The budget under ten thousand random loads, with a fake clock: the ceiling holds, and nobody starves."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from neuronscope.governor import GRANT_NS, Budget, Site
from neuronscope.signals.records import Fidelity

pytestmark = pytest.mark.exhaustive

PATTERNS = 10_000
KINDS = ("steady", "bursts", "tiny", "giant", "awaits", "slow disk", "threads", "cold", "two models")
MS = 1_000_000


@dataclass
class Load:
    """One random load: a service whose layers are watched, and what their captures really cost."""

    kind: str
    rng: random.Random
    pct: float
    layers: int
    threads: int = 1
    nbytes: int = 4096
    forward_ns: int = 2 * MS  # work between two layers
    full_rate: float = 0.4  # ns a byte
    summary_rate: float = 0.1
    fixed_ns: int = 5_000
    noise: float = 0.2
    cold_ns: int = 0
    worker_ns: int = 3_000
    idle_every: int = 0
    want: Fidelity = Fidelity.FULL

    @classmethod
    def random(cls, kind: str, rng: random.Random) -> Load:
        load = cls(kind, rng, pct=rng.choice((1, 5, 15, 40)), layers=rng.choice((1, 3, 8, 12)))
        load.nbytes = 1 << rng.randint(8, 20)
        load.forward_ns = rng.randint(20_000, 3 * MS)
        load.want = rng.choice((Fidelity.FULL, Fidelity.SUMMARY))
        if kind == "tiny":
            load.forward_ns, load.nbytes = rng.randint(500, 20_000), 64
        elif kind == "giant":
            load.nbytes = 1 << rng.randint(24, 28)
        elif kind in ("threads", "awaits"):
            load.threads = 16 if kind == "threads" else 1000
        elif kind == "slow disk":
            load.worker_ns = rng.randint(20_000, 100_000)
        elif kind == "cold":
            load.cold_ns = rng.randint(1, 80) * MS
        elif kind == "bursts":
            load.idle_every = rng.randint(5, 40)
        return load

    def cost(self, fidelity: Fidelity, captures: int) -> int:
        rate = self.full_rate + self.summary_rate if fidelity is Fidelity.FULL else self.summary_rate
        real = (self.fixed_ns + rate * self.nbytes) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        return int(real) + (self.cold_ns if captures == 0 else 0)


@dataclass
class World:
    """A fake machine: a clock that moves by what is done, and a budget that watches it."""

    load: Load
    parent: Budget | None = None
    now: int = 1
    spent: float = 0.0
    work: float = 0.0
    largest: float = 0.0
    in_flight: float = 0.0
    worst: float = 0.0
    captures: int = 0
    queue: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.budget = Budget(self.load.pct, clock=lambda: self.now, parent=self.parent)
        self.grant = GRANT_NS * min(1.0, self.load.pct / 5)
        self.sites = [self.budget.site("probe", f"layer.{i}") for i in range(self.load.layers)]

    def pay(self, cost: float) -> None:
        """Our own work takes time of the machine, and is none of the service's."""
        self.now += int(cost)
        self.spent += cost

    def serve(self, ns: int) -> None:
        self.now += ns
        self.work += ns

    def check(self) -> None:
        """How far what was spent is above what was earned, the grant and one capture."""
        allowed = self.work * self.load.pct / 100 + self.grant + self.largest
        self.worst = max(self.worst, self.spent - allowed)


def simulate(load: Load, steps: int = 40, parent: Budget | None = None) -> World:
    """Run a load: in turn, each thread runs layers; captures of other threads end in between."""
    world = World(load, parent)
    budget = world.budget
    running: list[tuple[int, int, Site, Fidelity, int]] = []
    order = itertools.count()
    budget.enter()
    for step in range(steps):
        if load.idle_every and step % load.idle_every == 0:
            budget.leave()
            world.now += 500 * MS
            budget.enter()
        group = (
            world.sites
            if load.kind != "two models" or step % 10 == 0
            else world.sites[: load.layers // 2 + 1]
        )
        for site in group:
            world.serve(load.forward_ns // load.layers + 1)
            fidelity = budget.admit(site, load.want, load.nbytes)
            if fidelity is not Fidelity.OFF:
                cost = load.cost(fidelity, world.captures)
                world.captures += 1
                due = world.now + (cost if load.threads == 1 else load.rng.randint(0, 3) * cost)
                heapq.heappush(running, (due, next(order), site, fidelity, cost))
            while running and (len(running) >= load.threads or running[0][0] <= world.now):
                end(world, running)
        if step % 10 == 9:
            drain(world)
    while running:
        end(world, running)
    drain(world)
    budget.leave()
    world.check()
    return world


def end(world: World, running: list[tuple[int, int, Site, Fidelity, int]]) -> None:
    _, _, site, fidelity, cost = heapq.heappop(running)
    world.pay(cost)
    world.largest = max(world.largest, cost + world.load.worker_ns)
    world.budget.spend(site, fidelity, world.load.nbytes, cost)
    world.queue.append(world.load.worker_ns)
    world.check()


def drain(world: World) -> None:
    if world.queue:
        spent = sum(world.queue)
        world.pay(spent)
        world.budget.charge_worker("probe", spent, len(world.queue))
        world.queue.clear()
        world.check()


def loads(kind: str, n: int) -> Iterator[Load]:
    for seed in range(n):
        yield Load.random(kind, random.Random(f"{kind}/{seed}"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ceiling_holds_and_nobody_starves(kind: str) -> None:
    """Whatever the load: spent ≤ earned + the grant + one capture, and every layer gets its share."""
    above: list[tuple[float, Load]] = []
    starved: list[tuple[list[int], Load]] = []
    for load in loads(kind, PATTERNS // len(KINDS) + 1):
        world = simulate(load)
        if world.worst > 0:
            above.append((world.worst / MS, load))
        captured = [layer.captured for layer in world.budget.coverage]
        if not even(world):
            starved.append((captured, load))
    assert not above, f"{len(above)} loads above the ceiling, e.g. {above[0]}"
    assert not starved, f"{len(starved)} loads with a starved layer, e.g. {starved[0]}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_ceiling_holds_in_scopes_that_follow_one_another(kind: str) -> None:
    """Also where a scope has the worker's part from those before it, and does not wait until it is told."""
    for load in loads(kind, 100):
        agent = Budget(5, clock=lambda: 1)
        above = [simulate(load, parent=agent).worst for _ in range(3)]
        assert max(above) <= 0, (above, load)


def even(world: World) -> bool:
    """Every layer was captured a quarter as often as the layers are on average, or as it ran."""
    coverage = world.budget.coverage
    mean = sum(layer.captured for layer in coverage) / len(coverage)
    return all(layer.captured >= min(mean, layer.ran) / 4 - 2 for layer in coverage)


def test_a_layer_that_runs_rarely_is_served_when_it_runs() -> None:
    """A model that runs once while another runs a hundred times finds its share kept for it."""
    now = 1
    budget = Budget(5, clock=lambda: now)
    busy = [budget.site("probe", f"busy.{i}") for i in range(12)]
    rare = [budget.site("probe", f"rare.{i}") for i in range(4)]
    budget.enter()
    for step in range(4_000):
        for site in rare if step % 100 == 99 else busy:
            now += 100_000
            if budget.admit(site, Fidelity.SUMMARY, 4096) is not Fidelity.OFF:
                now += 100_000
                budget.spend(site, Fidelity.SUMMARY, 4096, 100_000)
                budget.charge_worker("probe", 10_000, 1)
    busy_layers, rare_layers = budget.coverage[:12], budget.coverage[12:]
    assert max(layer.captured for layer in busy_layers) < 400  # far from every run: the budget is short
    assert min(layer.captured for layer in rare_layers) >= 20  # of 40 runs
