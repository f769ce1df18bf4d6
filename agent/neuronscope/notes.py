"""From notes of layers' runs to records, in bulk: what `LayerObserver` does one by one.

An observer whose layer has run once in a context holds a permit.  Further runs there are measured and noted
by compiled code (`_native/torch_notes.c`), at a tenth of the cost, and nobody is told.  `settle` makes up for
it: steps, aggregates, records, metrics and what the budget has to know, in the order in which all happened.
The worker does so; or whoever needs it sooner, before a decision by the balance, say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from neuronscope import recording as recordings
from neuronscope.compiled import find
from neuronscope.engine import ENGINE
from neuronscope.governor import Site
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.budget import Noted
from neuronscope.governor.clock import cpu_ns
from neuronscope.modelcall import ModelCall
from neuronscope.native import new_lock, sleep
from neuronscope.recording import Recording
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSummary
from neuronscope.slotcosts import SLOT_ALONE, SLOTS

Note = tuple["Told", TensorSummary, tuple[int, ...], str, int, int, float, float]
FIRST_CLOCKED: Final = 16  # runs of a layer; then one of so many
SLICE: Final = 32  # notes, which take 0.1 ms
_bound: Final[list[bool]] = []
_new_permit: Final[Any] = find("Permit")
_bind: Final[Any] = find("bind_notes")
_take: Final[Callable[[], list[Note]] | None] = find("take_notes")
_lock: Final = new_lock()  # re-entered where settling lets the worker work in this thread


if TYPE_CHECKING or (_compiled := find("Holder")) is None:

    class Holder:
        """What an observer inherits.

        Attributes:
            permit: holds for one context; None: each run has to be decided.
        """

        __slots__ = ("permit",)

        def __init__(self) -> None:
            self.permit: Any = None

else:
    Holder = _compiled


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """Where layers run: the same for all that are noted in one context for one probe.

    Attributes:
        call: counts their runs.
        recording: the scope they belong to, if any.
    """

    call: ModelCall
    trace_id: int | None
    span_id: int | None
    recording: Recording | None
    model: str
    probe: str
    role: str


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What notes of one layer are about.

    Attributes:
        told_as: under what the call counts its runs.
    """

    within: Within
    layer_id: str
    told_as: str
    site: Site


@dataclass(slots=True)
class _Batch:
    records: list[LayerRecord] = field(default_factory=list[LayerRecord])
    noted: list[Noted] = field(default_factory=list[Noted])


def within(
    call: ModelCall,
    trace_id: int | None,
    span_id: int | None,
    recording: Recording | None,
    model: str,
    probe: str,
    role: str,
) -> Within:
    """The one of these, so that notes are settled together."""
    key = span_id, recording, model, probe, role
    found: Within | None = call.places.get(key)
    if found is None:
        found = call.places[key] = Within(call, trace_id, span_id, recording, model, probe, role)
    return found


def permit(told: Told, context: otel_context.Context, recording: Recording | None) -> Any:
    """A permit for runs in this context and this scope; None where none can be noted."""
    if not _bound:
        return None
    mine = told.within.recording
    budget = mine.budget if mine is not None else ENGINE.budget
    site = told.site
    # Costs are learned from one run in so many: not always from the same layers.
    unclocked = 0 if site.taken < FIRST_CLOCKED else (site.taken + id(site) // 64) % FIRST_CLOCKED
    return _new_permit(told, context, recording, site.summary.table, budget.allowance, unclocked)


def bind(graph_task: Callable[[], int], groups: Mapping[Any, Any]) -> None:
    """Let runs of torch modules be noted from now on.

    Args:
        graph_task: names the backward pass that this thread runs; -1 for none.
        groups: the process groups: while there are any, records tell their rank, and are made one by one.
    """
    current = getattr(getattr(otel_context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    if _new_permit is None or not isinstance(current, ContextVar):
        return
    otel_context.get_current()
    _bind(current.get, recordings.CURRENT.get, graph_task, cpu_ns, _wake, _refill, groups)
    _bound.append(True)


def _wake() -> None:
    """A note waits of which the worker does not know."""
    ENGINE.later(partial(settle, politely=True))


def _refill(told: Told) -> None:
    """The allowance out of which a layer's runs are noted does not suffice."""
    recording = told.within.recording
    (recording.budget if recording is not None else ENGINE.budget).advance()


def settle(*, politely: bool = False) -> None:
    """Make records of what has been noted.  From any thread.

    Args:
        politely: offer the GIL to the service's threads in between.
    """
    if _take is None:
        return
    with _lock, UNSETTLED.settling():
        batches: dict[Within, _Batch] = {}
        slot_ns = SLOT_ALONE * SLOTS.cost_ns
        for n, (told, summary, shape, dtype, when, nbytes, cost, clocked) in enumerate(_take(), 1):
            within = told.within
            batch = batches.get(within)
            if batch is None:
                batch = batches[within] = _Batch()
            call = within.call
            step = call.next_step(told.told_as)
            call.take(told.told_as, step, summary, Fidelity.SUMMARY, dtype, told.layer_id)
            told.site.look(summary.std, summary.finite)
            batch.records.append(
                LayerRecord(
                    within.model, told.layer_id, step, when, shape, dtype, within.role, 0,
                    within.trace_id, within.span_id, Fidelity.SUMMARY, summary,
                )
            )  # fmt: skip
            batch.noted.append((told.site, nbytes, cost, clocked if clocked < 0 else clocked + slot_ns))
            if politely and n % SLICE == 0:
                sleep(0)
        for within, batch in batches.items():
            budget = within.recording.budget if within.recording is not None else ENGINE.budget
            budget.settle(within.probe, batch.noted)
            ENGINE.take_summaries(batch.records, within.recording, within.probe)
            labels = (names.MODEL_NAME, within.model), (names.FIDELITY, Fidelity.SUMMARY.value)
            ENGINE.metrics.add(names.LAYER_RECORDS, len(batch.records), labels)


def _forget() -> None:
    """In the child of a fork: its parent makes records of them."""
    if _take is not None:
        _take()
    UNSETTLED.by(settle)


UNSETTLED.by(settle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
