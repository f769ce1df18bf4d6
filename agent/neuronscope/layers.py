"""Observing layers: from a tensor that an adapter shows us to a record, within the budget.

One observer per watched layer runs in the model's thread.  It asks the budget for a fidelity, takes
exactly that much (a summary, or a summary and a detached copy), and queues a `LayerRecord`.  The span
that is current becomes the record's parent and collects per-layer aggregates.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Final

from msgspec.structs import replace
from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope import recording as recordings
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.opening import our_span
from neuronscope.engine.span import LightSpan
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.governor import Budget, Group, Site
from neuronscope.governor.clock import COLLECTIONS, cpu_ns
from neuronscope.governor.steward import AGENT_PROBE
from neuronscope.instrumentation import (
    BackendAdapter,
    DescribingBackend,
    ObservingBackend,
    Operation,
)
from neuronscope.instrumentation.registry import backend_for
from neuronscope.modelcall import ModelCall
from neuronscope.native import new_lock
from neuronscope.probes import LayerActivations, Probe
from neuronscope.recording import Recording
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

_ANONYMOUS: Final = frozenset({"model", "models", "snapshot", "snapshots", "checkpoint", "latest", "."})
_HASH: Final = re.compile("[0-9a-f]{32,64}")
ROOT: Final = ""  # path of the model itself
_open_spans: Final = new_lock()


# The slot and its snapshot run before an observer's own clock starts.  In a hot loop they take 3 µs, after a
# forward that has emptied the caches ten times as much: so they are judged by what runs right after them.
SLOT_BY_HANDLING: Final = 0.6  # slot, beside an observer up to its decision
SLOT_BY_LOOK: Final = 1.5  # slot, beside finding out whose forward it was
_HANDLING_CLOCKED: Final = 8  # every so many captures the way to them is timed by itself: a reading is 2 µs
_CLOCKED: Final = 32  # every so many refused runs the clock is read
BUDGET: Final = "budget"
MEASURING: Final = "measuring"
MEMORY: Final = "memory"


class _Slots:
    """What a slot costs in this process, as things are.

    Attributes:
        cost_ns: the running estimate.
    """

    __slots__ = ("cost_ns",)

    def __init__(self) -> None:
        self.cost_ns = 10_000.0

    def seen(self, cost_ns: float) -> None:
        """One more estimate.  From any thread: a lost update is no harm."""
        self.cost_ns += 0.05 * (min(cost_ns, 10 * self.cost_ns) - self.cost_ns)


_slots: Final = _Slots()


class LayerObserver:
    """The callback of one watched layer.

    Args:
        want: the fidelity asked for.
        probe: what the cost is told under.
        owner: the recording whose probe this is; None for the always-on agent's.
        call: the only model call whose runs this observer records; None: whichever is current.
        critical: kept when non-critical probes are off.
        kind: the probe itself, if it measures more than summaries.

    Attributes:
        seen: has the layer run?
        needs: the most that is asked of a snapshot.
    """

    __slots__ = (
        "_call", "_critical", "_handling_ns", "_key", "_kind", "_layer_id", "_model", "_owner", "_probe",
        "_refused", "_role", "_told_as", "_want", "needs", "seen",
    )  # fmt: skip

    def __init__(
        self,
        model: str,
        layer_id: str,
        want: Fidelity,
        probe: str,
        owner: Recording | None = None,
        role: str = "output",
        call: ModelCall | None = None,
        *,
        critical: bool = False,
        kind: Probe | None = None,
    ) -> None:
        self._model = model
        self._layer_id = layer_id
        self._kind = kind
        # Runs are counted, and aggregated in the span, for each kind of probe by itself.
        self._told_as = layer_id if kind is None or type(kind) is LayerActivations else f"{layer_id}:{probe}"
        COLLECTIONS.watch()
        self._want = want
        self.needs = Fidelity.FULL if kind is not None and kind.reads_values else want
        self._probe = probe
        self._owner = owner
        self._role = role
        self._call = call
        self._critical = critical
        self._key = f"{model}/{layer_id}"
        self._refused = 0
        self._handling_ns = 0
        self.seen = False

    def __call__(self, snapshot: TensorSnapshot) -> None:
        """Record the layer's output as far as the budget allows."""
        self.seen = True
        # Thread CPU: on a busy machine the wall clock would bill us for the waiting.  Where nothing is
        # captured the reading itself would cost most, so then it is taken now and then.
        clocked = self._refused % _CLOCKED == 0
        started = cpu_ns() if clocked else 0
        current = recordings.CURRENT.get()
        recording = current if current is not None else self._owner
        if self._owner is not None and (recording is None or not recording.within(self._owner)):
            return  # another scope's run of the same model
        call, trace_id, span_id = _current_call(self._model, current, self._owner)
        if self._call is not None and call is not self._call and span_id is not None:
            return  # another call's run of the same model
        step = call.next_step(self._told_as)
        budget = recording.budget if recording is not None else ENGINE.budget
        nbytes = snapshot.nbytes
        site = budget.site(self._probe, self._key, critical=self._critical)
        want = self._want
        if want is Fidelity.FULL and not _room(recording, nbytes):
            want, call.reason = Fidelity.SUMMARY, MEMORY
        fidelity = budget.admit(site, want, nbytes)
        if clocked and (not self._handling_ns or fidelity is Fidelity.OFF or step % _HANDLING_CLOCKED == 0):
            self._handling_ns = cpu_ns() - started
            _slots.seen(SLOT_BY_HANDLING * self._handling_ns)
        if fidelity is Fidelity.OFF:
            call.skip(self._told_as, BUDGET)
            self._refuse(budget, clocked=clocked)
            if budget.exhausted and recording is not None:
                recording.end()  # its probes come off; what it has is kept
            return
        if not clocked:
            started = cpu_ns() - self._handling_ns
        if fidelity is not want:
            call.reason = BUDGET
        try:
            details = self._kind is not None and self._kind.details
            later = None if details else snapshot.summarize_later()
            summary = snapshot.summarize() if later is None else None
            tensor = (
                TensorSnapshot(snapshot.shape, snapshot.dtype, snapshot.numpy())
                if (fidelity is Fidelity.FULL)
                else None
            )
            attributes = snapshot.attributes
            if self._kind is not None and summary is not None:
                summary, attributes = self._look_closer(self._kind, snapshot, summary, attributes)
        except UnsupportedTensorError as error:
            call.skip(self._told_as, error.reason)
            self._spend(budget, site, fidelity, nbytes, started, None)
            return
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
            attributes=attributes,
        )
        if later is None:
            self._hand_over(record, recording, call, site)
        else:  # the worker waits for the device, not the model
            ENGINE.later(partial(self._when_there, later, record, recording, call, site))
        self._spend(budget, site, fidelity, nbytes, started, record.nbytes)

    def _look_closer(
        self, kind: Probe, snapshot: TensorSnapshot, summary: TensorSummary, attributes: Attributes
    ) -> tuple[TensorSummary, Attributes]:
        """What the probe asks for beyond the summary."""
        if kind.details:
            histogram, sketch = snapshot.details()
            summary = replace(summary, histogram=histogram, sketch=sketch)
        more = GUARD.call(f"probe:{self._probe}", kind.measure, self._layer_id, snapshot, summary)
        return summary, {**attributes, **more} if more else attributes

    def _when_there(
        self,
        later: Callable[[], TensorSummary],
        record: LayerRecord,
        recording: Recording | None,
        call: ModelCall,
        site: Site,
    ) -> None:
        record = replace(record, summary=later())
        if self._kind is not None and record.summary is not None:
            gone = TensorSnapshot(record.shape, record.dtype)
            _, attributes = self._look_closer(self._kind, gone, record.summary, record.attributes)
            record = replace(record, attributes=attributes)
        self._hand_over(record, recording, call, site)

    def _hand_over(
        self, record: LayerRecord, recording: Recording | None, call: ModelCall, site: Site
    ) -> None:
        summary = record.summary
        if summary is not None:
            call.take(self._told_as, record.step, summary, record.fidelity, record.dtype)
            site.look(summary.std, summary.finite)
        ENGINE.take_layer(record, recording, self._probe)
        ENGINE.metrics.add(
            names.LAYER_RECORDS, 1, ((names.MODEL_NAME, self._model), (names.FIDELITY, record.fidelity.value))
        )

    def _spend(
        self, budget: Budget, site: Site, fidelity: Fidelity, nbytes: int, started: int, queued: int | None
    ) -> None:
        spent = cpu_ns() - started + _slots.cost_ns
        budget.spend(site, fidelity, nbytes, spent, queued)

    def _refuse(self, budget: Budget, *, clocked: bool) -> None:
        """Account for runs that were not captured: they cost something, too."""
        self._refused += 1
        if not clocked:
            return
        cost = (self._handling_ns + _slots.cost_ns) * budget.hidden
        budget.charge(self._probe, cost * min(self._refused, _CLOCKED), clip=False)


def _room(recording: Recording | None, nbytes: int) -> bool:
    """May a full tensor be held, in the queue and in the scope?  Asked before it is copied."""
    return ENGINE.has_room(nbytes) and (recording is None or recording.has_room(nbytes))


def _current_call(
    model: str, current: Recording | None, owner: Recording | None
) -> tuple[ModelCall, int | None, int | None]:
    """The model call to which a layer's run belongs, and the trace and span it is in."""
    context = otel_context.get_current()
    span = trace.get_current_span(context)
    identity = span.get_span_context()
    ours = our_span(context, span)
    if ours is None and owner is not None and current is None:
        # A thread that no context was carried into: by model and scope alone.
        ours = owner.root
        identity = ours.get_span_context() if ours is not None else identity
    trace_id, span_id = (identity.trace_id, identity.span_id) if identity.is_valid else (None, None)
    if ours is None:
        return (owner.unattributed(model) if owner is not None else ModelCall(model)), trace_id, span_id
    with _open_spans:
        if ours.model_call is None:
            ours.model_call = ModelCall(model)
        return ours.model_call, trace_id, span_id


def _is_current(call: ModelCall) -> bool:
    """Is this the model call of the current span?"""
    context = otel_context.get_current()
    ours = our_span(context, trace.get_current_span(context))
    return ours is not None and ours.model_call is call


# --- the always-on agent ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """A layer that the settings ask to watch, and how closely."""

    layer_id: str
    want: Fidelity


class _Plan:
    """What is watched in one model, and the sites of it in each budget."""

    __slots__ = ("_groups", "adapter", "layer_ids", "name", "watches")

    def __init__(self, adapter: BackendAdapter, name: str, watches: tuple[Watch, ...]) -> None:
        self.adapter = adapter
        self.name = name
        self.watches = watches
        self.layer_ids = tuple(watch.layer_id for watch in watches)
        self._groups: weakref.WeakKeyDictionary[Budget, tuple[Group, Mapping[Site, Watch]]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, budget: Budget) -> tuple[Group, Mapping[Site, Watch]]:
        """The model's sites in a budget."""
        found = self._groups.get(budget)
        if found is None:
            watches = {budget.site(AGENT_PROBE, f"{self.name}/{w.layer_id}"): w for w in self.watches}
            found = self._groups[budget] = budget.group(tuple(watches)), watches
        return found


_plans: weakref.WeakKeyDictionary[Any, _Plan] = weakref.WeakKeyDictionary()


def watch_call(model: Any, span: LightSpan) -> Callable[[], None] | None:
    """Watch the model's layers for the time of one call; returns the undo.

    Raises:
        AdapterNotFoundError: no runtime adapter handles the model.
    """
    plan = _plans.get(model)
    if plan is None:
        adapter = backend_for(model)
        plan = _plans[model] = _Plan(adapter, model_name(model), _layers_to_watch(adapter, model))
    if not isinstance(plan.adapter, ObservingBackend):
        return None
    operation = span.call.snapshot.endpoint.operation if span.call is not None else None
    call = span.model_call = ModelCall(plan.name, generates=operation is not Operation.EMBEDDINGS)
    if recordings.CURRENT.get() is None and not ENGINE.budget.looks():
        call.looked, call.reason = False, BUDGET
        return None
    if isinstance(plan.adapter, DescribingBackend):
        call.facts = plan.adapter.describe_model(model)
    return CallWatch(model, plan, call, plan.adapter).leave


class _Word:
    """A callback that only has to be told that the layer has run."""

    __slots__ = ("_callback",)
    needs: Final = Fidelity.CRITICAL

    def __init__(self, callback: Callable[[TensorSnapshot], None]) -> None:
        self._callback = callback

    def __call__(self, snapshot: TensorSnapshot) -> None:
        self._callback(snapshot)


class CallWatch:
    """Watches a model's layers during one call, forward by forward.

    Before each forward the budget names the layers that may be captured; only those are watched, so that
    a forward whose captures are not affordable costs one callback instead of one for each layer.
    """

    __slots__ = (
        "_adapter", "_budget", "_call", "_chosen", "_counted", "_group", "_layer_ids", "_model",
        "_recording", "_root", "_unasked", "_undo", "_watches",
    )  # fmt: skip

    def __init__(self, model: Any, plan: _Plan, call: ModelCall, adapter: ObservingBackend) -> None:
        started = cpu_ns()
        self._adapter = adapter
        self._model = model
        self._call = call
        self._recording = recordings.CURRENT.get()
        self._budget = self._recording.budget if self._recording is not None else ENGINE.budget
        self._group: Group | None = None
        self._layer_ids = plan.layer_ids
        self._watches: Mapping[Site, Watch] = {}
        if plan.watches and not (self._recording is not None and self._recording.probes(model)):
            self._group, self._watches = plan.of(self._budget)
        self._undo: dict[Site, Callable[[], None]] = {}
        self._chosen: Sequence[Site] = ()
        self._counted = 0
        self._unasked = 0  # forwards that were too early for the budget to be asked
        self._root = adapter.observe_layer(model, ROOT, _Word(self._forward_ended))
        self._plan()
        self._charge(started)

    def leave(self) -> None:
        """The call ends."""
        started = cpu_ns()
        GUARD.call("layers.leave", self._root)
        if self._call.root_ends and (unseen := [w for w in self._call.watched if not self._call.runs[w]]):
            self._call.watched.update(self._adapter.not_visited(self._model, unseen, ()))
        self._count_unwatched()
        self._watch(())
        unclocked = len(self._call.root_ends) if self._group is None else self._unasked
        if self._group is not None and self._unasked:
            self._budget.went_by(self._group, self._unasked)
        self._charge(started - int(2 * _slots.cost_ns * unclocked))

    def _forward_ended(self, _: TensorSnapshot) -> None:
        group = self._group
        now = time.perf_counter_ns()
        early = group is None or (not self._chosen and now < group.not_before)
        # The model has emptied the caches: here, each line costs as much as ten of a loop.
        started = 0 if early else cpu_ns()
        if not _is_current(self._call):
            return  # another call's forward of the same model
        self._call.root_ends.append(now)
        if early:
            self._unasked += 1
            return  # charged in `leave`
        _slots.seen(SLOT_BY_LOOK * (cpu_ns() - started))
        self._plan()
        self._charge(started - int(_slots.cost_ns))

    def _charge(self, started: int) -> None:
        spent = (cpu_ns() - started) * self._budget.hidden
        self._budget.charge(AGENT_PROBE, spent, clip=False)

    def _plan(self) -> None:
        """Watch those layers in the next forward that may be captured in it."""
        if self._group is None:
            return
        if self._recording is None and ENGINE.steward.captures_off:
            self._watch(())
            self._call.reason = MEASURING
        else:
            self._watch(self._budget.plan(self._group))

    def _watch(self, chosen: Sequence[Site]) -> None:
        if chosen is self._chosen or not (chosen or self._chosen):
            return
        self._count_unwatched()
        self._call.settle()
        wanted = set(chosen)
        for site in [site for site in self._undo if site not in wanted]:
            GUARD.call("layers.leave", self._undo.pop(site))
        for site in chosen:
            if site not in self._undo:
                self._undo[site] = self._observe(self._watches[site])
        self._chosen = chosen

    def _observe(self, watch: Watch) -> Callable[[], None]:
        self._call.watched[watch.layer_id] = "did not run"
        observer = LayerObserver(self._call.model, watch.layer_id, watch.want, AGENT_PROBE, call=self._call)
        return self._adapter.observe_layer(self._model, watch.layer_id, observer)

    def _count_unwatched(self) -> None:
        """Layers that were not watched ran in each forward since the last change: they were missed."""
        forwards = len(self._call.root_ends)
        missed, self._counted = forwards - self._counted, forwards
        reason = self._call.reason or BUDGET
        if not missed or self._group is None:
            return
        if not self._undo:
            self._call.miss_all(self._layer_ids, missed, reason)
            return
        for site, watch in self._watches.items():
            if site not in self._undo:
                self._call.miss(watch.layer_id, missed, reason)


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
    if isinstance(model, FunctionType):
        return model.__name__
    return type(model).__name__


def name_from_path(path: str) -> str:
    """The last part of a model's path that says something: not ``model``, nor a snapshot's hash."""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    telling = [part for part in parts if part.lower() not in _ANONYMOUS and not _HASH.fullmatch(part)]
    return (telling or parts or [path])[-1]
