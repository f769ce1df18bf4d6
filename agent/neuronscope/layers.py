"""Observing layers: from a tensor that an adapter shows us to a record, within the budget.

One observer per watched layer runs in the model's thread.  It asks the budget for a fidelity, takes
exactly that much (a summary, or a summary and a detached copy), and queues a `LayerRecord`.  The span
that is current becomes the record's parent and collects per-layer aggregates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace
from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope import notes
from neuronscope import recording as recordings
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.opening import our_span
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.governor import Budget, Site
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.clock import COLLECTIONS, cpu_ns
from neuronscope.modelcall import ModelCall
from neuronscope.native import new_lock
from neuronscope.probes import LayerActivations, Probe
from neuronscope.recording import Recording
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope.slotcosts import CLOCKED, HANDLING_CLOCKED, SLOT_BY_HANDLING, SLOTS

_open_spans: Final = new_lock()
BUDGET: Final = "budget"
MEMORY: Final = "memory"


class LayerObserver(notes.Holder):
    """The callback of one watched layer.  Where nothing is left to decide, its runs are noted: see `notes`.

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
        "_call", "_critical", "_handling_ns", "_key", "_kind", "_layer_id", "_model", "_notable", "_owner",
        "_probe", "_refused", "_role", "_told_as", "_want", "needs", "seen",
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
        super().__init__()
        self._model = model
        self._layer_id = layer_id
        self._kind = kind
        # Runs are counted, and aggregated in the span, for each kind of probe by itself.
        self._told_as = layer_id if kind is None or type(kind) is LayerActivations else f"{layer_id}:{probe}"
        COLLECTIONS.watch()
        self._want = want
        self.needs = Fidelity.FULL if kind is not None and kind.reads_values else want
        self._notable = want is Fidelity.SUMMARY and (kind is None or not kind.reads_values)
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
        clocked = self._refused % CLOCKED == 0
        started = cpu_ns() if clocked else 0
        current = recordings.CURRENT.get()
        recording = current if current is not None else self._owner
        if self._owner is not None and (recording is None or not recording.within(self._owner)):
            return  # another scope's run of the same model
        context = otel_context.get_current()
        call, trace_id, span_id = _current_call(context, self._model, current, self._owner)
        if self._call is not None and call is not self._call and span_id is not None:
            return  # another call's run of the same model
        if self.permit is not None:
            UNSETTLED.settle()  # earlier runs, that were noted
        step = call.next_step(self._told_as)
        budget = recording.budget if recording is not None else ENGINE.budget
        nbytes = snapshot.nbytes
        site = budget.site(self._probe, self._key, critical=self._critical)
        want = self._want
        if want is Fidelity.FULL and not _room(recording, nbytes):
            want, call.reason = Fidelity.SUMMARY, MEMORY
        fidelity = budget.admit(site, want, nbytes)
        if clocked and (not self._handling_ns or fidelity is Fidelity.OFF or step % HANDLING_CLOCKED == 0):
            self._handling_ns = cpu_ns() - started
            SLOTS.seen(SLOT_BY_HANDLING * self._handling_ns)
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
        within = notes.within(call, trace_id, span_id, recording, self._model, self._probe, self._role)
        told = notes.Told(within, self._layer_id, self._told_as, site)
        noted = self._capture(snapshot, told, step, fidelity)
        if noted is None:
            self._spend(budget, site, fidelity, nbytes, started, None)
            return
        self._spend(budget, site, fidelity, nbytes, started, noted.nbytes)
        if self._notable and noted.summary is not None and not noted.attributes and not call.fleeting:
            budget.advance()
            permit = self.permit
            if permit is None or permit.context is not context or permit.recording is not current:
                self.permit = notes.permit(told, context, current)

    def _capture(
        self, snapshot: TensorSnapshot, told: notes.Told, step: int, fidelity: Fidelity
    ) -> LayerRecord | None:
        """Take what was granted, and hand it over; None if the tensor cannot be read."""
        within = told.within
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
            within.call.skip(self._told_as, error.reason)
            return None
        record = LayerRecord(
            model=self._model,
            layer_id=self._layer_id,
            step=step,
            time_unix_ns=time.time_ns(),
            shape=snapshot.shape,
            dtype=snapshot.dtype,
            role=self._role,
            trace_id=within.trace_id,
            span_id=within.span_id,
            fidelity=fidelity,
            summary=summary,
            tensor=tensor,
            attributes=attributes,
        )
        if later is None:
            self._hand_over(record, within.recording, within.call, told.site)
        else:  # the worker waits for the device, not the model
            hand_over = partial(self._when_there, later, record, within.recording, within.call, told.site)
            ENGINE.later(hand_over)
        return record

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
            call.take(self._told_as, record.step, summary, record.fidelity, record.dtype, self._layer_id)
            site.look(summary.std, summary.finite)
        ENGINE.take_layer(record, recording, self._probe)
        ENGINE.metrics.add(
            names.LAYER_RECORDS, 1, ((names.MODEL_NAME, self._model), (names.FIDELITY, record.fidelity.value))
        )

    def _spend(
        self, budget: Budget, site: Site, fidelity: Fidelity, nbytes: int, started: int, queued: int | None
    ) -> None:
        spent = cpu_ns() - started + SLOTS.cost_ns
        budget.spend(site, fidelity, nbytes, spent, queued)

    def _refuse(self, budget: Budget, *, clocked: bool) -> None:
        """Account for runs that were not captured: they cost something, too."""
        self._refused += 1
        if not clocked:
            return
        cost = (self._handling_ns + SLOTS.cost_ns) * budget.hidden
        budget.charge(self._probe, cost * min(self._refused, CLOCKED), clip=False)


def _room(recording: Recording | None, nbytes: int) -> bool:
    """May a full tensor be held, in the queue and in the scope?  Asked before it is copied."""
    return ENGINE.has_room(nbytes) and (recording is None or recording.has_room(nbytes))


def _current_call(
    context: otel_context.Context, model: str, current: Recording | None, owner: Recording | None
) -> tuple[ModelCall, int | None, int | None]:
    """The model call to which a layer's run belongs, and the trace and span it is in."""
    span = trace.get_current_span(context)
    identity = span.get_span_context()
    ours = our_span(context, span)
    if ours is None and owner is not None and current is None:
        # A thread that no context was carried into: by model and scope alone.
        ours = owner.root
        identity = ours.get_span_context() if ours is not None else identity
    trace_id, span_id = (identity.trace_id, identity.span_id) if identity.is_valid else (None, None)
    if ours is None:
        return (
            (owner.unattributed(model) if owner is not None else ModelCall(model, fleeting=True)),
            trace_id,
            span_id,
        )
    with _open_spans:
        if ours.model_call is None:
            ours.model_call = ModelCall(model)
        return ours.model_call, trace_id, span_id
