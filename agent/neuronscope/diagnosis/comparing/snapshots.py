"""Layers compared number by number: where both sides hold full tensors of runs with the same input.

Statistics hide what moves each number a little and leaves their mean and spread alone.  Tensors of the same
input do not: what differs beyond rounding, and beyond what repeats of an input on one side differ by, is a
change, and it shows in which channels it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from neuronscope.diagnosis.comparing.columns import Columns, Floats
from neuronscope.diagnosis.comparing.twins import Pair, Twins, distance, numbers_of

MOST: Final = 0.9  # of the difference, which a few channels may hold
# Relative size of what rounding does to a layer's numbers: where repeats tell how steady the kernels are, and
# both sides say that these are the same; where not; and between element types or machines (there, float32 may
# be multiplied as TF32).  Four times this is beyond what SmolLM2 showed (docs/explanation/comparing.md).
ROUNDING: Final[Mapping[str, tuple[float, float, float]]] = {
    "F64": (1e-15, 1e-12, 1e-10),
    "F32": (1e-6, 2e-5, 2e-3),
    "F16": (1e-3, 3e-3, 1e-2),
    "BF16": (4e-3, 2e-2, 8e-2),
}
_DEFAULT_ROUNDING: Final = (1e-2, 3e-2, 0.1)


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a layer's tensors are apart.

    Attributes:
        size: norm of the difference over that of the tensor, median of the pairs.
        cosine: of the two tensors, the lowest.
        noise: the size that rounding and repeats explain.
        step: of the generation; 0: a run that reads a whole input.
    """

    size: float
    cosine: float
    noise: float
    pairs: int
    repeats: int
    before: float
    after: float
    step: int = 0


@dataclass(frozen=True, slots=True)
class Detail:
    """What the difference of a layer's tensors looks like.

    Attributes:
        scale: factor that fits the later tensor best, and `left`: relative difference that it leaves.
        channels: of the last dimension, the fewest that hold most of the difference, largest first.
        width: how many channels there are.
        capped, zeroed, rare: share of the squared difference in numbers beyond the other side's largest one;
            in those that are zero on the later side alone; in the largest thousandth.
    """

    scale: float = 1.0
    left: float = 0.0
    channels: tuple[int, ...] = ()
    width: int = 0
    capped: float = 0.0
    zeroed: float = 0.0
    rare: float = 0.0

    @property
    def few(self) -> bool:
        """Is it in a few channels only?"""
        return 0 < len(self.channels) <= max(1, self.width // 10)


@dataclass
class _Sums:
    """Sums over all pairs of one layer."""

    dot: float = 0.0
    first: float = 0.0
    energy: Floats = field(default_factory=lambda: np.zeros(0))
    parts: list[tuple[float, float, float]] = field(default_factory=list[tuple[float, float, float]])
    second: float = 0.0


# --- how far they are apart ----------------------------------------------------------------------------
class Setting(IntEnum):
    """How alike the two sides round: the column of `ROUNDING`."""

    SAME = 0  # the same kernels on the same machine
    NEAR = 1  # the same machine
    OTHER = 2


def compare_layer(twins: Twins, layer: str, setting: Setting, step: int = 0) -> Apart | None:
    """One layer's tensors in a step; None where no pair has them in the same shape."""
    pairs, repeats = twins.at(step)
    found = [(distance(a, b), a, b) for a, b in _tensors(pairs, layer)]
    known = [(apart, a, b) for apart, a, b in found if math.isfinite(apart[0])]
    if not known:
        return None
    dtypes = {run[layer].dtype for pair in pairs for run in pair if layer in run}
    alone = [
        [size for a, b in _tensors(each, layer) if math.isfinite(size := distance(a, b)[0])]
        for each in repeats
    ]
    # The steadier side's: a kernel that became noisy must not excuse itself.
    steady = min((max(each) for each in alone if each), default=None)
    if len(dtypes) > 1:
        setting = Setting.OTHER
    elif steady is None:
        setting = max(setting, Setting.NEAR)
    floor = max(ROUNDING.get(dtype, _DEFAULT_ROUNDING)[setting] for dtype in dtypes)
    return Apart(
        size=float(np.median([size for (size, _), _, _ in known])),
        cosine=min(cosine for (_, cosine), _, _ in known),
        noise=max(floor, steady or 0.0),
        pairs=len(known),
        repeats=sum(map(len, alone)),
        before=float(np.median([_rms(a) for _, a, _ in known])),
        after=float(np.median([_rms(b) for _, _, b in known])),
        step=step,
    )


def look_closer(twins: Twins, layer: str, step: int = 0) -> Detail:
    """Where in a layer's tensors the difference is, and of what kind."""
    sums = _Sums()
    for a, b in _tensors(twins.at(step)[0], layer):
        _add(sums, a, b)
    total = float(sums.energy.sum())
    if not total:
        return Detail(width=sums.energy.size)
    scale = sums.dot / sums.first if sums.first else 1.0
    left = max(0.0, sums.second - scale * sums.dot)
    order = np.argsort(-sums.energy, kind="stable")
    most = int(np.searchsorted(np.cumsum(sums.energy[order]), MOST * total)) + 1
    capped, zeroed, rare = np.array(sums.parts).sum(axis=0) / total
    return Detail(
        scale,
        math.sqrt(left / sums.first) if sums.first else 0.0,
        tuple(order[:most].tolist()),
        sums.energy.size,
        float(capped),
        float(zeroed),
        float(rare),
    )


def _add(sums: _Sums, a: Floats, b: Floats) -> None:
    both = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(both, a, 0.0), np.where(both, b, 0.0)
    squared: Floats = np.square(b - a)
    channels = squared.reshape(-1, squared.shape[-1] if squared.ndim else 1).sum(axis=0)
    if sums.energy.size != channels.size:
        if sums.energy.size:
            return  # another width: not the same layer
        sums.energy = np.zeros(channels.size)
    sums.energy += channels
    sums.dot += float(np.vdot(a, b))
    sums.first += float(np.vdot(a, a))
    sums.second += float(np.vdot(b, b))
    largest = min(float(np.abs(a).max()), float(np.abs(b).max())) * (1 - 1e-6)
    beyond = (np.abs(a) > largest) | (np.abs(b) > largest)
    few = max(1, squared.size // 1000)
    rare = np.partition(squared.ravel(), squared.size - few)[-few:]
    sums.parts.append(
        (float(squared[beyond].sum()), float(squared[(b == 0) & (a != 0)].sum()), float(rare.sum()))
    )


def _tensors(pairs: Iterable[Pair], layer: str) -> Iterator[tuple[Floats, Floats]]:
    for before, after in pairs:
        a, b = numbers_of(before.get(layer)), numbers_of(after.get(layer))
        if a is not None and b is not None and a.shape == b.shape and a.size:
            yield a, b


def _rms(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(np.square(known)))) if known.size else 0.0


def setting_of(sides: tuple[Columns, Columns], model: str) -> Setting:
    """Do the sides say that they ran on other hardware or libraries, or with other kernels?"""
    before, after = ({name: set(values) for name, values in side.environment.items()} for side in sides)
    ignored = {"service", "NeuronScope", "OpenTelemetry", "system", "processors"}
    if any(before.get(name) != after.get(name) for name in {*before, *after} - ignored):
        return Setting.OTHER
    kernels = [
        {
            kernels
            for watched, kernels in zip(
                side.calls.labels("watched"), side.calls.labels("kernels"), strict=True
            )
            if watched == model and kernels
        }
        for side in sides
    ]
    return Setting.SAME if len(kernels[0]) == 1 and kernels[0] == kernels[1] else Setting.NEAR
