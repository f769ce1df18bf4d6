"""Statistics of drift, against scipy, published values and their own definitions."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from neuronscope.diagnosis import statistics as ours

# Untyped, and without stubs here.
stats: Any = importlib.import_module("scipy.stats")
jensenshannon: Any = importlib.import_module("scipy.spatial.distance").jensenshannon
RANDOM = np.random.default_rng(7)
SAMPLES = [
    (RANDOM.normal(size=1000), RANDOM.normal(0.3, 1.2, size=200)),
    (RANDOM.beta(5, 2, size=700), RANDOM.beta(5, 3, size=900)),
    (RANDOM.integers(0, 4, size=300).astype(float), RANDOM.integers(0, 5, size=50).astype(float)),
    (np.ones(40), np.array([1.0])),
]


@pytest.mark.parametrize(("left", "right"), SAMPLES)
def test_ks_and_wasserstein_are_scipys(left: NDArray[Any], right: NDArray[Any]) -> None:
    """Ties and unequal sizes included."""
    a, b = ours.sample(left), ours.sample(right)
    assert ours.ks(a, b) == pytest.approx(stats.ks_2samp(left, right).statistic, abs=1e-12)
    assert ours.wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(left, right), abs=1e-12)


def test_the_ks_p_value_is_the_limit_that_scipy_knows() -> None:
    """Over the whole range of D, for the sizes that are used here."""
    for statistic in (0.0, 0.02, 0.05, 0.0892, 0.1, 0.2, 0.9):
        scaled = statistic * math.sqrt(1000 * 500 / 1500)
        assert ours.ks_p_value(statistic, 1000, 500) == pytest.approx(stats.kstwobign.sf(scaled), abs=1e-9)


@pytest.mark.parametrize(("alpha", "c"), [(0.10, 1.224), (0.05, 1.358), (0.01, 1.628), (0.001, 1.949)])
def test_the_critical_d_has_the_published_constants(alpha: float, c: float) -> None:
    """The usual table of c(α)."""
    assert ours.ks_critical(1000, 500, alpha) == pytest.approx(c * math.sqrt(1500 / 500_000), rel=5e-4)


def test_the_chi_square_table_is_scipys() -> None:
    """Written down, so that the agent needs no scipy."""
    for freedom, value in enumerate(ours.CHI2_999, start=1):
        assert value == pytest.approx(stats.chi2.ppf(0.999, freedom), abs=5e-4)


def test_psi_is_its_definition() -> None:
    """By hand: two bins, three values against one and four against two, half an observation added to each."""
    reference, window = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.5, 2.0])
    (edge,) = ours.bin_edges(reference, 2)
    assert edge == 2.5
    expected = (3.5 / 4 - 2.5 / 5) * math.log((3.5 / 4) / (2.5 / 5))
    expected += (0.5 / 4 - 2.5 / 5) * math.log((0.5 / 4) / (2.5 / 5))
    assert ours.psi(reference, window, 2) == pytest.approx(expected)


def test_psi_without_change_is_the_chi_square_that_yurdakul_derived() -> None:
    """Its mean is about (bins - 1)(1/m + 1/n), and one in a thousand exceeds the threshold."""
    random = np.random.default_rng(3)
    m, n = 1000, 200
    values = [
        ours.psi(ours.sample(random.normal(size=m)), ours.sample(random.normal(size=n))) for _ in range(600)
    ]
    assert np.mean(values) == pytest.approx(9 * (1 / m + 1 / n), rel=0.1)
    assert ours.psi_threshold(m, n) == pytest.approx(0.167, abs=5e-4)
    assert np.mean(np.array(values) > ours.psi_threshold(m, n)) <= 0.01
    assert ours.psi_threshold(m, 500) == 0.10


@pytest.mark.parametrize(
    ("bad", "n", "reference_bad", "m"), [(3, 50, 1, 60), (0, 200, 12, 400), (5, 5, 0, 9)]
)
def test_rare_shares_are_tested_exactly(bad: int, n: int, reference_bad: int, m: int) -> None:
    """Fisher's test, as scipy computes it."""
    theirs = stats.fisher_exact([[bad, n - bad], [reference_bad, m - reference_bad]])
    assert ours.share_p_value(bad, n, reference_bad, m) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_frequent_shares_are_tested_by_z() -> None:
    """Pooled z-test: the square of z is the chi-square of the 2 × 2 table without correction."""
    table = [[120, 380], [180, 820]]
    theirs = stats.chi2_contingency(table, correction=False)
    assert ours.share_p_value(120, 500, 180, 1000) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_no_share_at_all_is_no_difference() -> None:
    """Nothing bad on either side."""
    assert ours.share_p_value(0, 100, 0, 1000) == 1.0


def test_the_jensen_shannon_distance_is_scipys() -> None:
    """Base 2: 1 for labels that have nothing in common."""
    assert ours.jensen_shannon([3, 1, 0], [1, 1, 2]) == pytest.approx(
        jensenshannon([3, 1, 0], [1, 1, 2], base=2)
    )
    assert ours.jensen_shannon([1, 0], [0, 5]) == pytest.approx(1.0)
    assert ours.jensen_shannon([2, 2], [1, 1]) == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_discoveries_are_benjamini_and_hochbergs(p_values: list[float]) -> None:
    """scipy adjusts the values; those below the rate are the same."""
    adjusted = stats.false_discovery_control(p_values)
    close = np.isclose(adjusted, 0.1)  # rounding decides there
    found = np.array(ours.discoveries(p_values, 0.1))
    assert np.array_equal(found[~close], (adjusted <= 0.1)[~close])


def test_a_relative_distance_tells_a_constant_reference_from_a_changed_one() -> None:
    """Norms of normalised vectors do not vary: the smallest real change is infinitely many deviations."""
    ones = np.ones(100)
    assert ours.relative_wasserstein(ones, ones) == 0.0
    assert ours.relative_wasserstein(ones, ones * (1 + 1e-12)) == 0.0
    assert ours.relative_wasserstein(ones, ones * 2) == math.inf
    shifted = ours.relative_wasserstein(
        ours.sample(RANDOM.normal(size=4000)), ours.sample(RANDOM.normal(1, 1, size=4000))
    )
    assert shifted == pytest.approx(1.0, abs=0.1)


def test_non_finite_values_are_left_out() -> None:
    """A NaN would make every statistic NaN."""
    assert ours.sample([2.0, math.nan, -math.inf, 1.0]).tolist() == [1.0, 2.0]


def test_a_centroid_shift_is_told_apart_from_what_samples_do_anyway() -> None:
    """A threshold from the reference's own splits: exceeded by a moved mean, not by another sample."""
    random = np.random.default_rng(11)
    mean = random.normal(size=64)
    other = mean + 0.8 * random.normal(size=64)

    def draw(around: NDArray[Any], n: int) -> NDArray[Any]:
        return np.sign(around + 2 * random.normal(size=(n, 64)))

    reference = draw(mean, 1000)
    threshold = ours.centroid_threshold(reference, 300)
    assert max(ours.centroid_shift(reference, draw(mean, 300)) for _ in range(50)) < threshold
    assert ours.centroid_shift(reference, draw(other, 300)) > threshold
    assert ours.centroid_threshold(reference, 50) > threshold, "small samples move more"


def test_cosines_of_rows_that_have_no_direction_are_zero() -> None:
    """A model that returns NaN or nothing does not look like itself."""
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [np.nan, 1.0], [1e300, 1e300]])
    assert ours.cosines(rows[:1], rows[:1]).tolist() == [1.0]
    assert ours.cosines(rows, np.ones((4, 2))).tolist()[1:] == [0.0, 0.0, 0.0]


def test_what_was_seen_often_is_not_absent_by_chance() -> None:
    """A union bound: valid for one item of many, and sharp where several are gone."""
    assert ours.absent_p_value([], 50, 0.5) == 1.0
    assert ours.absent_p_value([3], 50, 0.5) == 1.0
    assert ours.absent_p_value([20], 50, 0.5) == pytest.approx(50 * 2.0**-20)
    assert ours.absent_p_value([12, 12, 12], 50, 0.5) < ours.absent_p_value([12], 50, 0.5)
    random = np.random.default_rng(3)
    false = 0
    for _ in range(400):  # fifty items, 8 sightings each, on both sides alike
        counts = random.binomial(8, 0.5, 50)
        false += ours.absent_p_value([8 for n in counts if n == 8], 50, 0.5) < 0.01
    assert false <= 4
