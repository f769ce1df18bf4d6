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
        self.now = self.cpu = self.jump = 0
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
            wall=self._wall,
            cpu=lambda: self.cpu,
            rng=random.Random(seed),
        )

    def _wall(self) -> int:
        return self.now + self.jump

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
            self.experiment.served(self.now - int(cost), self.now)
            self.experiment.tick()

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


class Crowd:
    """Threads that compute beside one another on one core, and wait for the others after each request.

    Requests are told late and in bulk, as the worker does: a fifth of a second after the first of them.
    """

    def __init__(self, overhead: float, threads: int, block_s: float, seed: int) -> None:
        self.now = self.cpu = 0
        self.off = False
        self.captures = 1.0
        self.results: list[Measured] = []
        self._overhead = overhead
        self._threads = threads
        self._rng = random.Random(seed)
        self.experiment = Experiment(
            self._switch,
            lambda: None,
            lambda: self.captures,
            self.results.append,
            block_s=block_s,
            first_s=1,
            rest_s=1_000,
            clock=lambda: self.now,
            wall=lambda: self.now + 7,
            cpu=lambda: self.cpu,
            rng=random.Random(seed),
        )

    def _switch(self, off: bool) -> None:
        self.off = off

    def result(self) -> Measured:
        told: list[tuple[int, int]] = []
        tell_at = 0
        while not self.results:
            began = self.now
            left = [65 * MS * self._rng.uniform(0.9, 1.1) for _ in range(self._threads)]
            while left:
                step = MS  # of the one that is let run; the others wait for the GIL
                self.now += step
                self.cpu += step
                one = self._rng.randrange(len(left))
                left[one] -= step if self.off else step / (1 + self._overhead)
                self.captures += 0 if self.off else step * self._overhead / (1 + self._overhead)
                if left[one] <= 0:
                    left.pop(one)
                    tell_at = tell_at if told else self.now + 200 * MS
                    told.append((began, self.now))
                if told and self.now >= tell_at:
                    for start, end in told:
                        self.experiment.served(start + 7, end + 7)
                    told.clear()
                    self.experiment.tick()
        return self.results[0]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("truth", [0.0, 0.11])
def test_threads_whose_requests_straddle_the_blocks_are_measured_as_well(threads: int, truth: float) -> None:
    """The interval holds the truth, is narrow enough to be of use, and leans to neither side."""
    results = [Crowd(truth, threads, 0.5, seed).result() for seed in range(40)]
    estimates = [result.estimate for result in results if result.estimate is not None]
    assert len(estimates) == 40
    assert sum(estimates) / 40 == pytest.approx(truth, abs=0.01)
    assert sum(result.low <= truth <= result.high for result in results) >= 35
    assert max(result.high - result.low for result in results) < 0.16


def test_a_wall_clock_that_is_set_spoils_the_experiment() -> None:
    """No estimate, and it says why; captures are on again."""
    service = Service(0.05)
    while not service.off:
        service.serve(1)
    service.serve(10)
    service.jump = 60_000 * MS
    service.serve(200)
    assert service.result.reason == "the clock was set"
    assert service.result.estimate is None
    assert not service.off


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


def test_requests_that_go_on_through_the_blocks_are_insufficient_data() -> None:
    """What is on and off within one request tells nothing of what captures cost."""
    service = Service(0.05)
    service.experiment.served(0, 5_000 * MS)
    service.serve(100)
    assert service.results[0].estimate is None
    assert service.results[0].reason == "requests take longer than blocks"
    assert not service.switched


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
