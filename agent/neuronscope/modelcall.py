"""What one span learns about the layers that run in it: aggregates, their error, and what is missing."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.intervals import Mean
from neuronscope.governor.series import Series
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import kernel

MAX_AGGREGATED: Final = 128  # layers whose aggregates fit a span
MAX_NAMED: Final = 16  # layers that are named for having no record
_RANK: Final = {Fidelity.FULL: 0, Fidelity.SUMMARY: 1, Fidelity.CRITICAL: 2, Fidelity.OFF: 3}


class LayerAggregate:
    """Statistics of one layer over a call, estimated from the runs that were captured.

    The first run of a generation (its prefill) is unlike the others, so it is a stratum of its own,
    weighted as the one run it is.  The others are a series; see `Series` for why they are no random sample.
    """

    __slots__ = (
        "_first", "_later", "_std", "_std_first", "abs_max", "dtype", "elements", "layer", "records", "zeros",
    )  # fmt: skip

    def __init__(self, layer: str = "") -> None:
        self.layer = layer
        self.records = 0
        self.abs_max = 0.0
        self.dtype = ""
        self.elements = 0
        self.zeros = 0
        self._first: float | None = None
        self._std_first = 0.0
        self._later = Series()
        self._std = Mean()

    def add(self, step: int, summary: TensorSummary) -> None:
        """Take the summary of a run."""
        self.records += 1
        self.elements += summary.count
        self.zeros += summary.zero_count
        if not math.isfinite(summary.mean):
            return
        self.abs_max = max(self.abs_max, summary.abs_max)
        if step == 0:
            self._first, self._std_first = summary.mean, summary.std
        else:
            self._later.add(step, summary.mean)
            self._std.add(summary.std)

    def mean(self, runs: int) -> float:
        """The mean over all `runs`, captured or not."""
        return self._stratified(self._first, self._later.mean(runs - 1), runs)

    def std(self, runs: int) -> float:
        """The mean of the runs' standard deviations."""
        return self._stratified(None if self._first is None else self._std_first, self._std.mean, runs)

    def error(self, runs: int) -> float:
        """Half the 95 % interval of `mean`: 0 when every run was captured, infinite when unknown."""
        if self._first is None:
            # The first run is missing: that it is like the others is an assumption that no interval covers.
            return math.inf if runs > self.records else 0.0
        return self.error_later(runs) * (runs - 1) / runs if runs > 1 else 0.0

    @property
    def mean_first(self) -> float:
        """The mean of the first run; not a number if it was not captured."""
        return math.nan if self._first is None else self._first

    def mean_later(self, runs: int) -> float:
        """The mean over all runs but the first; not a number if none of them was captured."""
        return self._later.mean(runs - 1) if self._later.n else math.nan

    def error_later(self, runs: int) -> float:
        """Half the 95 % interval of `mean_later`, which the first run does not matter to."""
        return self._later.margin(runs - 1)

    def _stratified(self, first: float | None, later: float, runs: int) -> float:
        if first is None:
            return later
        if runs <= 1 or self._later.n == 0:
            return first
        return (first + (runs - 1) * later) / runs


@dataclass(slots=True)
class ModelCall:
    """What one span learns about the layers that run in it.

    Attributes:
        generates: its forwards are prefill and decoding, not batches.
        root_ends: perf-counter readings at which the model's own forward ended: the first ends the
            prefill of a generation, the last its decoding.
        missed: runs that were not recorded, by layer.
        reason: why something was not recorded, or not in full: the latest.
        looked: does anybody look into this call, at its forwards and the model?  If not, `reason` says why.
        fleeting: of this one run only, which nobody's span is around.
        facts: attributes about the model itself.
        places: what `neuronscope.notes` keeps about where its layers run.
        watched: why layers were not seen, by layer; told of those that have no run.
        idle: the same of models that a scope watches by itself; told if there is nothing else in it.
        is_alone: is there nothing else in the scope?
    """

    model: str
    generates: bool = True
    started_ns: int = field(default_factory=time.perf_counter_ns)
    root_ends: list[int] = field(default_factory=list[int])
    layers: dict[str, LayerAggregate] = field(default_factory=dict[str, LayerAggregate])
    runs: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    watched: dict[str, str] = field(default_factory=dict[str, str])
    records: int = 0
    non_finite: int = 0
    fidelity: Fidelity = Fidelity.FULL
    reason: str = ""
    looked: bool = True
    fleeting: bool = False
    places: dict[tuple[object, ...], Any] = field(default_factory=dict[tuple[object, ...], Any])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    idle: dict[str, str] = field(default_factory=dict[str, str])
    is_alone: Callable[[], bool] | None = None
    _blank_layers: Sequence[str] = ()
    _blank: int = 0

    @property
    def skipped(self) -> int:
        """Runs of layers that were not recorded."""
        return self.missed.total() + self._blank * len(self._blank_layers)

    def next_step(self, layer_id: str) -> int:
        """How often the layer had run before in this span."""
        step = self.runs[layer_id]
        self.runs[layer_id] = step + 1
        return step

    def take(
        self,
        told_as: str,
        step: int,
        summary: TensorSummary,
        fidelity: Fidelity,
        dtype: str = "",
        layer_id: str = "",
    ) -> None:
        """Add a record to the aggregates.

        Args:
            told_as: under what its runs are counted: the layer, or what one probe of several sees of it.
            dtype: the element type's safetensors name.
            layer_id: the layer, if that is not what it is told as.
        """
        self.records += 1
        self.non_finite += summary.nan_count + summary.inf_count
        if _RANK[fidelity] > _RANK[self.fidelity]:
            self.fidelity = fidelity
        aggregate = self.layers.get(told_as)
        if aggregate is None:
            aggregate = self.layers[told_as] = LayerAggregate(layer_id or told_as)
        aggregate.dtype = dtype
        aggregate.add(step, summary)

    def skip(self, layer_id: str, reason: str) -> None:
        """A run of a layer was not recorded."""
        self.missed[layer_id] += 1
        self.reason = reason

    def miss(self, layer_id: str, runs: int, reason: str) -> None:
        """So many runs of a layer went by unwatched."""
        self.runs[layer_id] += runs
        self.missed[layer_id] += runs
        self.reason = reason

    def miss_all(self, layers: Sequence[str], runs: int, reason: str) -> None:
        """So many forwards went by with none of these layers watched; counted one by one in `settle`.

        A call whose captures are not affordable pays for this in the model's thread: once, not by layer.
        """
        if layers is not self._blank_layers:
            self.settle()
            self._blank_layers = layers
        self._blank += runs
        self.reason = reason

    def settle(self) -> None:
        """Count what `miss_all` was told layer by layer: due before one of them is watched again."""
        layers, runs, self._blank = self._blank_layers, self._blank, 0
        if runs:
            for layer in layers:
                self.miss(layer, runs, self.reason)

    def attributes(self) -> dict[str, Any]:
        """The span's attributes about its layers and phases."""
        UNSETTLED.settle()
        if not self.looked:
            return {
                names.MODEL_NAME: self.model,
                names.FIDELITY: Fidelity.OFF.value,
                names.FIDELITY_REASON: self.reason,
            }
        if self.runs:  # else no layer was watched in any forward: hundreds of them are not counted one by one
            self.settle()
        if self.idle and not (self.runs or self.watched or self._alone()):
            return {}
        attributes: dict[str, Any] = {names.MODEL_NAME: self.model, **self.facts}
        if self.root_ends:
            first, last = self.root_ends[0], self.root_ends[-1]
            attributes[names.MODEL_FORWARDS] = len(self.root_ends)
            if self.generates:
                attributes[names.MODEL_PREFILL] = (first - self.started_ns) / 1e9
            if self.generates and last > first:
                attributes[names.MODEL_DECODE] = (last - first) / 1e9
                attributes[names.MODEL_DECODE_RATE] = (len(self.root_ends) - 1) / ((last - first) / 1e9)
                attributes |= self._steps()
        if self.records or self.missed or self._blank:
            attributes |= self._layer_attributes()
        never = sorted(f"{layer}: {why}" for layer, why in self._not_visited().items())
        if never:
            attributes[names.LAYERS_NOT_VISITED] = never
        return attributes

    def _steps(self) -> dict[str, Any]:
        """How even the steps of the decoding were: one token each."""
        took = [(end - start) / 1e9 for start, end in itertools.pairwise(self.root_ends)]
        slowest = max(took)
        return {
            names.MODEL_STEP_MEDIAN: sorted(took)[len(took) // 2],
            names.MODEL_STEP_MAX: slowest,
            names.MODEL_STEP_SLOWEST: took.index(slowest) + 1,
        }

    def _layer_attributes(self) -> dict[str, Any]:
        shown = list(self.layers.items())[:MAX_AGGREGATED]
        attributes: dict[str, Any] = {
            names.LAYERS_OBSERVED: len({aggregate.layer for aggregate in self.layers.values()}),
            names.LAYERS_RECORDS: self.records,
            names.LAYERS_SKIPPED: self.skipped,
            names.LAYERS_NON_FINITE: self.non_finite,
            names.FIDELITY: (self.fidelity if self.records else Fidelity.CRITICAL).value,
            names.SUMMARY_KERNEL: kernel.describe(),
        }
        if self.reason:
            attributes[names.FIDELITY_REASON] = self.reason
        if shown:
            runs = self.runs
            attributes[names.LAYERS_IDS] = [layer for layer, _ in shown]
            attributes[names.LAYERS_MEAN] = [a.mean(runs[layer]) for layer, a in shown]
            attributes[names.LAYERS_STD] = [a.std(runs[layer]) for layer, a in shown]
            attributes[names.LAYERS_ABS_MAX] = [a.abs_max for _, a in shown]
        if self.missed or self._blank:
            attributes |= self._missing(shown)
        return attributes

    def _missing(self, shown: list[tuple[str, LayerAggregate]]) -> dict[str, Any]:
        """How far the aggregates can be trusted, and which layers have none at all."""
        attributes: dict[str, Any] = {}
        runs = self.runs
        if shown:
            attributes[names.LAYERS_COVERAGE] = [a.records / max(1, runs[layer]) for layer, a in shown]
            attributes[names.LAYERS_MEAN_ERROR] = [a.error(runs[layer]) for layer, a in shown]
        if shown and self.generates and len(self.root_ends) > 1:
            attributes |= self._phases(shown)
        missed = self._blank_layers if self._blank else self.missed
        none = [layer for layer in missed if layer not in self.layers]
        if none:
            more = len(none) - MAX_NAMED
            attributes[names.LAYERS_NOT_RECORDED] = none[:MAX_NAMED] + (
                [f"and {more} more"] if more > 0 else []
            )
        return attributes

    def _phases(self, shown: list[tuple[str, LayerAggregate]]) -> dict[str, Any]:
        """Prefill and decoding, each by itself: one is often known where the mean over both is not."""
        forwards = len(self.root_ends)
        # Of a layer that runs several times in a forward, more runs than the first are the prefill's.
        phases = [
            (a.mean_first, a.mean_later(forwards), a.error_later(forwards))
            if self.runs[layer] == forwards
            else (math.nan, math.nan, math.inf)
            for layer, a in shown
        ]
        told = names.LAYERS_PREFILL_MEAN, names.LAYERS_DECODE_MEAN, names.LAYERS_DECODE_ERROR
        return dict(zip(told, map(list, zip(*phases, strict=True)), strict=True))

    def _alone(self) -> bool:
        return self.is_alone is None or self.is_alone()

    def _not_visited(self) -> dict[str, str]:
        told = {**self.watched, **self.idle} if self.idle and self._alone() else self.watched
        return {layer: why for layer, why in told.items() if not self.runs[layer]}
