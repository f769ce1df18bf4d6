"""Observing layers: from a tensor that an adapter shows us to a record, within the budget.

One observer per watched layer runs in the model's thread.  It asks the budget for a fidelity, takes
exactly that much (a summary, or a summary and a detached copy), and queues a `LayerRecord`.  The span
that is current becomes the record's parent and collects per-layer aggregates.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope import recording as recordings
from neuronscope.engine import ENGINE, OURS
from neuronscope.engine.guard import GUARD
from neuronscope.engine.span import LightSpan
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.governor import Budget
from neuronscope.governor.steward import AGENT_PROBE
from neuronscope.instrumentation import BackendAdapter, ObservingBackend, Operation
from neuronscope.instrumentation.registry import backend_for
from neuronscope.modelcall import ModelCall
from neuronscope.native import new_lock
from neuronscope.recording import Recording
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSnapshot

_ANONYMOUS: Final = frozenset({"model", "models", "snapshot", "snapshots", "checkpoint", "latest", "."})
_HASH: Final = re.compile("[0-9a-f]{32,64}")
ROOT: Final = ""  # path of the model itself
_open_spans: Final = new_lock()


# What a run of a watched layer costs before the observer's own clock starts: the slot, and the snapshot.
SLOT_NS: Final = 3_000
_CLOCKED: Final = 32  # every so many refused runs the clock is read
BUDGET: Final = "budget"
MEASURING: Final = "measuring"
MEMORY: Final = "memory"


class LayerObserver:
    """The callback of one watched layer.

    Args:
        want: the fidelity asked for.
        probe: what the cost is told under.
        owner: the recording whose probe this is; None for the always-on agent's.
        call: the only model call whose runs this observer records; None: whichever is current.
        critical: kept when non-critical probes are off.
    """

    __slots__ = (
        "_call", "_critical", "_handling_ns", "_key", "_layer_id", "_model", "_owner", "_probe", "_refused",
        "_role", "_want",
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
    ) -> None:
        self._model = model
        self._layer_id = layer_id
        self._want = want
        self._probe = probe
        self._owner = owner
        self._role = role
        self._call = call
        self._critical = critical
        self._key = f"{model}/{layer_id}"
        self._refused = 0
        self._handling_ns = 0

    def __call__(self, snapshot: TensorSnapshot) -> None:
        """Record the layer's output as far as the budget allows."""
        # Thread CPU: on a busy machine the wall clock would bill us for the waiting.  Where nothing is
        # captured the reading itself would cost most, so then it is taken now and then.
        clocked = self._refused % _CLOCKED == 0
        started = time.thread_time_ns() if clocked else 0
        current = recordings.CURRENT.get()
        recording = current if current is not None else self._owner
        if self._owner is not None and (recording is None or not recording.within(self._owner)):
            return  # another scope's run of the same model
        call, trace_id, span_id = _current_call(self._model, current, self._owner)
        if self._call is not None and call is not self._call and span_id is not None:
            return  # another call's run of the same model
        step = call.next_step(self._layer_id)
        budget = recording.budget if recording is not None else ENGINE.budget
        nbytes = snapshot.nbytes
        site = budget.site(self._probe, self._key, critical=self._critical)
        want = self._want
        if want is Fidelity.FULL and not _room(recording, nbytes):
            want, call.reason = Fidelity.SUMMARY, MEMORY
        fidelity = budget.admit(site, want, nbytes)
        if fidelity is Fidelity.OFF:
            call.skip(self._layer_id, BUDGET)
            self._refuse(budget, started if clocked else None)
            if budget.exhausted and recording is not None:
                recording.end()  # its probes come off; what it has is kept
            return
        if not clocked:
            started = time.thread_time_ns() - self._handling_ns
        if fidelity is not want:
            call.reason = BUDGET
        try:
            summary = snapshot.summarize()
            tensor = (
                TensorSnapshot(snapshot.shape, snapshot.dtype, snapshot.numpy())
                if (fidelity is Fidelity.FULL)
                else None
            )
        except UnsupportedTensorError as error:
            call.skip(self._layer_id, error.reason)
            budget.spend(site, fidelity, nbytes, time.thread_time_ns() - started + SLOT_NS, queued=None)
            return
        call.take(self._layer_id, step, summary, fidelity)
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
        budget.spend(site, fidelity, nbytes, time.thread_time_ns() - started + SLOT_NS, record.nbytes)

    def _refuse(self, budget: Budget, started: int | None) -> None:
        """Account for runs that were not captured: they cost something, too."""
        self._refused += 1
        if started is None:
            return
        self._handling_ns = time.thread_time_ns() - started
        budget.charge(self._probe, (self._handling_ns + SLOT_NS) * min(self._refused, _CLOCKED), clip=False)


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
    scope = recordings.CURRENT.get()
    probed = scope is not None and scope.probes(model)
    return CallWatch(adapter, model, call, () if probed else watches).leave


class CallWatch:
    """Watches a model's layers during one call, forward by forward.

    Before each forward the budget names the layers that may be captured; only those are watched, so that
    a forward whose captures are not affordable costs one callback instead of one for each layer.
    """

    __slots__ = (
        "_adapter",
        "_budget",
        "_call",
        "_model",
        "_recording",
        "_root",
        "_undo",
        "_watched",
        "_watches",
    )

    def __init__(
        self, adapter: ObservingBackend, model: Any, call: ModelCall, watches: Sequence[Watch]
    ) -> None:
        self._adapter = adapter
        self._model = model
        self._call = call
        self._recording = recordings.CURRENT.get()
        self._budget = self._recording.budget if self._recording is not None else ENGINE.budget
        self._watches = {self._budget.site(AGENT_PROBE, f"{call.model}/{w.layer_id}"): w for w in watches}
        self._undo: dict[str, Callable[[], None]] = {}
        self._watched: frozenset[str] = frozenset()
        self._root = adapter.observe_layer(model, ROOT, self._forward_ended)
        self._plan()

    def leave(self) -> None:
        """The call ends."""
        GUARD.call("layers.leave", self._root)
        self._watch(())

    def _forward_ended(self, _: TensorSnapshot) -> None:
        if _current_call(self._call.model, self._recording, None)[0] is not self._call:
            return  # another call's forward of the same model
        now = time.perf_counter_ns()
        self._call.root_ends.append(now)
        if self._watches:
            for watch in self._watches.values():
                if watch.layer_id not in self._watched:
                    self._call.next_step(watch.layer_id)
                    self._call.skip(watch.layer_id, self._call.reason or BUDGET)
            self._plan()
            self._budget.charge(AGENT_PROBE, time.perf_counter_ns() - now + SLOT_NS)

    def _plan(self) -> None:
        """Watch those layers in the next forward that may be captured in it."""
        if not self._watches:
            return
        if self._recording is None and ENGINE.steward.captures_off:
            self._call.reason = MEASURING
            self._watch(())
        else:
            self._watch([self._watches[site] for site in self._budget.plan(list(self._watches))])

    def _watch(self, watches: Sequence[Watch]) -> None:
        wanted = frozenset(watch.layer_id for watch in watches)
        if wanted == self._watched:
            return
        for layer_id in self._watched - wanted:
            GUARD.call("layers.leave", self._undo.pop(layer_id))
        for watch in watches:
            if watch.layer_id not in self._watched:
                self._undo[watch.layer_id] = self._adapter.observe_layer(
                    self._model, watch.layer_id, self._observer(watch)
                )
                self._call.watched[watch.layer_id] = "did not run"
        self._watched = wanted

    def _observer(self, watch: Watch) -> LayerObserver:
        return LayerObserver(self._call.model, watch.layer_id, watch.want, AGENT_PROBE, call=self._call)


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
