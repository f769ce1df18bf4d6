"""The first layer whose numbers are not as before, and how they differ: from summaries alone.

For each layer, the runs of one side are compared with those of the other, and with each other: how far two
halves of the same side are apart is the noise of inputs, batches and kernels, and what is not well beyond it
is no divergence.  Where the same inputs were seen on both sides, the very runs are compared, which is far
sharper.  A change of element type widens the noise by the coarser type's rounding.  Nothing here needs a
tensor (`snapshots` looks at those); devices may differ.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np

from neuronscope.diagnosis import statistics as st
from neuronscope.diagnosis.comparing.columns import Floats, LayerKey, LayerRows
from neuronscope.diagnosis.comparing.snapshots import Apart, Detail

MEAN, STD, MOST, RMS, ZERO, BAD, COUNT = range(7)
MIN_RUNS: Final = 8
MIN_PAIRS: Final = 2
BEYOND: Final = 4.0  # times the noise
# Relative rounding of a layer's statistics, by element type: half a unit in the last place, a few dozen
# times over.
ROUNDING: Final[Mapping[str, float]] = {
    "F64": 1e-9,
    "F32": 2e-4,
    "F16": 4e-3,
    "BF16": 3e-2,
    "F8_E4M3": 0.2,
    "F8_E5M2": 0.3,
    "I8": 0.05,
}
_DEFAULT_ROUNDING: Final = 1e-3
_DIGITS: Final = re.compile(r"(\d+)")


SameInputs: TypeAlias = Mapping[str, Mapping[str, str]]


class How(StrEnum):
    """In what way a layer's numbers differ."""

    SCALE = "scale"  # all of them larger or smaller by a factor
    DIRECTION = "direction"  # other numbers of about the same size
    NOISE = "noise"  # the same, with a little noise
    SATURATION = "saturation"  # the largest are cut off
    OUTLIERS = "outliers"  # a few are far larger
    SPARSER = "sparser"  # more zeros
    ABSENT = "absent"  # the layer does not run any more


@dataclass(frozen=True, slots=True)
class Parting:
    """How generations that began with the same input went on.

    Attributes:
        generations: of which more than the first step is known.
        parted: the first step of each that reads another token, in order; empty where none is known to.
        longest: steps of the longest that are the same.
    """

    generations: int
    parted: tuple[int, ...]
    longest: int


@dataclass(frozen=True, slots=True)
class LayerChange:
    """One layer, before and after.

    Attributes:
        size: relative difference of its numbers' size and spread; of the numbers, where there are snapshots.
        noise: the same between runs of one side.
        p: of the best test; None for pairs of the same inputs.
        apart: what full tensors of the same inputs say; None without them.
        detail, parting: where in them the difference is, and where tokens part; only of the first layer that
            differs.
    """

    model: str
    layer: str
    run: str
    how: How
    size: float
    noise: float
    n_before: int
    n_after: int
    p: float | None
    before: float
    after: float
    paired: bool = False
    apart: Apart | None = None
    detail: Detail | None = None
    parting: Parting | None = None

    @property
    def diverged(self) -> bool:
        """Is it beyond the noise?"""
        return self.size > BEYOND * self.noise


Order: TypeAlias = Mapping[tuple[str, str], float]  # place of a model's layer


def order(layer: str) -> tuple[tuple[int, str | int], ...]:
    """Sorts layers as their names count: numbers in names are numbers."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(layer))


def running_order(*sides: Mapping[LayerKey, LayerRows]) -> Order:
    """The order in which models run their layers: that of the run of which most is recorded.

    Layers that are not in it, and all of a model whose records tell no time, go by their names.
    """
    runs: dict[str, dict[tuple[int, str], list[tuple[int, str]]]] = {}
    names: dict[str, set[str]] = {}
    for place, side in enumerate(sides):
        for (model, layer, run), rows in side.items():
            names.setdefault(model, set()).add(layer)
            if run == "first":
                for trace, at in zip(rows.traces, rows.times, strict=False):
                    runs.setdefault(model, {}).setdefault((place, trace), []).append((at, layer))
    found: dict[tuple[str, str], float] = {}
    for model, layers in names.items():
        nothing: list[tuple[int, str]] = []
        longest = max(runs.get(model, {}).values(), key=len, default=nothing)
        timed = sorted(longest, key=lambda item: (item[0], order(item[1])))
        placed = {layer: float(at) for at, layer in enumerate(dict.fromkeys(layer for _, layer in timed))}
        by_name = sorted(layers, key=order)
        for at, layer in enumerate(by_name):
            before = placed.get(by_name[at - 1], -1.0) if at else -1.0
            placed.setdefault(layer, before + 1e-3)
        found |= {(model, layer): at for layer, at in placed.items()}
    return found


def changes(
    before: Mapping[LayerKey, LayerRows],
    after: Mapping[LayerKey, LayerRows],
    same_inputs: SameInputs,
    repeated: tuple[SameInputs, SameInputs] = ({}, {}),
    places: Order | None = None,
) -> list[LayerChange]:
    """Every layer that both sides know, in the order of the model.

    Args:
        same_inputs: by model: traces of the earlier side with those of the later one that had the same input.
        repeated: the same within each side: how far runs with one input are apart by themselves.
        places: order of the layers; that of both sides' runs by default.
    """
    placed = running_order(before, after) if places is None else places
    keys = sorted({*before} & {*after}, key=lambda key: (key[0], placed[key[:2]], key[2]))
    found: list[LayerChange | None] = []
    for key in keys:
        sides = before[key], after[key]
        alone = [
            _repeat_noise(rows, twins.get(key[0], {})) for rows, twins in zip(sides, repeated, strict=True)
        ]
        # The steadier side's: a kernel that became noisy must not excuse itself.
        noise = max(*map(_rounding, sides), min((each for each in alone if each is not None), default=0.0))
        found.append(_change(key, *sides, same_inputs.get(key[0], {}), noise))
    return [item for item in found if item is not None]


def _change(
    key: LayerKey, before: LayerRows, after: LayerRows, same: Mapping[str, str], rounding: float
) -> LayerChange | None:
    paired = _paired(key, before, after, same, rounding)
    if paired is not None:
        return paired
    left, right = _finite_rows(before), _finite_rows(after)
    if min(len(left), len(right)) < MIN_RUNS:
        return None
    m, n = len(left), len(right)
    tests = [
        st.ks_p_value(st.ks(np.sort(left[:, column]), np.sort(right[:, column])), m, n)
        for column in (MEAN, STD, MOST)
    ]
    middle = np.median(left, axis=0), np.median(right, axis=0)
    scale = max(float(middle[0][RMS]), 1e-12)
    size = max(abs(float(middle[1][column] - middle[0][column])) for column in (MEAN, STD, RMS)) / scale
    noise = max(rounding, _noise(left, scale), _noise(right, scale))
    return LayerChange(
        *key,
        _how(middle[0], middle[1]),
        size,
        noise,
        m,
        n,
        min(1.0, min(tests) * len(tests)),
        float(middle[0][RMS]),
        float(middle[1][RMS]),
    )


def _paired(
    key: LayerKey, before: LayerRows, after: LayerRows, same: Mapping[str, str], rounding: float
) -> LayerChange | None:
    """The same inputs on both sides: how far each run is from its twin."""
    if key[2] != "first":  # which of several steps were recorded may differ
        return None
    pairs = _twins(before, after, same)
    if pairs is None:
        return None
    left, right = pairs
    apart = _apart(left, right)
    middle = np.median(left, axis=0), np.median(right, axis=0)
    return LayerChange(
        *key,
        _how(middle[0], middle[1], apart),
        float(np.quantile(apart, 0.5, method="lower")),  # of two pairs, both must be apart
        rounding,
        len(left),
        len(right),
        None,
        float(middle[0][RMS]),
        float(middle[1][RMS]),
        paired=True,
    )


def _twins(before: LayerRows, after: LayerRows, same: Mapping[str, str]) -> tuple[Floats, Floats] | None:
    """Runs with the same input, row by row; None where there are too few."""
    later = _numbered(after)
    pairs = [
        (values, later[twin, n])
        for (trace, n), values in _numbered(before).items()
        if (twin := same.get(trace)) is not None and (twin, n) in later
    ]
    if len(pairs) < MIN_PAIRS:
        return None
    left, right = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
    good = np.isfinite(left[:, :4]).all(axis=1) & np.isfinite(right[:, :4]).all(axis=1)
    return (left[good], right[good]) if good.sum() >= MIN_PAIRS else None


def _numbered(rows: LayerRows) -> dict[tuple[str, int], tuple[float, ...]]:
    """Rows by trace, and by which of its runs it was."""
    counts: Counter[str] = Counter()
    found: dict[tuple[str, int], tuple[float, ...]] = {}
    for trace, values in zip(rows.traces, rows.values, strict=True):
        found[trace, counts[trace]] = values
        counts[trace] += 1
    return found


def _apart(left: Floats, right: Floats) -> Floats:
    """Relative difference of each run and its twin."""
    columns = [MEAN, STD, RMS]
    apart: Floats = np.max(np.abs(right[:, columns] - left[:, columns]), axis=1)
    return apart / np.maximum(left[:, RMS], 1e-12)


def _repeat_noise(rows: LayerRows, same: Mapping[str, str]) -> float | None:
    """How far runs of one side with the same input are apart: other batches, other kernels."""
    pairs = _twins(rows, rows, same) if same else None
    return None if pairs is None else float(np.quantile(_apart(*pairs), 0.75))


def _finite_rows(rows: LayerRows) -> Floats:
    values = np.array(rows.values, dtype=np.float64).reshape(len(rows.values), 7)
    return values[np.isfinite(values[:, :4]).all(axis=1)]


def _noise(values: Floats, scale: float) -> float:
    """How far medians of random halves of one side are apart, as a share of its size: the largest of some."""
    random = np.random.default_rng(0)
    half = max(1, len(values) // 2)
    worst = 0.0
    for _ in range(12):
        rows = random.permutation(len(values))
        first, second = values[rows[:half]], values[rows[half:]]
        apart = np.abs(np.median(first, axis=0) - np.median(second, axis=0))
        worst = max(worst, float(max(apart[column] for column in (MEAN, STD, RMS))) / scale)
    return worst / 2  # two halves scatter √2 times as much each, and both do


def _rounding(rows: LayerRows) -> float:
    return max((ROUNDING.get(dtype, _DEFAULT_ROUNDING) for dtype in rows.dtypes), default=_DEFAULT_ROUNDING)


def _how(before: Floats, after: Floats, apart: Floats | None = None) -> How:
    rms = max(float(before[RMS]), 1e-12), max(float(after[RMS]), 1e-12)
    grown = rms[1] / rms[0]
    peak = (float(before[MOST]) / rms[0]) or 1e-12, (float(after[MOST]) / rms[1]) or 1e-12
    if float(after[ZERO]) - float(before[ZERO]) > 0.1:
        return How.SPARSER
    if peak[1] / peak[0] < 0.6:
        return How.SATURATION
    if peak[1] / peak[0] > 1.7:
        return How.OUTLIERS
    means = float(before[MEAN]) / rms[0], float(after[MEAN]) / rms[1]
    if abs(math.log(grown)) > 0.05 and abs(means[1] - means[0]) < 0.05:
        return How.SCALE
    if apart is not None and float(np.median(apart)) < 0.02:
        return How.NOISE
    return How.DIRECTION


def dead(before: LayerRows, after: LayerRows) -> tuple[float, float, int, int] | None:
    """Mean share of zeros before and after, and how many runs; None where it is not known."""
    values = [np.array([row[ZERO] for row in rows.values]) for rows in (before, after)]
    known = [each[np.isfinite(each)] for each in values]
    if min(map(len, known)) < MIN_RUNS:
        return None
    return float(known[0].mean()), float(known[1].mean()), len(known[0]), len(known[1])


def bad_runs(rows: LayerRows) -> tuple[int, int, Sequence[str]]:
    """(runs with NaN or Inf, runs, traces of the former)."""
    traces = [trace for row, trace in zip(rows.values, rows.traces, strict=True) if row[BAD] > 0]
    return len(traces), len(rows.values), traces
