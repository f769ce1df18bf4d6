"""Which runs of a model had the same input, so that their tensors can be compared number by number.

A run that reads a whole input is known by its trace, or by what its first layer wrote.  A step of a
generation depends on all that was written before it: of two generations that began with the same input, as
many steps are compared as both sides hold while the tokens so far are the same, which the first layer's
tensors tell.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from neuronscope.diagnosis.comparing.columns import Columns, Floats, Runs
from neuronscope.exceptions import NszError
from neuronscope.signals.tensors import TensorSnapshot

MAX_PAIRS: Final = 16
MAX_CHAINS: Final = 64  # of a side, looked at for pairs
MAX_STEPS: Final = 256  # of a generation
MAX_NUMBERS: Final = (
    50_000_000  # read of a model's first steps, all pairs together; and again of its later ones
)
NEAR: Final = 0.05  # relative difference of a first layer's tensors that may have the same input
APART: Final = 4 * NEAR  # that of two tokens, at least, in a layer that can tell them apart
Pair: TypeAlias = tuple[Runs, Runs]


@dataclass(frozen=True, slots=True)
class Chain:
    """Runs of one call in their order, each of which may depend on those before it.

    Attributes:
        key: of what the first layer wrote in the first run; empty where that is not known.
    """

    trace: str
    runs: list[Runs] = field(default_factory=list[Runs])
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Walk:
    """Two generations that began with the same input.

    Attributes:
        runs: of each step, as far as the tokens before it are the same.
        parted: the first step that reads another token; None if none is known to.
    """

    runs: list[Pair]
    parted: int | None = None


@dataclass(frozen=True, slots=True)
class Twins:
    """Runs of a model that had the same input.

    Attributes:
        walks: one generation, or one run, of each side.
        repeats: two of one side, for each side.
        layers: that both sides have, in the order in which the model runs them.
        steps: of the longest walk that are compared.
    """

    model: str
    walks: list[Walk]
    repeats: tuple[list[Walk], list[Walk]]
    layers: list[str]
    steps: int

    def at(self, step: int) -> tuple[list[Pair], list[list[Pair]]]:
        """Pairs of a step, and each side's repeats."""
        return _step(self.walks, step), [_step(each, step) for each in self.repeats]


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
    known = [{layer for run in side.snapshots.get(model, {}).values() for layer in run} for side in sides]
    layers = sorted(known[0] & known[1], key=lambda layer: places.get((model, layer), 0.0))
    if not layers:
        return None
    chains = [_chains(side, model, layers[0]) for side in sides]
    once = [_once(side, model, each) for side, each in zip(sides, chains, strict=True)]
    pairs = [*_by_trace(once[0], once[1], same)]
    pairs += _unused(pairs, _by_content(chains[0], chains[1]))
    if not pairs:
        pairs = list(_nearest(chains[0], chains[1], layers[0]))
    if not pairs:
        return None
    repeats = [
        [*_by_trace(alone, alone, twins), *_same_content(each)]
        for alone, each, twins in zip(once, chains, repeated, strict=True)
    ]
    most = _affordable(pairs)
    walks = [_walk(*pair, layers[0]) for pair in pairs[:most]]
    alike = [[_walk(*pair, layers[0]) for pair in each[:most]] for each in repeats]
    return Twins(model, walks, (alike[0], alike[1]), layers, _steps(walks))


def numbers_of(tensor: TensorSnapshot | None) -> Floats | None:
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


def distance(a: Floats, b: Floats) -> tuple[float, float]:
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


# --- chains ------------------------------------------------------------------------------------------------
def _chains(side: Columns, model: str, layer: str) -> list[Chain]:
    """A side's generations, and its runs that depend on none before them."""
    calls = zip(side.calls.labels("trace"), side.calls.labels("operation"), strict=True)
    writing = {trace for trace, operation in calls if operation not in {"embeddings", "rerank"}}
    found: list[Chain] = []
    last: dict[tuple[str, int | None], tuple[Chain, int]] = {}  # and the step that it ends with
    for (trace, span, step), run in sorted(side.snapshots.get(model, {}).items(), key=_in_order):
        chain, end = last.get((trace, span), (None, -1))
        if step == 0 or not (_short(run) or trace in writing):
            if len(found) >= MAX_CHAINS:
                continue
            chain = Chain(trace, [run], _content(run.get(layer)))
            found.append(chain)
        elif chain is not None and step == end + 1 and len(chain.runs) < MAX_STEPS:
            chain.runs.append(run)
        else:
            continue  # what it depends on is not known
        last[trace, span] = chain, step
    return found


def _in_order(item: tuple[tuple[str, int | None, int], Runs]) -> tuple[str, int, int]:
    (trace, span, step), _ = item
    return trace, span or 0, step


def _short(run: Runs) -> bool:
    """Does it read a single token?"""
    shape = next(iter(run.values())).shape
    return len(shape) < 2 or shape[-2] == 1


def _once(side: Columns, model: str, chains: Sequence[Chain]) -> dict[str, Chain]:
    """Chains by trace, of traces that called the model once: others do not tell which chain is which."""
    calls = Counter(
        trace
        for trace, watched in zip(side.calls.labels("trace"), side.calls.labels("watched"), strict=True)
        if watched == model
    )
    recorded = Counter(chain.trace for chain in chains)
    return {chain.trace: chain for chain in chains if recorded[chain.trace] == 1 and calls[chain.trace] <= 1}


# --- which had the same input ------------------------------------------------------------------------------
def _by_trace(
    before: Mapping[str, Chain], after: Mapping[str, Chain], same: Mapping[str, str]
) -> Iterator[tuple[Chain, Chain]]:
    for trace, chain in before.items():
        later = after.get(same.get(trace, ""))
        if later is not None and later is not chain:
            yield chain, later


def _unused(
    pairs: Iterable[tuple[Chain, Chain]], more: Iterable[tuple[Chain, Chain]]
) -> list[tuple[Chain, Chain]]:
    used = {id(chain) for pair in pairs for chain in pair}
    return [pair for pair in more if used.isdisjoint(map(id, pair))]


def _by_content(before: Iterable[Chain], after: Iterable[Chain]) -> Iterator[tuple[Chain, Chain]]:
    """One pair for each content of a first layer: of the first chains that have it."""
    first: dict[bytes, Chain] = {}
    for chain in after:
        first.setdefault(chain.key, chain)
    seen = {b""}
    for chain in before:
        if chain.key in first and chain.key not in seen:
            seen.add(chain.key)
            yield chain, first[chain.key]


def _same_content(chains: Iterable[Chain]) -> Iterator[tuple[Chain, Chain]]:
    first: dict[bytes, Chain] = {}
    for chain in chains:
        if chain.key and chain.key in first:
            yield first[chain.key], chain
        elif chain.key:
            first[chain.key] = chain


def _content(tensor: TensorSnapshot | None) -> bytes:
    array = numbers_of(tensor)
    if array is None or not array.any():
        return b""
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16)
    digest.update(str(array.shape).encode())
    return digest.digest()


def _nearest(before: Iterable[Chain], after: Iterable[Chain], layer: str) -> Iterator[tuple[Chain, Chain]]:
    """Runs that rounding alone can have made different: far nearer to each other than to any other run."""
    left, right = (
        [(chain, array) for chain in each if (array := numbers_of(chain.runs[0].get(layer))) is not None]
        for each in (before, after)
    )
    for chain, array in left[:MAX_PAIRS]:
        apart = sorted(
            (distance(array, other)[0], place)
            for place, (_, other) in enumerate(right)
            if other.shape == array.shape
        )
        if apart and apart[0][0] < NEAR and (len(apart) == 1 or apart[1][0] > 4 * apart[0][0]):
            yield chain, right[apart[0][1]][0]


def _affordable(pairs: Sequence[tuple[Chain, Chain]]) -> int:
    numbers = max((_size(before.runs[0]) for before, _ in pairs), default=1)
    return max(1, min(MAX_PAIRS, MAX_NUMBERS // max(1, 2 * numbers)))


def _size(run: Runs) -> int:
    return sum(math.prod(item.shape) for item in run.values())


# --- while the tokens are the same -------------------------------------------------------------------------
def _walk(before: Chain, after: Chain, layer: str) -> Walk:
    """Two generations side by side, until one reads another token, or nothing tells which it reads."""
    runs = [(before.runs[0], after.runs[0])]
    telling: bool | None = None
    for pair in zip(before.runs[1:], after.runs[1:], strict=False):
        arrays = [numbers_of(run.get(layer)) for run in pair]
        if arrays[0] is None or arrays[1] is None or arrays[0].shape != arrays[1].shape:
            break
        if not np.array_equal(arrays[0], arrays[1]):
            if telling is None:
                telling = _tells_tokens(before, layer)
            if not telling:
                break
            if distance(arrays[0], arrays[1])[0] >= NEAR:
                return Walk(runs, len(runs))
        runs.append(pair)
    return Walk(runs)


def _tells_tokens(chain: Chain, layer: str) -> bool:
    """Does another token make this layer's numbers so different that rounding cannot be mistaken for one?"""
    arrays = [array for run in chain.runs[1:9] if (array := numbers_of(run.get(layer))) is not None]
    sizes = [
        distance(a, b)[0]
        for place, a in enumerate(arrays)
        for b in arrays[place + 1 :]
        if a.shape == b.shape and not np.array_equal(a, b)
    ]
    return bool(sizes) and min(sizes) > APART


def _steps(walks: Sequence[Walk]) -> int:
    """How many steps can be compared, all walks together, with as many numbers as is affordable."""
    left = MAX_NUMBERS
    step = 1
    while left > 0:
        pairs = _step(walks, step)
        if not pairs:
            return step
        left -= 2 * sum(_size(before) for before, _ in pairs)
        step += 1
    return step - 1


def _step(walks: Iterable[Walk], step: int) -> list[Pair]:
    return [walk.runs[step] for walk in walks if len(walk.runs) > step]
