"""How far two samples are apart, and from where on that is no accident.

Pure functions over one-dimensional samples and rows of vectors, with numpy alone.  Thresholds and sample
sizes are explained, with their false-alarm rates, in docs/explanation/retrieval-drift.md.

Sources: Yurdakul, "Statistical Properties of Population Stability Index" (2018), for PSI and its chi-square
reading; Press et al., "Numerical Recipes", 14.3, for the limit of Kolmogorov and Smirnov's D; Benjamini and
Hochberg (1995) for the false discovery rate; Endres and Schindelin (2003) for the Jensen-Shannon distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Sample: TypeAlias = NDArray[np.float64]
BINS: Final = 10
SMOOTHING: Final = 0.5
# Quantiles of the chi-square distribution at 0.999, by degrees of freedom from 1 to 9.
CHI2_999: Final = (10.828, 13.816, 16.266, 18.467, 20.515, 22.458, 24.322, 26.124, 27.877)
SPLITS: Final = 200


def sample(values: Sequence[float] | NDArray[Any]) -> Sample:
    """A sorted sample without its non-finite values."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return np.sort(array[np.isfinite(array)])


# --- one-dimensional samples -----------------------------------------------------------------------------
def bin_edges(reference: Sample, bins: int = BINS) -> Sample:
    """Inner edges that cut the reference into parts of equal size; fewer where many values are equal."""
    edges = np.unique(np.quantile(reference, np.arange(1, bins) / bins))
    # An edge at the very end leaves a bin that only newcomers fill: it stays, they are what is looked for.
    return edges.astype(np.float64)


def psi(reference: Sample, window: Sample, bins: int = BINS) -> float:
    """Population stability index: ``Σ (a - e) ln(a / e)`` over bins that are the reference's deciles.

    Half an observation is added to each bin, so that an empty one does not make it infinite.
    """
    edges = bin_edges(reference, bins)
    expected, actual = _shares(reference, edges), _shares(window, edges)
    return float(np.sum((actual - expected) * np.log(actual / expected)))


def _shares(values: Sample, edges: Sample) -> Sample:
    counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=edges.size + 1) + SMOOTHING
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def psi_threshold(m: int, n: int, base: float = 0.10, bins: int = BINS) -> float:
    """From where on a PSI of a window of `n` against a reference of `m` says something.

    Without any change the index is about ``(1/m + 1/n)`` times a chi-square variable of ``bins - 1`` degrees
    of freedom: below 500 values its 0.999 quantile is more than the customary `base`.
    """
    if n >= 500 and m >= 1000:
        return base
    freedom = min(max(bins - 1, 1), len(CHI2_999))
    return max(base, CHI2_999[freedom - 1] * (1 / m + 1 / n))


def ks(reference: Sample, window: Sample) -> float:
    """Kolmogorov and Smirnov's D: the largest distance between the two empirical distributions."""
    points = np.concatenate((reference, window))
    below = np.searchsorted(reference, points, side="right") / reference.size
    return float(np.max(np.abs(below - np.searchsorted(window, points, side="right") / window.size)))


def ks_critical(m: int, n: int, alpha: float = 0.01) -> float:
    """What D exceeds with probability `alpha` without any change: ``c(α) √((m + n) / (m n))``."""
    return math.sqrt(-0.5 * math.log(alpha / 2) * (m + n) / (m * n))


def ks_p_value(statistic: float, m: int, n: int) -> float:
    """Probability of such a D without any change: the limit, good from some dozen values on."""
    scaled = statistic * math.sqrt(m * n / (m + n))
    if scaled < 0.2:  # the series converges slowly there, and its sum is 1
        return 1.0
    terms = ((1 if j % 2 else -1) * math.exp(-2 * (j * scaled) ** 2) for j in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))


def chi2_p_value(statistic: float, freedom: float) -> float:
    """Probability of so large a chi-square variable: Wilson and Hilferty's approximation (1931)."""
    if freedom < 1:
        return 1.0
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def wasserstein(reference: Sample, window: Sample) -> float:
    """Wasserstein's distance of order 1: how far, on average, values have to be moved; in their own unit."""
    points = np.sort(np.concatenate((reference, window)))
    at = points[:-1]
    apart = np.abs(
        np.searchsorted(reference, at, side="right") / reference.size
        - np.searchsorted(window, at, side="right") / window.size
    )
    return float(np.sum(apart * np.diff(points)))


def relative_wasserstein(reference: Sample, window: Sample) -> float:
    """The same in standard deviations of the reference; infinite if only the window varies."""
    spread, distance = float(np.std(reference)), wasserstein(reference, window)
    if spread > 1e-12 * max(1.0, float(np.max(np.abs(reference)))):
        return distance / spread
    return 0.0 if distance <= 1e-9 * max(1.0, float(np.max(np.abs(reference)))) else math.inf


def jensen_shannon(left: Sequence[float], right: Sequence[float]) -> float:
    """Distance of two distributions over the same labels, given as counts: 0 (equal) to 1 (disjoint)."""
    p, q = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2
    return math.sqrt(max(0.0, (_entropy(middle) - (_entropy(p) + _entropy(q)) / 2)))


def _entropy(p: Sample) -> float:
    some = p[p > 0]
    return float(-np.sum(some * np.log2(some)))


# --- shares ------------------------------------------------------------------------------------------------
MANY: Final = 30  # expected events from which on the normal approximation serves


def share_p_value(bad: int, n: int, reference_bad: int, m: int) -> float:
    """Probability, without any change, of shares as different as ``bad / n`` and ``reference_bad / m``.

    Two-sided.  The z-test of two proportions; Fisher's exact test where fewer than 30 events are expected.
    """
    pooled = (bad + reference_bad) / (n + m)
    if min(n, m) * min(pooled, 1 - pooled) >= MANY:
        error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
        return math.erfc(abs(bad / n - reference_bad / m) / error / math.sqrt(2))
    return _fisher(bad, n, reference_bad, m)


def binomial_p_value(hits: int, n: int, rate: float) -> float:
    """Probability of so many hits, or more, in `n` tries of this rate: the exact test."""
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    if hits <= 0:
        return 1.0
    logs = [_log_choose(n, k) + k * math.log(rate) + (n - k) * math.log1p(-rate) for k in range(hits, n + 1)]
    scale = max(logs)
    return min(1.0, math.exp(scale) * math.fsum(math.exp(each - scale) for each in logs))


def absent_p_value(counts: Sequence[int], items: int, share: float) -> float:
    """Probability that some of `items` things, counted so often on one side, are never seen on the other.

    Each count falls on the one side with probability `share`.  A union bound over all sets of as many items
    (Boole), for the number of items with which it is sharpest, times how many numbers were tried.
    """
    log, best = 0.0, 0.0
    ordered = sorted(counts, reverse=True)
    for size, count in enumerate(ordered, start=1):
        log += count * math.log(share)
        best = min(best, log + _log_choose(items, size))
    return min(1.0, math.exp(best) * max(1, len(ordered)))


def _fisher(bad: int, n: int, reference_bad: int, m: int) -> float:
    total = bad + reference_bad
    lowest, highest = max(0, total - m), min(n, total)
    logs = [_log_choose(n, x) + _log_choose(m, total - x) for x in range(lowest, highest + 1)]
    scale = max(logs)
    weights = [math.exp(value - scale) for value in logs]
    observed = weights[bad - lowest]
    return min(1.0, sum(w for w in weights if w <= observed * (1 + 1e-7)) / sum(weights))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def discoveries(p_values: Sequence[float], rate: float = 0.1) -> list[bool]:
    """Which of many tests to believe, so that at most `rate` of those believed are false, in the mean.

    Benjamini and Hochberg's procedure.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    last = 0
    for rank, index in enumerate(order, start=1):
        if p_values[index] <= rate * rank / len(p_values):
            last = rank
    believed = set(order[:last])
    return [index in believed for index in range(len(p_values))]


# --- vectors -----------------------------------------------------------------------------------------------
def centroid_shift(reference: NDArray[Any], window: NDArray[Any]) -> float:
    """``1 - cosine`` of the mean rows: 0 when both point the same way, 2 when opposite ways."""
    # The length of a sum is as good as that of a mean.
    left = np.asarray(reference, dtype=np.float64).sum(axis=0)
    return _one_minus_cosine(left, np.asarray(window, dtype=np.float64).sum(axis=0))


def _one_minus_cosine(left: Sample, right: Sample) -> float:
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    return 1.0 - float(left @ right) / lengths if lengths > 0 else 0.0


def centroid_threshold(reference: NDArray[Any], n: int, *, splits: int = SPLITS, seed: int = 0) -> float:
    """The shift that `n` rows of the reference itself can show: twice the 99th percentile of random splits.

    Each split compares `n` random rows with the others (with as many as there are: `n` is cut to half the
    reference).  A fixed threshold would be wrong: the shift of a sample depends on its size and on how much
    directions scatter.
    """
    rows = np.asarray(reference, dtype=np.float64)
    m = rows.shape[0]
    taken = max(1, min(n, m // 2))
    random = np.random.default_rng(seed)
    total = rows.sum(axis=0)
    shifts: list[float] = []
    for _ in range(splits):
        part = rows[random.permutation(m)[:taken]].sum(axis=0)
        shifts.append(_one_minus_cosine(part, total - part))
    return 2.0 * float(np.quantile(shifts, 0.99))


def centroid_shuffled(
    before: NDArray[Any], after: NDArray[Any], *, splits: int = SPLITS, seed: int = 0
) -> Sample:
    """Shifts of two samples of these sizes drawn from both together: what there is without any difference."""
    rows = np.concatenate((np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)))
    random = np.random.default_rng(seed)
    total = rows.sum(axis=0)
    taken = len(before)
    parts = (rows[random.permutation(len(rows))[:taken]].sum(axis=0) for _ in range(splits))
    return np.array([_one_minus_cosine(part, total - part) for part in parts])


def gamma_p_value(value: float, chances: Sample) -> float:
    """Probability of a value so large, by the gamma distribution with the mean and spread of chance's.

    A few dozen shuffles say too little of the tail itself; their first two moments say enough of it (Gretton
    et al. 2009 do the same for their kernel test).
    """
    mean, variance = float(np.mean(chances)), float(np.var(chances))
    if mean <= 0 or variance <= 0:
        return 1.0 if value <= mean else 0.0
    return chi2_p_value(2.0 * value * mean / variance, 2.0 * mean * mean / variance)


def cosines(left: NDArray[Any], right: NDArray[Any]) -> Sample:
    """Cosine of each row with the row beside it; 0 where one has no direction (null, or not finite)."""
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        dots = np.einsum("ij,ij->i", a, b)
        usable = np.isfinite(lengths) & np.isfinite(dots) & (lengths > 0)
        return np.where(usable, dots / np.where(usable, lengths, 1.0), 0.0)
