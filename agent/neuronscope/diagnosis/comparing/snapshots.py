"""Layers compared number by number: where both sides hold full tensors of runs with the same input.

Statistics hide what moves each number a little and leaves their mean and spread alone.  Tensors of the same
input do not: what differs beyond rounding, and beyond what repeats of an input on one side differ by, is a
change, and it shows in which channels it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuronscope.diagnosis.comparing.columns import Columns, Floats, Runs
from neuronscope.exceptions import NszError
from neuronscope.signals.tensors import TensorSnapshot

MAX_PAIRS: Final = 16
MAX_RUNS: Final = 64  # of a side, looked at for pairs
MAX_NUMBERS: Final = 50_000_000  # read of a model, all pairs together
NEAR: Final = 0.05  # relative difference of a first layer's tensors that may have the same input
MOST: Final = 0.9  # of the difference, which a few channels may hold
# Relative size of what rounding does to a layer's numbers: where repeats tell how steady the kernels are;
# where there are none; and between element types or machines (there, float32 may be multiplied as TF32).
ROUNDING: Final[Mapping[str, tuple[float, float, float]]] = {
    "F64": (1e-15, 1e-12, 1e-10),
    "F32": (2e-7, 2e-5, 2e-3),
    "F16": (1e-3, 3e-3, 1e-2),
    "BF16": (4e-3, 1e-2, 3e-2),
}
_DEFAULT_ROUNDING: Final = (1e-2, 3e-2, 0.1)


@dataclass(frozen=True, slots=True)
class Twins:
    """Runs of a model that had the same input.

    Attributes:
        pairs: one of each side.
        repeats: two of one side, for each side.
        layers: that both sides have, in the order in which the model runs them.
    """

    model: str
    pairs: list[tuple[Runs, Runs]]
    repeats: list[list[tuple[Runs, Runs]]]
    layers: list[str]


@dataclass(frozen=True, slots=True)
class Apart:
    """How far a layer's tensors are apart.

    Attributes:
        size: norm of the difference over that of the tensor, median of the pairs.
        cosine: of the two tensors, the lowest.
        noise: the size that rounding and repeats explain.
    """

    size: float
    cosine: float
    noise: float
    pairs: int
    repeats: int
    before: float
    after: float


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


# --- which runs had the same input ---------------------------------------------------------------------
def find_twins(
    sides: tuple[Columns, Columns],
    model: str,
    same: Mapping[str, str],
    repeated: tuple[Mapping[str, str], Mapping[str, str]],
    places: Mapping[tuple[str, str], float],
) -> Twins | None:
    """Runs to compare; None where there are none.

    A run's input is known by its trace (`same`: traces of the earlier side with those of the later one that
    had the same input; `repeated`: the same within each side), or by its first layer's tensor; `places`
    tell which layer comes first.
    """
    runs = [_usable(side, model) for side in sides]
    if not all(runs):
        return None
    known = [{layer for run in each.values() for layer in run} for each in runs]
    layers = sorted(known[0] & known[1], key=lambda layer: places.get((model, layer), 0.0))
    if not layers:
        return None
    keys = [_contents(each.values(), layers[0]) for each in runs]
    pairs = [*_by_trace(runs[0], runs[1], same)]
    pairs += _unused(pairs, [(run, keys[1][key]) for key, run in keys[0].items() if key in keys[1]])
    if not pairs:
        pairs = list(_nearest(runs[0].values(), runs[1].values(), layers[0]))
    repeats = [
        [*_by_trace(each, each, twins), *_same_content(each.values(), layers[0])]
        for each, twins in zip(runs, repeated, strict=True)
    ]
    most = _affordable(pairs)
    return Twins(model, pairs[:most], [each[:most] for each in repeats], layers) if pairs else None


def _usable(side: Columns, model: str) -> dict[tuple[str, int], Runs]:
    """Runs whose input a first layer can tell: no single tokens of a generation, whose past is elsewhere."""
    calls = zip(side.calls.labels("trace"), side.calls.labels("operation"), strict=True)
    writing = {trace for trace, operation in calls if operation not in {"embeddings", "rerank"}}
    found: dict[tuple[str, int], Runs] = {}
    for (trace, _, step), run in side.snapshots.get(model, {}).items():
        shape = next(iter(run.values())).shape
        alone = len(shape) < 2 or shape[-2] == 1
        if step == 0 or not (alone or trace in writing):
            found.setdefault((trace, step), run)
        if len(found) >= MAX_RUNS:
            break
    return found


def _by_trace(
    before: Mapping[tuple[str, int], Runs], after: Mapping[tuple[str, int], Runs], same: Mapping[str, str]
) -> Iterator[tuple[Runs, Runs]]:
    for (trace, step), run in before.items():
        later = after.get((same.get(trace, ""), step)) if step == 0 else None
        if later is not None and later is not run:
            yield run, later


def _unused(pairs: Iterable[tuple[Runs, Runs]], more: Iterable[tuple[Runs, Runs]]) -> list[tuple[Runs, Runs]]:
    used = {id(run) for pair in pairs for run in pair}
    return [pair for pair in more if used.isdisjoint(map(id, pair))]


def _contents(runs: Iterable[Runs], layer: str) -> dict[bytes, Runs]:
    """The first run with each content of a layer."""
    found: dict[bytes, Runs] = {}
    for run in runs:
        key = _content(run.get(layer))
        if key:
            found.setdefault(key, run)
    return found


def _same_content(runs: Iterable[Runs], layer: str) -> Iterator[tuple[Runs, Runs]]:
    first: dict[bytes, Runs] = {}
    for run in runs:
        key = _content(run.get(layer))
        if key and key in first:
            yield first[key], run
        elif key:
            first[key] = run


def _content(tensor: TensorSnapshot | None) -> bytes:
    array = _array(tensor)
    if array is None or not array.any():
        return b""
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16)
    digest.update(str(array.shape).encode())
    return digest.digest()


def _nearest(before: Iterable[Runs], after: Iterable[Runs], layer: str) -> Iterator[tuple[Runs, Runs]]:
    """Runs that rounding alone can have made different: far nearer to each other than to any other run."""
    left = [(run, array) for run in before if (array := _array(run.get(layer))) is not None]
    right = [(run, array) for run in after if (array := _array(run.get(layer))) is not None]
    for run, array in left[:MAX_PAIRS]:
        apart = sorted(
            (_distance(array, other)[0], place)
            for place, (_, other) in enumerate(right)
            if other.shape == array.shape
        )
        if apart and apart[0][0] < NEAR and (len(apart) == 1 or apart[1][0] > 4 * apart[0][0]):
            yield run, right[apart[0][1]][0]


def _affordable(pairs: Sequence[tuple[Runs, Runs]]) -> int:
    numbers = max((sum(math.prod(item.shape) for item in run.values()) for run, _ in pairs), default=1)
    return max(1, min(MAX_PAIRS, MAX_NUMBERS // max(1, 2 * numbers)))


# --- how far they are apart ----------------------------------------------------------------------------
def compare_layer(twins: Twins, layer: str, *, elsewhere: bool) -> Apart | None:
    """One layer's tensors; None where no pair has them in the same shape.

    Args:
        elsewhere: the sides ran on other hardware or libraries.
    """
    found = [(_distance(a, b), a, b) for a, b in _tensors(twins.pairs, layer)]
    known = [(distance, a, b) for distance, a, b in found if math.isfinite(distance[0])]
    if not known:
        return None
    dtypes = {run[layer].dtype for pair in twins.pairs for run in pair if layer in run}
    alone = [
        [size for a, b in _tensors(each, layer) if math.isfinite(size := _distance(a, b)[0])]
        for each in twins.repeats
    ]
    # The steadier side's: a kernel that became noisy must not excuse itself.
    steady = min((max(each) for each in alone if each), default=None)
    column = 2 if elsewhere or len(dtypes) > 1 else 1 if steady is None else 0
    floor = max(ROUNDING.get(dtype, _DEFAULT_ROUNDING)[column] for dtype in dtypes)
    return Apart(
        size=float(np.median([distance for (distance, _), _, _ in known])),
        cosine=min(cosine for (_, cosine), _, _ in known),
        noise=max(floor, steady or 0.0),
        pairs=len(known),
        repeats=sum(map(len, alone)),
        before=float(np.median([_rms(a) for _, a, _ in known])),
        after=float(np.median([_rms(b) for _, _, b in known])),
    )


def look_closer(twins: Twins, layer: str) -> Detail:
    """Where in a layer's tensors the difference is, and of what kind."""
    sums = _Sums()
    for a, b in _tensors(twins.pairs, layer):
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


def _tensors(pairs: Iterable[tuple[Runs, Runs]], layer: str) -> Iterator[tuple[Floats, Floats]]:
    for before, after in pairs:
        a, b = _array(before.get(layer)), _array(after.get(layer))
        if a is not None and b is not None and a.shape == b.shape and a.size:
            yield a, b


def _distance(a: Floats, b: Floats) -> tuple[float, float]:
    """(norm of the difference over the larger norm, cosine), of the numbers that are finite on both sides."""
    both = np.isfinite(a) & np.isfinite(b)
    if not both.all():
        a, b = a[both], b[both]
    lengths = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    longest = max(lengths)
    if not a.size or not longest:
        return (math.nan, math.nan) if not a.size else (0.0, 1.0)
    cosine = float(np.vdot(a, b)) / (lengths[0] * lengths[1]) if min(lengths) else 0.0
    return float(np.linalg.norm(b - a)) / longest, cosine


def _rms(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(np.square(known)))) if known.size else 0.0


def _array(tensor: TensorSnapshot | None) -> Floats | None:
    """A tensor's numbers; None where they cannot be read, or are no numbers."""
    if tensor is None:
        return None
    try:
        found: NDArray[Any] = tensor.numpy()
    except (NszError, ValueError):  # damaged, or never there
        return None
    if tensor.dtype == "BF16" and found.dtype == np.uint16:  # stored, and nobody here knows the type
        found = (found.astype(np.uint32) << 16).view(np.float32)
    elif tensor.dtype.startswith("F8") and found.dtype == np.uint8:
        return None
    if found.dtype.kind == "c":
        found = np.stack([np.real(found), np.imag(found)])
    return np.asarray(found, np.float64)


def machines_differ(sides: tuple[Columns, Columns]) -> bool:
    """Do the sides say that they ran on other hardware or libraries?"""
    before, after = ({name: set(values) for name, values in side.environment.items()} for side in sides)
    ignored = {"service", "NeuronScope", "OpenTelemetry", "system", "processors"}
    return any(before.get(name) != after.get(name) for name in {*before, *after} - ignored)
