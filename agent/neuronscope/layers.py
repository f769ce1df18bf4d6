"""Observing layers: from a tensor that an adapter shows us to a record, within the budget.

One observer per watched layer runs in the model's thread.  It asks the budget for a fidelity, takes
exactly that much (a summary, or a summary and a detached copy), and queues a `LayerRecord`.  The span
that is current becomes the record's parent and collects per-layer aggregates.
"""

from __future__ import annotations

import math
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope import recording as recordings
from neuronscope.engine import ENGINE, OURS
from neuronscope.engine.guard import GUARD
from neuronscope.engine.span import LightSpan
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.instrumentation import BackendAdapter, ObservingBackend, Operation
from neuronscope.instrumentation.registry import backend_for
from neuronscope.native import new_lock
from neuronscope.recording import Recording
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

_ANONYMOUS: Final = frozenset({"model", "models", "snapshot", "snapshots", "checkpoint", "latest", "."})
_HASH: Final = re.compile("[0-9a-f]{32,64}")
MAX_AGGREGATED: Final = 128  # layers whose aggregates fit a span
ROOT: Final = ""  # path of the model itself
_open_spans: Final = new_lock()


@dataclass(slots=True)
class _LayerAggregate:
    records: int = 0
    mean: float = 0.0
    std: float = 0.0
    abs_max: float = 0.0


@dataclass(slots=True)
class ModelCall:
    """What one span learns about the layers that run in it.

    Attributes:
        generates: its forwards are prefill and decoding, not batches.
        root_ends: perf-counter readings at which the model's own forward ended: the first ends the
            prefill of a generation, the last its decoding.
    """

    model: str
    generates: bool = True
    started_ns: int = field(default_factory=time.perf_counter_ns)
    root_ends: list[int] = field(default_factory=list[int])
    layers: dict[str, _LayerAggregate] = field(default_factory=dict[str, _LayerAggregate])
    runs: Counter[str] = field(default_factory=Counter[str])
    watched: dict[str, str] = field(default_factory=dict[str, str])
    records: int = 0
    skipped: int = 0
    non_finite: int = 0
    fidelity: Fidelity = Fidelity.FULL
    reason: str = ""

    def next_step(self, key: str) -> int:
        """How often the layer had run before in this span."""
        step = self.runs[key]
        self.runs[key] = step + 1
        return step

    def take(self, layer_id: str, summary: TensorSummary, fidelity: Fidelity) -> None:
        """Add a record to the aggregates."""
        self.records += 1
        self.non_finite += summary.nan_count + summary.inf_count
        self.fidelity = max(self.fidelity, fidelity, key=_RANK.__getitem__)
        aggregate = self.layers.get(layer_id)
        if aggregate is None:
            aggregate = self.layers[layer_id] = _LayerAggregate()
        aggregate.records += 1
        if math.isfinite(summary.mean):
            aggregate.mean += (summary.mean - aggregate.mean) / aggregate.records
            aggregate.std += (summary.std - aggregate.std) / aggregate.records
            aggregate.abs_max = max(aggregate.abs_max, summary.abs_max)

    def skip(self, reason: str) -> None:
        """A run of a layer was not recorded."""
        self.skipped += 1
        self.reason = reason

    def attributes(self) -> dict[str, Any]:
        """The span's attributes about its layers and phases."""
        attributes: dict[str, Any] = {names.MODEL_NAME: self.model}
        if self.root_ends:
            first, last = self.root_ends[0], self.root_ends[-1]
            attributes[names.MODEL_FORWARDS] = len(self.root_ends)
            if self.generates:
                attributes[names.MODEL_PREFILL] = (first - self.started_ns) / 1e9
            if self.generates and last > first:
                attributes[names.MODEL_DECODE] = (last - first) / 1e9
                attributes[names.MODEL_DECODE_RATE] = (len(self.root_ends) - 1) / ((last - first) / 1e9)
        if self.records or self.skipped:
            attributes |= self._layer_attributes()
        never = sorted(f"{layer}: {why}" for layer, why in self._not_visited().items())
        if never:
            attributes[names.LAYERS_NOT_VISITED] = never
        return attributes

    def _layer_attributes(self) -> dict[str, Any]:
        shown = list(self.layers.items())[:MAX_AGGREGATED]
        attributes: dict[str, Any] = {
            names.LAYERS_OBSERVED: len(self.layers),
            names.LAYERS_RECORDS: self.records,
            names.LAYERS_SKIPPED: self.skipped,
            names.LAYERS_NON_FINITE: self.non_finite,
            names.FIDELITY: (self.fidelity if self.records else Fidelity.CRITICAL).value,
        }
        if self.reason:
            attributes[names.FIDELITY_REASON] = self.reason
        if shown:
            attributes[names.LAYERS_IDS] = [layer for layer, _ in shown]
            attributes[names.LAYERS_MEAN] = [a.mean for _, a in shown]
            attributes[names.LAYERS_STD] = [a.std for _, a in shown]
            attributes[names.LAYERS_ABS_MAX] = [a.abs_max for _, a in shown]
        return attributes

    def _not_visited(self) -> dict[str, str]:
        return {layer: why for layer, why in self.watched.items() if not self.runs[layer]}


_RANK: Final = {Fidelity.FULL: 0, Fidelity.SUMMARY: 1, Fidelity.CRITICAL: 2, Fidelity.OFF: 3}


class LayerObserver:
    """The callback of one watched layer.

    Args:
        owner: the recording whose probe this is; None for the always-on agent's.
        only: the call for which the agent watches: another one that overlaps it runs the same modules.
        want: the fidelity asked for.
    """

    __slots__ = ("_key", "_layer_id", "_model", "_only", "_owner", "_probe", "_role", "_want")

    def __init__(
        self,
        model: str,
        layer_id: str,
        want: Fidelity,
        probe: str,
        owner: Recording | None = None,
        role: str = "output",
        only: ModelCall | None = None,
    ) -> None:
        self._only = only
        self._model = model
        self._layer_id = layer_id
        self._want = want
        self._probe = probe
        self._owner = owner
        self._role = role
        self._key = f"{model}/{layer_id}"

    def __call__(self, snapshot: TensorSnapshot) -> None:
        """Record the layer's output as far as the budget allows."""
        # Thread CPU: on a busy machine the wall clock would bill us for the waiting.
        started = time.thread_time_ns()
        current = recordings.CURRENT.get()
        recording = current if current is not None else self._owner
        if self._owner is not None and (recording is None or not recording.within(self._owner)):
            return  # another scope's run of the same model
        call, trace_id, span_id = _current_call(self._model, current, self._owner)
        if self._only is not None and call is not self._only:
            return
        step = call.next_step(self._layer_id)
        budget = recording.budget if recording is not None else ENGINE.budget
        nbytes = snapshot.nbytes
        site = budget.site(self._probe, self._key)
        fidelity = budget.admit(site, self._want, nbytes)
        if fidelity is Fidelity.OFF:
            call.skip("budget")
            return
        try:
            summary = snapshot.summarize()
            tensor = (
                TensorSnapshot(snapshot.shape, snapshot.dtype, snapshot.numpy())
                if (fidelity is Fidelity.FULL)
                else None
            )
        except UnsupportedTensorError as error:
            call.skip(error.reason)
            budget.spend(site, fidelity, nbytes, time.thread_time_ns() - started)
            return
        call.take(self._layer_id, summary, fidelity)
        record = LayerRecord(
            model=self._model,
            layer_id=self._layer_id,
            step=step,
            time_unix_ns=time.time_ns(),
            shape=snapshot.shape,
            dtype=snapshot.dtype,
            role=self._role,
            trace_id=trace_id,
            span_id=span_id,
            fidelity=fidelity,
            summary=summary,
            tensor=tensor,
        )
        ENGINE.take_layer(record, recording, self._probe)
        ENGINE.metrics.add(
            names.LAYER_RECORDS, 1, ((names.MODEL_NAME, self._model), (names.FIDELITY, fidelity.value))
        )
        site.look(summary.std, summary.finite)
        budget.spend(site, fidelity, nbytes, time.thread_time_ns() - started, record.nbytes)


def _current_call(
    model: str, current: Recording | None, owner: Recording | None
) -> tuple[ModelCall, int | None, int | None]:
    """The model call to which a layer's run belongs, and the trace and span it is in."""
    context = otel_context.get_current()
    span = trace.get_current_span(context)
    identity = span.get_span_context()
    ours = span if isinstance(span, LightSpan) else context.get(OURS)
    if not isinstance(ours, LightSpan) and owner is not None and current is None:
        # A thread that no context was carried into: by model and scope alone.
        ours = owner.root
        identity = ours.get_span_context() if ours is not None else identity
    trace_id, span_id = (identity.trace_id, identity.span_id) if identity.is_valid else (None, None)
    if not isinstance(ours, LightSpan):
        return (owner.unattributed(model) if owner is not None else ModelCall(model)), trace_id, span_id
    with _open_spans:
        if ours.model_call is None:
            ours.model_call = ModelCall(model)
        return ours.model_call, trace_id, span_id


# --- the always-on agent ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Watch:
    """A layer that the settings ask to watch, and how closely."""

    layer_id: str
    want: Fidelity


_plans: weakref.WeakKeyDictionary[Any, tuple[BackendAdapter, str, tuple[Watch, ...]]] = (
    weakref.WeakKeyDictionary()
)


def watch_call(model: Any, span: LightSpan) -> Callable[[], None] | None:
    """Watch the model's layers for the time of one call; returns the undo.

    Raises:
        AdapterNotFoundError: no runtime adapter handles the model.
    """
    plan = _plans.get(model)
    if plan is None:
        adapter = backend_for(model)
        plan = _plans[model] = (adapter, model_name(model), _layers_to_watch(adapter, model))
    adapter, name, watches = plan
    if not isinstance(adapter, ObservingBackend):
        return None
    operation = span.call.snapshot.endpoint.operation if span.call is not None else None
    call = span.model_call = ModelCall(name, generates=operation is not Operation.EMBEDDINGS)

    def root_ended(_: TensorSnapshot) -> None:
        if _current_call(name, None, None)[0] is call:
            call.root_ends.append(time.perf_counter_ns())

    undo = [adapter.observe_layer(model, ROOT, root_ended)]
    scope = recordings.CURRENT.get()
    if scope is None or not scope.probes(model):
        for watch in watches:
            observer = LayerObserver(name, watch.layer_id, watch.want, "agent.blocks", only=call)
            undo.append(adapter.observe_layer(model, watch.layer_id, observer))
            call.watched[watch.layer_id] = "did not run"

    def leave() -> None:
        for step in undo:
            GUARD.call("layers.leave", step)

    return leave


def _layers_to_watch(adapter: BackendAdapter, model: Any) -> tuple[Watch, ...]:
    """The layers that `NEURONSCOPE_PROBES` picks in this model."""
    if not isinstance(adapter, ObservingBackend):
        return ()
    watches: dict[str, Watch] = {}
    for text in ENGINE.settings.probes:
        pattern, want = parse_probe(text)
        if pattern == "off":
            return ()
        layers = adapter.block_paths(model) if pattern == "blocks" else _matching(adapter, model, pattern)
        watches.update({layer: Watch(layer, want) for layer in layers})
    return tuple(watches.values())


def _matching(adapter: ObservingBackend, model: Any, pattern: str) -> Sequence[str]:
    # A pattern is for all models of the process; one that has no such layer is not a mistake.
    try:
        return adapter.match_layers(model, pattern)
    except LookupError:
        return ()


def parse_probe(text: str) -> tuple[str, Fidelity]:
    """``"PATTERN[:full|:summary]"`` as pattern and fidelity; a summary unless told."""
    pattern, separator, fidelity = text.rpartition(":")
    if separator and fidelity in (Fidelity.FULL, Fidelity.SUMMARY):
        return pattern, Fidelity(fidelity)
    return text, Fidelity.SUMMARY


def model_name(model: Any) -> str:
    """A name for people: the configuration's, else the class's."""
    config = getattr(model, "config", None)
    path = getattr(config, "_name_or_path", None) or getattr(model, "model_name_or_path", None)
    if isinstance(path, str) and path:
        return name_from_path(path)
    return type(model).__name__


def name_from_path(path: str) -> str:
    """The last part of a model's path that says something: not ``model``, nor a snapshot's hash."""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    telling = [part for part in parts if part.lower() not in _ANONYMOUS and not _HASH.fullmatch(part)]
    return (telling or parts or [path])[-1]
