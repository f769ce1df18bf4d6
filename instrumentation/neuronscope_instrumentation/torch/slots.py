"""Coming to modules and leaving them: observers, taps and edits of every call, visitors of one greenlet's.

Whoever comes first puts a `Slot` into the module, and whoever leaves last takes it out.  Dynamo would trace
through slots, guard on them, and compile anew once they are gone.  So they step aside while it traces: graphs
and recompilations are those of the plain model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any, Final

from torch import nn

from neuronscope.compiled import choose, find
from neuronscope.instrumentation import LayerCallback
from neuronscope_instrumentation.common.observing import Observer
from neuronscope_instrumentation.torch.internals import CALL, keep_from_dynamo, skip_in_dynamo
from neuronscope_instrumentation.torch.resting import HIDDEN, LIVE, come_back
from neuronscope_instrumentation.torch.slot import GREENLETS, LOCK, Slot, Visitor, slot_of
from neuronscope_instrumentation.torch.telling import TELLS, Tap

_RUNTIME: Final = "torch"


def observe(module: nn.Module, callback: LayerCallback) -> Callable[[], None]:
    """Call `callback` with a snapshot of the module's output after each of its calls.

    Returns:
        An undo for just this observer: idempotent, from any thread, also after the module is gone.
    """
    if "torch._dynamo" in sys.modules:  # each time: Dynamo's reset forgets
        _keep_from_dynamo()
    return MethodType(unwatch, watch(module, callback))


def _watch(module: nn.Module, callback: LayerCallback) -> Observer:
    """One more observer of a module."""
    with LOCK:
        slot = _joined(module)
        observer = Observer(slot, callback, _RUNTIME)
        slot.observers += (observer,)
    return observer


def _unwatch(observer: Observer) -> None:
    """The observer leaves; idempotent, from any thread."""
    observer.undo()


def edit(module: nn.Module, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Give every output of the module through a function; returns the undo of just this, idempotent."""
    with LOCK:
        slot = _joined(module)
        slot.edits += (change,)
        for visitor in slot.visitors.values():
            visitor.see_edits()

    def undo() -> None:
        with LOCK:
            slot.edits = tuple([other for other in slot.edits if other is not change])
            slot.leave_if_unwanted()

    return undo


def visit(slot: Slot, module: nn.Module, visitor: Visitor) -> Visitor:
    """Let a visitor make the module's calls of its greenlet, until `leave`.

    Args:
        slot: one for this module, made ready by `prepare`, that is used if the module has none; kept by the
            caller, since making one costs more than this does.

    Returns:
        The visitor; or the one of this greenlet that is there already, for a module with several paths.
    """
    entries = module.__dict__
    LOCK.acquire()  # `with` costs 80 ns more, and this is half of what a visit costs
    try:
        if len(entries) == slot.size and not HIDDEN:  # nothing has come since `prepare` looked
            if slot.ready is not visitor:
                slot.ready = visitor
                slot.entry = slot.entries[CALL] = visitor.enter(slot)
            entries.update(slot.entries)
            slot.visitor = visitor
            if _dynamo_is_here:
                LIVE[slot.identity] = slot
            return visitor
        used = _present(slot, module)
        used.see_all(module)
        there = used.visitors.get(visitor.greenlet)
        if there is not None:
            return there
        if slot.ready is visitor:
            slot.ready = None  # it has another slot now
        visitor.enter(used)
        used.visitors[visitor.greenlet] = visitor
        return visitor
    finally:
        LOCK.release()


def _leave(visitors: list[Visitor]) -> None:
    """Visitors leave; idempotent, from any thread."""
    with LOCK:
        for visitor in visitors:
            slot, entries = visitor.slot, visitor.module.__dict__
            ours = slot.entries
            if (
                slot.visitor is visitor
                and len(entries) == slot.size + len(ours)
                and entries.get(CALL) is slot.entry
            ):
                slot.visitor = None
                for name in ours:
                    del entries[name]
                if LIVE:
                    LIVE.pop(slot.identity, None)
            else:
                _leave_others(slot, visitor.module, visitor)


def forget(visitor: Visitor) -> None:
    """A visitor that has left will not come again: its slot keeps nothing of it."""
    slot = visitor.slot
    with LOCK:
        if slot.ready is visitor and slot.visitor is None:
            slot.ready = slot.entry = None
            slot.entries[CALL] = slot


def _leave_others(slot: Slot, module: nn.Module, visitor: Visitor) -> None:
    if slot.visitor is visitor:
        slot.visitor = None
    elif slot.visitors.pop(visitor.greenlet, None) is None:
        return
    if not slot.wanted:
        LIVE.pop(slot.identity, None)
        slot.remove(module)
        slot.prepare(module)


def _joined(module: nn.Module) -> Slot:
    """The module's slot, for somebody more; made and put in if there is none."""
    _keep_from_dynamo()
    slot = come_back(module)
    if slot is not None:
        return slot
    slot = slot_of(module)
    if slot is None:
        slot = Slot(module).prepare(module)
        slot.install(module)
        LIVE[slot.identity] = slot
    slot.see_all(module)
    return slot


def _keep_from_dynamo() -> None:
    keep_from_dynamo(Slot.__call__, _hide, _show)
    if TELLS is not None:
        skip_in_dynamo(TELLS)


def _present(slot: Slot, module: nn.Module) -> Slot:
    found = slot_of(module)
    if found is not None:
        return found
    slot.prepare(module)
    slot.install(module)
    LIVE[slot.identity] = slot
    return slot


def let_visit(current: Callable[[], Any], entry: CodeType | None) -> None:
    """Before `visit`: how slots tell greenlets apart; Dynamo leaves slots and visitors' entries alone."""
    global _dynamo_is_here  # noqa: PLW0603  read for every visit
    GREENLETS.current = current
    _dynamo_is_here = "torch._dynamo" in sys.modules
    keep_from_dynamo(Slot.__call__, _hide, _show)
    if entry is not None:
        skip_in_dynamo(entry)


_dynamo_is_here = False


def tap(module: nn.Module, through: Tap) -> Callable[[], None]:
    """Let a tap look at each of the module's calls; returns the undo of just this, idempotent."""
    with LOCK:
        slot = _joined(module)
        slot.taps += (through,)

    def undo() -> None:
        with LOCK:
            slot.taps = tuple([other for other in slot.taps if other is not through])
            slot.leave_if_unwanted()

    return undo


def _hide(_: object) -> None:
    with LOCK:
        for slot in list(LIVE.values()):
            module = slot.module()
            if module is not None and slot.remove(module):
                HIDDEN.append((slot, module))


def _show(_: object) -> None:
    with LOCK:
        while HIDDEN:
            slot, module = HIDDEN.pop()
            if slot.wanted:
                slot.install(module)


leave: Final[Callable[[list[Any]], None]] = choose("leave", _leave)
watch: Final[Callable[[nn.Module, LayerCallback], Observer]] = choose("watch", _watch)
unwatch: Final[Callable[[Observer], None]] = choose("unwatch", _unwatch)

if (_bind_slots := find("bind_slots")) is not None:
    _bind_slots(LOCK.acquire, LOCK.release, _leave_others, HIDDEN, LIVE, CALL)
if (_bind_watching := find("bind_watching")) is not None:
    _bind_watching(_joined, Observer, _RUNTIME)
