"""The measured overhead: what alternating blocks tell about a simulated service."""

from __future__ import annotations

import random

import pytest

from neuronscope.governor import Budget
from neuronscope.governor.intervals import Mean, t95
from neuronscope.governor.measured import MIN_PAIRS, Experiment, Measured

MS = 1_000_000


class Service:
    """A service on a fake clock: requests of varying cost, captures that cost something while they are on."""

    def __init__(
        self, overhead: float, *, accounted: float | None = None, noise: float = 0.2, seed: int = 0
    ) -> None:
        self.now = self.cpu = 0
        self.requests = 0
        self.captures = 1.0
        self.off = False
        self.switched: list[bool] = []
        self.results: list[Measured] = []
        self.drained = 0
        self._rng = random.Random(seed)
        self._overhead = overhead
        self._accounted = overhead if accounted is None else accounted
        self._noise = noise
        self.experiment = Experiment(
            self.switch,
            self.drain,
            lambda: self.captures,
            self.results.append,
            first_s=1,
            rest_s=100,
            clock=lambda: self.now,
            cpu=lambda: self.cpu,
            rng=random.Random(seed),
        )

    def switch(self, off: bool) -> None:
        self.off = off
        self.switched.append(off)

    def drain(self) -> None:
        self.drained += 1

    def serve(self, requests: int, every_ms: float = 50) -> None:
        for _ in range(requests):
            cost = 10 * MS * self._rng.uniform(1 - self._noise, 1 + self._noise)
            if not self.off:
                self.captures += cost * self._accounted
                cost *= 1 + self._overhead
            self.cpu += int(cost)
            self.now += int(every_ms * MS)
            self.requests += 1
            self.experiment.tick(self.requests)

    @property
    def result(self) -> Measured:
        (result,) = self.results
        return result


def test_the_interval_contains_the_truth() -> None:
    """95 of 100 experiments should; the estimate is that of the work without captures."""
    hits = 0
    for seed in range(100):
        service = Service(0.08, seed=seed)
        service.serve(2_000)
        result = service.results[0]
        assert result.estimate is not None
        hits += result.low <= 0.08 <= result.high
        assert result.agrees
    assert 88 <= hits <= 100


def test_captures_that_cost_nothing_measure_as_nothing() -> None:
    """The interval contains zero."""
    service = Service(0.0)
    service.captures = 1.0
    service.serve(1_500)
    assert service.result.low <= 0 <= service.result.high


def test_a_cost_that_the_accounts_do_not_see_is_found() -> None:
    """Captures cost 20 %, the accounts say 2 %: they disagree."""
    service = Service(0.2, accounted=0.02, noise=0.05)
    service.serve(1_500)
    assert service.result.accounted == pytest.approx(0.02, abs=0.005)
    assert service.result.low > 0.15
    assert not service.result.agrees


def test_captures_are_on_when_it_is_over_and_in_half_of_the_blocks() -> None:
    """Off and on in random order, drained at every boundary, and then left alone for a while."""
    service = Service(0.05)
    service.serve(1_500)
    assert service.results
    assert not service.off
    assert not service.experiment.running
    assert service.switched.count(True) <= 10
    assert service.drained >= 20


def test_too_few_requests_are_insufficient_data() -> None:
    """One request in ten seconds: no estimate, and it says why."""
    service = Service(0.05)
    service.serve(30, every_ms=10_000)
    result = service.results[0]
    assert result.estimate is None
    assert "insufficient data" in str(result)
    assert not service.off


def test_without_captures_nothing_is_measured() -> None:
    """A service without a model is never switched about."""
    service = Service(0.0)
    service.captures = 0.0
    service.serve(1_000)
    assert not service.switched
    assert not service.results


def test_an_experiment_that_is_given_up_leaves_captures_on() -> None:
    """As at shutdown."""
    service = Service(0.05)
    while not service.off:
        service.serve(1)
    service.experiment.stop()
    assert not service.off


def test_a_pause_for_a_measurement_costs_captures_nothing() -> None:
    """Spans go on in it and are billed, but captures have as much left afterwards as before."""
    now = 1
    budget = Budget(1, clock=lambda: now)
    budget.enter()
    now += 1_000 * MS
    budget.tick()
    assert budget.looks()
    budget.pause(True)
    now += 10_000 * MS
    budget.charge("spans", 15 * MS, clip=False)
    assert budget.looks()  # as it would be in the other arm
    assert budget.accounts["spans"].hot_ns == 15 * MS
    budget.pause(False)
    assert budget.looks()
    budget.charge("spans", 15 * MS, clip=False)
    assert not budget.looks()
    assert budget.unseen_calls == 1


def test_the_mean_of_a_sample_has_its_interval() -> None:
    """Nine in ten intervals at least contain the truth, and a full sample has none."""
    rng = random.Random(1)
    hits = 0
    sample = Mean()
    for _ in range(500):
        population = [rng.gauss(3, 2) for _ in range(60)]
        sample = Mean()
        for value in rng.sample(population, 12):
            sample.add(value)
        truth = sum(population) / 60
        hits += abs(sample.mean - truth) <= sample.margin(60)
    assert hits >= 460
    assert Mean().margin() == float("inf")
    assert sample.margin(12) == 0.0
    assert t95(10) == pytest.approx(2.228, abs=0.005)
    assert t95(1000) == pytest.approx(1.962, abs=0.002)
    assert MIN_PAIRS >= 3
