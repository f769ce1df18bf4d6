"""Means of series of which a budget captured a part: their stated error, against the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

import pytest

from neuronscope.governor.intervals import Mean
from neuronscope.governor.series import Series

Made = Callable[[random.Random, int], list[float]]
Drawn = Callable[[random.Random, int], list[int]]


# --- what layers' means can look like, step by step ----------------------------------------------
def remembering(steps: float) -> Made:
    """Noise that forgets over so many steps; 0: at once, infinite: never (a random walk)."""
    keep = 0.0 if steps == 0 else math.exp(-1 / steps)

    def made(rng: random.Random, n: int) -> list[float]:
        values, value = list[float](), rng.gauss(0, 1)
        for _ in range(n):
            values.append(value)
            value = keep * value + math.sqrt(1 - keep * keep if keep < 1 else 1.0) * rng.gauss(0, 1)
        return values

    return made


def wave(rng: random.Random, n: int) -> list[float]:
    """A slow wave with a little noise, as greedy decoding makes that repeats itself."""
    length, phase = rng.uniform(0.3, 1.5) * n, rng.uniform(0, math.tau)
    return [math.sin(phase + math.tau * step / length) + rng.gauss(0, 0.1) for step in range(n)]


def trend(rng: random.Random, n: int) -> list[float]:
    """Ever upwards or downwards."""
    slope = rng.gauss(0, 3) / n
    return [slope * step + rng.gauss(0, 0.2) for step in range(n)]


def jump(rng: random.Random, n: int) -> list[float]:
    """One regime, and then another: a prompt in several pieces, then its continuation."""
    at, height = rng.randint(1, n - 1), rng.gauss(0, 2)
    return [rng.gauss(0, 0.5) + (height if step < at else 0.0) for step in range(n)]


# --- which of them a budget captures ---------------------------------------------------------------
def saved_up(rng: random.Random, n: int) -> list[int]:
    """Forwards in a row, as the grant is spent; then one now and then, as they become affordable."""
    first = rng.randint(1, max(1, n // 3))
    last = first + rng.randint(2, 8)
    drawn = set(range(first, min(n, last) + 1))
    step = float(last)
    while (step := step + rng.uniform(1, 15)) <= n:
        drawn.add(int(step))
    return sorted(drawn)


def at_random(rng: random.Random, n: int) -> list[int]:
    """A random sample."""
    return sorted(rng.sample(range(1, n + 1), max(2, int(rng.uniform(0.1, 0.9) * n))))


def evenly(rng: random.Random, n: int) -> list[int]:
    """Every so many steps."""
    every = rng.randint(2, 12)
    return list(range(rng.randint(1, every), n + 1, every))


SERIES: Final[dict[str, Made]] = {
    "noise": remembering(0),
    "memory of 3": remembering(3),
    "memory of 10": remembering(10),
    "memory of 30": remembering(30),
    "walk": remembering(math.inf),
    "wave": wave,
    "trend": trend,
    "jump": jump,
}


def estimates(made: Made, drawn: Drawn, rounds: int = 400) -> tuple[float, float, float]:
    """Share of the estimates with an interval; of those that hold the truth; and what a sample's would do."""
    rng = random.Random(11)
    told = held = naive = 0
    for _ in range(rounds):
        n = rng.randint(8, 100)
        values = made(rng, n)
        series, sample = Series(), Mean()
        for step in drawn(rng, n):
            series.add(step, values[step - 1])
            sample.add(values[step - 1])
        truth = sum(values) / n
        naive += abs(sample.mean - truth) <= sample.margin(n) + 1e-9
        if math.isfinite(margin := series.margin(n)):
            told += 1
            held += abs(series.mean(n) - truth) <= margin + 1e-9
    return told / rounds, held / told, naive / rounds


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("drawn", [saved_up, at_random, evenly])
def test_the_truth_lies_within_the_stated_error(name: str, drawn: Drawn) -> None:
    """In nine of ten series at least, whatever they remember and however the captures fall."""
    told, held, _ = estimates(SERIES[name], drawn)
    assert held >= 0.9
    assert told >= 0.75  # and it is not by saying nothing that it is right


def test_an_interval_for_random_samples_would_not_do() -> None:
    """Captures in a row of a series that remembers: what the test above is able to see."""
    _, held, naive = estimates(SERIES["memory of 30"], saved_up)
    assert naive < 0.8 < held


def test_noise_that_was_sampled_at_random_gets_no_needlessly_wide_interval() -> None:
    """Half the interval is within a quarter of what the theory of samples says."""
    rng = random.Random(3)
    wider = list[float]()
    for _ in range(300):
        series, sample = Series(), Mean()
        for step in sorted(rng.sample(range(1, 61), 30)):
            value = rng.gauss(0, 1)
            series.add(step, value)
            sample.add(value)
        wider.append(series.margin(60) / sample.margin(60))
    assert sorted(wider)[150] < 1.25


def test_a_series_captured_whole_has_its_mean_and_no_error() -> None:
    """Also if captures came out of order."""
    for order in ([1, 2, 3, 4], [2, 1, 4, 3]):
        series = Series()
        for step in order:
            series.add(step, step**2)
        assert series.mean(4) == pytest.approx(7.5)
        assert series.margin(4) == 0.0


@pytest.mark.parametrize("steps", [[1, 11, 20], [7, 14, 17]])
def test_three_captures_that_leave_no_long_stretch_are_enough(steps: list[int]) -> None:
    """Up to half of the series in a row unseen, and a third of it before the first capture."""
    series = Series()
    for step in steps:
        series.add(step, step % 3)
    assert 0 < series.margin(20) < math.inf


def test_what_was_not_seen_lies_between_its_neighbours() -> None:
    """Between two captures it is interpolated, before the first and after the last it is as they were."""
    series = Series()
    series.add(2, 1.0)
    series.add(5, 4.0)
    assert series.mean(6) == pytest.approx((1 + 1 + 2 + 3 + 4 + 4) / 6)


@pytest.mark.parametrize("steps", [[], [3], [7, 14], [1, 2, 3, 4], [8, 11, 14], [17, 18, 19, 20]])
def test_too_little_to_go_by_is_said(steps: list[int]) -> None:
    """Fewer than three captures, a third of the series before the first or half of it in a row: infinite."""
    series = Series()
    for step in steps:
        series.add(step, step % 2)
    assert math.isinf(series.margin(20))
    assert series.mean(20) == pytest.approx(sum(step % 2 for step in steps) / max(1, len(steps)), abs=0.5)


def test_captures_that_are_all_alike_do_not_say_that_nothing_changes() -> None:
    """An embedding is the same for as long as a token is repeated; captured whole it is certain."""
    series = Series()
    for step in (1, 4, 7, 10):
        series.add(step, 0.25)
    assert math.isinf(series.margin(11))
    assert series.margin(4) == 0.0
