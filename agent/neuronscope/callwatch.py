"""The always-on agent's look into a model: during a call, forward by forward, as the budget allows."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope import recording as recordings
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.opening import our_span
from neuronscope.engine.span import LightSpan
from neuronscope.governor import Budget, Group, Site
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.clock import cpu_ns
from neuronscope.governor.steward import AGENT_PROBE
from neuronscope.instrumentation import BackendAdapter, DescribingBackend, ObservingBackend, Operation
from neuronscope.instrumentation.registry import backend_for
from neuronscope.layers import BUDGET, LayerObserver
from neuronscope.modelcall import ModelCall
from neuronscope.modelnames import model_name
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope.slotcosts import SLOT_BY_LOOK, SLOTS

MEASURING: Final = "measuring"
ROOT: Final = ""  # path of the model itself


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
        self._charge(started - int(2 * SLOTS.cost_ns * unclocked))

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
        SLOTS.seen(SLOT_BY_LOOK * (cpu_ns() - started))
        self._plan()
        self._charge(started - int(SLOTS.cost_ns))

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
        if not missed or self._group is None or len(self._undo) == len(self._watches):
            return
        UNSETTLED.settle()  # those that were noted ran before
        if not self._undo:
            self._call.miss_all(self._layer_ids, missed, reason)
            return
        for site, watch in self._watches.items():
            if site not in self._undo:
                self._call.miss(watch.layer_id, missed, reason)


def _is_current(call: ModelCall) -> bool:
    """Is this the model call of the current span?"""
    context = otel_context.get_current()
    ours = our_span(context, trace.get_current_span(context))
    return ours is not None and ours.model_call is call


def _layers_to_watch(adapter: BackendAdapter, model: Any) -> tuple[Watch, ...]:
    """The layers that `NEURONSCOPE_PROBES` picks in this model."""
    if not isinstance(adapter, ObservingBackend):
        return ()
    return picked(partial(adapter.block_paths, model), partial(adapter.match_layers, model))


def picked(blocks: Callable[[], Sequence[str]], match: Callable[[str], Sequence[str]]) -> tuple[Watch, ...]:
    """What `NEURONSCOPE_PROBES` picks of a model's layers.

    Args:
        match: ids that a pattern names; it raises `LookupError` where nothing does.
    """
    watches: dict[str, Watch] = {}
    for text in ENGINE.settings.probes:
        pattern, want = parse_probe(text)
        if pattern == "off":
            return ()
        layers = blocks() if pattern == "blocks" else _matching(match, pattern)
        watches.update({layer: Watch(layer, want) for layer in layers})
    return tuple(watches.values())


def _matching(match: Callable[[str], Sequence[str]], pattern: str) -> Sequence[str]:
    # A pattern is for all models of the process; one that has no such layer is not a mistake.
    try:
        return match(pattern)
    except LookupError:
        return ()


def parse_probe(text: str) -> tuple[str, Fidelity]:
    """``"PATTERN[:full|:summary]"`` as pattern and fidelity; a summary unless told."""
    pattern, separator, fidelity = text.rpartition(":")
    if separator and fidelity in (Fidelity.FULL, Fidelity.SUMMARY):
        return pattern, Fidelity(fidelity)
    return text, Fidelity.SUMMARY
