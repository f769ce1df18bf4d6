"""A side of a comparison as columns: what detectors look at instead of spans.

One row for each search, model call and request, in lists that become numpy arrays when the side has been
read.  Unknown numbers are NaN, unknown texts empty.  Nothing here knows how the rows came to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from neuronscope.signals.tensors import TensorSnapshot

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
UNKNOWN: Final = float("nan")


class Table:
    """Rows of one kind.

    Numbers are columns of floats; labels columns of any hashable value; both by name.
    """

    __slots__ = ("_arrays", "columns", "numbers")

    def __init__(self, numbers: Sequence[str], labels: Sequence[str]) -> None:
        self.numbers = frozenset(numbers)
        self.columns: dict[str, list[Any]] = {name: [] for name in (*numbers, *labels)}
        self._arrays: dict[str, Floats] = {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def number(self, name: str) -> Floats:
        """A column of numbers; the rows must be complete."""
        found = self._arrays.get(name)
        if found is None:
            found = self._arrays[name] = np.asarray(self.columns[name], dtype=np.float64)
        return found

    def labels(self, name: str) -> list[Any]:
        """A column of labels."""
        return self.columns[name]

    def where(self, name: str, value: Any) -> Mask:
        """Rows with a label."""
        return np.fromiter((each == value for each in self.columns[name]), np.bool_, len(self))

    def rows(self, mask: Mask, name: str) -> list[Any]:
        """A column's labels in the rows of a mask."""
        column = self.columns[name]
        return [column[row] for row in np.flatnonzero(mask)]


SEARCH_NUMBERS: Final = (
    "top", "kth", "margin", "norm", "returned", "k", "dimension", "duration", "start", "weight",
)  # fmt: skip
SEARCH_LABELS: Final = (
    "trace", "store", "collection", "namespace", "metric", "filtered", "fingerprint", "embedder", "ids",
    "scores", "stages", "error", "route",
)  # fmt: skip
CALL_NUMBERS: Final = (
    "input_tokens", "output_tokens", "cached", "duration", "first_chunk", "chunks", "consumer", "queue",
    "batch", "resends", "status", "cost", "messages", "inputs", "characters", "system_characters",
    "documents", "documents_whole", "documents_cut", "returned", "rerank_shift", "top", "non_finite",
    "layer_records", "checksum", "start", "weight",
)  # fmt: skip
CALL_LABELS: Final = (
    "trace", "operation", "provider", "model", "answered_by", "backend", "address", "finish", "end", "error",
    "parameters", "system", "tools", "pieces", "route", "stored_as", "wrapped", "adapters", "edits",
    "weights", "dtype", "kernels", "key", "fidelity", "in_process", "watched",
)  # fmt: skip
REQUEST_NUMBERS: Final = ("duration", "wait", "own", "status", "start", "weight", "spans")
REQUEST_LABELS: Final = ("trace", "route", "error", "service")


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Summaries of one layer: a row for each record, in order of time.

    Attributes:
        values: columns mean, std, abs_max, rms, zero share, non-finite share, and how many elements.
        dtypes: how many records of each element type.
        sketches: of records that have one.
        times: when each record was made, in unix nanoseconds; empty if unknown.
    """

    values: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    traces: list[str] = field(default_factory=list[str])
    dtypes: Counter[str] = field(default_factory=Counter[str])
    sketches: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    times: list[int] = field(default_factory=list[int])


LayerKey: TypeAlias = tuple[str, str, str]  # model, layer, and "first" or "later" run of a call
Runs: TypeAlias = dict[str, TensorSnapshot]  # a run's tensors by layer, in the order in which layers ran
Snapshots: TypeAlias = dict[tuple[str, int | None, int], Runs]  # by trace, span and step


@dataclass
class Columns:
    """Everything of one side.

    Attributes:
        layers: by model, layer and run.
        snapshots: full tensors by model; their values can be read while the recording is open.
        resources: resource attributes, and how many spans have them.
        events: what the agent told about itself: how often each name.
        hashed, keys_differ: identifiers, or checksums of prompts, have a key that the other side's have not.
    """

    searches: Table = field(default_factory=lambda: Table(SEARCH_NUMBERS, SEARCH_LABELS))
    calls: Table = field(default_factory=lambda: Table(CALL_NUMBERS, CALL_LABELS))
    requests: Table = field(default_factory=lambda: Table(REQUEST_NUMBERS, REQUEST_LABELS))
    layers: dict[LayerKey, LayerRows] = field(default_factory=dict[LayerKey, LayerRows])
    aggregated: dict[LayerKey, LayerRows] = field(default_factory=dict[LayerKey, LayerRows])
    snapshots: dict[str, Snapshots] = field(default_factory=dict[str, "Snapshots"])
    environment: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    events: Counter[str] = field(default_factory=Counter[str])
    traces: int = 0
    spans: int = 0
    layer_records: int = 0
    tensors: int = 0
    start_unix_ns: int = 0
    end_unix_ns: int = 0
    services: Counter[str] = field(default_factory=Counter[str])
    content: bool = False
    sampled: bool = False
    weight: float = 0.0
    hashed: bool = False
    keys_differ: bool = False
    damage: list[str] = field(default_factory=list[str])

    @property
    def seconds(self) -> float:
        """From the first span's start to the last one's end."""
        return (self.end_unix_ns - self.start_unix_ns) / 1e9


def finite(values: Floats) -> Floats:
    """Those that are known."""
    return values[np.isfinite(values)]


def shares(labels: Iterable[Any], weights: Iterable[float] | None = None) -> dict[Any, float]:
    """How much of a column each label makes up."""
    counts: Counter[Any] = Counter()
    if weights is None:
        counts.update(labels)
    else:
        for label, weight in zip(labels, weights, strict=True):
            counts[label] += weight  # type: ignore[assignment]  # Counter's values may be floats
    total = float(sum(counts.values()))
    return {label: count / total for label, count in counts.items()} if total else {}
