"""Means with their uncertainty, of values that come one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

# Student's t, two-sided 95 %, for few degrees of freedom; beyond them Fisher's expansion is good to 0.1 %.
_T95: Final = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
_Z95: Final = 1.959964


def t95(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t distribution."""
    if degrees < len(_T95):
        return _T95[max(0, degrees)]
    z, n = _Z95, float(degrees)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n * n)


class Mean:
    """A running mean and its variance (Welford).  Not thread-safe."""

    __slots__ = ("_m2", "mean", "n")

    def __init__(self) -> None:
        self.n = 0
        self.mean = 0.0
        self._m2 = 0.0

    def add(self, value: float) -> None:
        """Take a value."""
        self.n += 1
        away = value - self.mean
        self.mean += away / self.n
        self._m2 += away * (value - self.mean)

    @property
    def variance(self) -> float:
        """The sample variance; infinite for fewer than two values."""
        return self._m2 / (self.n - 1) if self.n > 1 else math.inf

    def margin(self, population: int | None = None) -> float:
        """Half the width of the 95 % interval of the mean.

        Args:
            population: how many values there were in all, if these are a sample of finitely many.
        """
        if population is not None and population <= self.n:
            return 0.0
        if self.n < 2:
            return math.inf
        left = 1.0 if population is None else 1.0 - self.n / population
        return t95(self.n - 1) * math.sqrt(self.variance / self.n * left)


def excess(arm: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """By what share one arm is above the other, in pairs, and half the 95 % interval of that.

    The ratio of the sums, less one, and its variance by linearisation: a mean of ratios would be too high
    where the base is noisy.
    """
    ratio, n = fmean(arm) / fmean(base), len(arm)
    if n < 2:
        return ratio - 1.0, math.inf
    left = sum((a - ratio * b) ** 2 for a, b in zip(arm, base, strict=True))
    return ratio - 1.0, t95(n - 1) * math.sqrt(left / (n * (n - 1))) / fmean(base)
