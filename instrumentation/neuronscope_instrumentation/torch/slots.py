"""The slot: how a module's calls are seen without a hook, and without a trace once nobody watches.

`nn.Module.__call__` ends in ``self._call_impl(...)``.  While someone watches, the module's instance
dictionary holds a `Slot` under that name, outside the module's own hooks, PEFT's and accelerate's.
Coming and going costs about 3 µs; a module that nobody watches is exactly as before, and as fast.

A copied instance dictionary would carry the slot to another module, which would then compute with the
*original's* weights.  So companions go with it: ``__getstate__`` and ``__reduce__``, through which `copy`,
`deepcopy`, pickle and `torch.save` see the plain module, ``_replicate_for_data_parallel`` and ``compile``.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import nn

from neuronscope.compiled import choose, find
from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import LayerCallback
from neuronscope.native import new_lock
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import kernel
from neuronscope_instrumentation.torch import layout
from neuronscope_instrumentation.torch.internals import (
    CALL,
    COMPILED_CALL,
    COMPILING,
    FOR_COMPILED,
    class_of,
    is_real_run,
    keep_from_dynamo,
    set_dynamo,
    skip_in_dynamo,
)
from neuronscope_instrumentation.torch.outputs import first_tensor
from neuronscope_instrumentation.torch.snapshot import NOTHING, TorchSnapshot
from neuronscope_instrumentation.torch.summary import ELEMENTS, OTHER_KEYS

# Methods, looked up on the instance, that copy its dictionary or keep its `_call_impl`.
_STEP_ASIDE_FOR: Final = ("__getstate__", "__reduce__", "_replicate_for_data_parallel", "compile")

_lock: Final = new_lock()  # re-entrant: the garbage collector may run an undo inside an install


class _Notifying(threading.local):
    now = False


_notifying: Final = _Notifying()


class PlainObserverTurns:
    """What telling an observer needs of it."""

    __slots__ = ("active", "callback", "site", "slot")

    active: bool
    callback: LayerCallback
    site: str
    slot: Slot


ObserverTurns = PlainObserverTurns
if not TYPE_CHECKING:
    ObserverTurns = find("ObserverTurns") or PlainObserverTurns


class Observer(ObserverTurns):
    """One callback on one module.

    Attributes:
        active: False once undone; a forward already under way then no longer calls it.
    """

    __slots__ = ()

    def __init__(self, slot: Slot, callback: LayerCallback) -> None:
        self.slot = slot
        self.callback = callback
        self.active = True
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        self.site = f"torch.observer:{name}"  # a callback that keeps failing is switched off alone

    def undo(self) -> None:
        """Stop watching: idempotent, from any thread, also after the module is gone."""
        slot = self.slot
        with _lock:
            if not self.active:
                return
            self.active = False
            slot.observers = tuple([other for other in slot.observers if other is not self])
            _take_out_unwanted(slot)


class Visitor(Protocol):
    """An intervention's place in one module: it makes the module's calls of one greenlet.

    Attributes:
        slot: through which the calls come; set by `enter`.
    """

    slot: Slot
    module: nn.Module

    @property
    def greenlet(self) -> Any:
        """Whose calls it makes."""
        ...

    def enter(self, slot: Slot) -> Callable[..., Any]:
        """Take the slot; gives what may be in its place: `visit`, always the same object."""
        ...

    def visit(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, or do without; from other greenlets, the slot."""
        ...


class Tap(Protocol):
    """Looks at a module's call from before it until after it, and changes nothing."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the call; what it returns is given to `leave`, and must not raise in the model."""
        ...

    def leave(self, opened: Any, output: object, *, failed: bool) -> None:
        """After the call, whatever became of it; `output` is None if it failed."""
        ...


class PlainSlotTurns:
    """What coming to a module and leaving it needs of its slot; `Slot` says what it is."""

    __slots__ = ("entries", "entry", "identity", "ready", "size", "visitor")

    entries: dict[str, Any]
    entry: Callable[..., Any] | None
    identity: int
    ready: Visitor | None
    size: int
    visitor: Visitor | None


SlotTurns = PlainSlotTurns
if not TYPE_CHECKING:
    SlotTurns = find("SlotTurns") or PlainSlotTurns


class Slot(SlotTurns):
    """Stands for one module's `_call_impl` and tells the module's observers of each output.

    There is one per module, however many watch; `observers` is replaced, never changed, so a running
    forward needs no lock.  The module is held weakly: it owns the slot.

    Attributes:
        observers: who is told of outputs.
        visitor: the only intervention under way, while nobody else is here; `ready`: whose `visit` the entry
        is. visitors: else: interventions under way, by the greenlet that their model runs in.
        entries: what the module's instance dictionary gets, made by `prepare`.
        entry: of these, what stands for the call: the slot itself or, while there is but one visitor and
            nobody else, that one's `visit`, which is faster.
        size: of the dictionary then, if it had none of these; else -1.
        below: what is called in the module's class's stead, if anything is.
        edits: what changes outputs of every call, in order: from an output to an output.
        taps: what looks at a call from before it until after it, in order.
    """

    __slots__ = (
        "below", "edits", "key", "module", "observers", "taps", "visitors",
    )  # fmt: skip

    def __init__(self, module: nn.Module | None = None) -> None:
        self.module: Callable[[], nn.Module | None] = (
            _nothing if module is None else weakref.ref(module, _forget)
        )
        self.key = CALL
        self.below: Callable[..., Any] | None = None
        self.observers: tuple[Observer, ...] = ()
        self.visitor = self.ready = None
        self.visitors: dict[Any, Visitor] = {}
        self.identity = id(self.module)
        self.entries = {}
        self.entry = None  # the slot itself, without referring to itself
        self.size = -1
        self.edits: tuple[Callable[[Any], Any], ...] = ()
        self.taps: tuple[Tap, ...] = ()

    @property
    def wanted(self) -> bool:
        """Is there anything left to be here for?"""
        return bool(self.observers or self.visitor or self.visitors or self.edits or self.taps)

    def prepare(self, module: nn.Module) -> Slot:
        """Make what will be put into the module, for a slot that comes and goes many times."""
        self.entries = {name: _WithoutUs(self, name) for name in _companions(class_of(module))}
        self.entries[CALL] = self
        self.key, self.below, self.entry, self.ready, self.visitor = CALL, None, None, None, None
        taken = module.__dict__
        self.size = len(taken) if taken.keys().isdisjoint((COMPILED_CALL, *self.entries)) else -1
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module as if the slot were not there, then tell the observers."""
        visitor = self.visitors.get(_greenlet()) if self.visitors else None
        if visitor is not None:
            output = visitor.visit(*args, **kwargs)
        else:
            module = self.module()
            if module is None:
                module = self._leave_stranger()
            below, kind = self.below, class_of(module)
            if self.taps:
                output = _call_tapped(self.taps, module, below, args, kwargs)
            else:
                output = kind._call_impl(module, *args, **kwargs) if below is None else below(*args, **kwargs)
            for edit in self.edits:
                output = edit(output)
        observers = self.observers
        if observers and not _dynamo_traces():  # to Dynamo a constant: it traces no further
            if _tell is not None:
                _tell(observers, output)
                return output
            if torch.compiler.is_compiling():
                return output
            compiler = set_dynamo(None)  # else it would compile what runs here
            try:
                if is_real_run():
                    GUARD.call("torch.slot", _notify, observers, output)
            finally:
                set_dynamo(compiler)
        return output

    def install(self, module: nn.Module) -> None:
        """Put the slot and its companions into the module's instance dictionary."""
        entries = module.__dict__
        for name in _companions(class_of(module)):
            if name not in entries:
                entries[name] = self.entries.get(name) or _WithoutUs(self, name)
        # After `module.compile()` the compiled call is the one made: then its boundary is observed.
        self.key = CALL if entries.get(COMPILED_CALL) is None else COMPILED_CALL
        self.below = entries.get(self.key)
        entries[self.key] = self.entry or self

    def see_all(self, module: nn.Module) -> None:
        """Somebody else comes: calls go through the slot itself from now on."""
        if self.entry is not None:
            entries = module.__dict__
            if entries.get(self.key) is self.entry:
                entries[self.key] = self
            self.entry = self.ready = None
            self.entries[CALL] = self
        if self.visitor is not None:
            self.visitors[self.visitor.greenlet] = self.visitor
            self.visitor = None

    def remove(self, module: nn.Module) -> bool:
        """Take out of the module's instance dictionary what `install` put in; False if it was not in force.

        Where another tool has put its own wrapper over the slot, the slot stays there and passes through.
        """
        entries = module.__dict__
        in_force = entries.get(self.key) is (self.entry or self)
        if in_force:
            if self.below is None:
                del entries[self.key]
            else:
                entries[self.key] = self.below
        for name in _STEP_ASIDE_FOR:
            companion = entries.get(name)
            if isinstance(companion, _WithoutUs) and companion.slot is self:
                del entries[name]
        return in_force

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot:
        """A slot for no module: it leaves whichever instance dictionary it ends up in."""
        return Slot()

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, ()

    def _leave_stranger(self) -> nn.Module:
        """The module through which a slot without one was called, freed of the slot."""
        frame = inspect.currentframe()
        caller = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
        stranger = caller.f_locals.get("self") if caller is not None else None
        if not isinstance(stranger, nn.Module):
            raise ReferenceError("a NeuronScope slot was called through something that is no module")
        self.remove(stranger)
        return stranger


class _WithoutUs:
    """A method of the module, run while the slot steps aside: what it sees is the plain module."""

    __slots__ = ("name", "slot")

    def __init__(self, slot: Slot, name: str) -> None:
        self.slot = slot
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.slot.module()
        if module is None:
            raise ReferenceError("the observed module that this method belongs to is gone")
        with _lock:
            in_force = self.slot.remove(module)
            try:
                result = getattr(class_of(module), self.name)(module, *args, **kwargs)
                return dict(module.__dict__) if result is module.__dict__ else result
            finally:
                if in_force:
                    self.slot.install(module)


@lru_cache(maxsize=1024)
def _companions(kind: type) -> tuple[str, ...]:
    return tuple(
        name for name in _STEP_ASIDE_FOR if getattr(kind, name, None) is not getattr(object, name, None)
    )


def _nothing() -> None:
    return None


def observe(module: nn.Module, callback: LayerCallback) -> Callable[[], None]:
    """Call `callback` with a snapshot of the module's output after each of its calls.

    Returns:
        An undo for just this observer: idempotent, from any thread, also after the module is gone.
    """
    with _lock:
        slot = _joined(module)
        observer = Observer(slot, callback)
        slot.observers += (observer,)
    return observer.undo


def edit(module: nn.Module, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Give every output of the module through a function; returns the undo of just this, idempotent."""
    with _lock:
        slot = _joined(module)
        slot.edits += (change,)

    def undo() -> None:
        with _lock:
            if change not in slot.edits:
                return
            slot.edits = tuple([other for other in slot.edits if other is not change])
            _take_out_unwanted(slot)

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
    _lock.acquire()  # `with` costs 80 ns more, and this is half of what a visit costs
    try:
        if len(entries) == slot.size and not _hidden:  # nothing has come since `prepare` looked
            if slot.ready is not visitor:
                slot.ready = visitor
                slot.entry = slot.entries[CALL] = visitor.enter(slot)
            entries.update(slot.entries)
            slot.visitor = visitor
            if _dynamo_is_here:
                _live[slot.identity] = slot
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
        _lock.release()


def _leave(visitors: list[Visitor]) -> None:
    """Visitors leave; idempotent, from any thread."""
    with _lock:
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
                if _live:
                    _live.pop(slot.identity, None)
            else:
                _leave_others(slot, visitor.module, visitor)


def forget(visitor: Visitor) -> None:
    """A visitor that has left will not come again: its slot keeps nothing of it."""
    slot = visitor.slot
    with _lock:
        if slot.ready is visitor and slot.visitor is None:
            slot.ready = slot.entry = None
            slot.entries[CALL] = slot


def _leave_others(slot: Slot, module: nn.Module, visitor: Visitor) -> None:
    if slot.visitor is visitor:
        slot.visitor = None
    elif slot.visitors.pop(visitor.greenlet, None) is None:
        return
    if not slot.wanted:
        _live.pop(slot.identity, None)
        slot.remove(module)
        slot.prepare(module)


def _joined(module: nn.Module) -> Slot:
    """The module's slot, for somebody more; made and put in if there is none."""
    slot = _slot_of(module)
    if slot is None:
        slot = Slot(module)
        slot.install(module)
        _live[slot.identity] = slot
    slot.see_all(module)
    keep_from_dynamo(Slot.__call__, _hide, _show)
    return slot


def _take_out_unwanted(slot: Slot) -> None:
    """Somebody has left: without anybody there is no slot."""
    if slot.wanted:
        return
    _live.pop(slot.identity, None)
    owner = slot.module()
    if owner is not None:
        slot.remove(owner)


def _present(slot: Slot, module: nn.Module) -> Slot:
    found = _slot_of(module)
    if found is not None:
        return found
    slot.prepare(module)
    slot.install(module)
    _live[slot.identity] = slot
    return slot


def let_visit(current: Callable[[], Any], entry: CodeType | None) -> None:
    """Before `visit`: how slots tell greenlets apart; Dynamo leaves slots and visitors' entries alone."""
    global _greenlet, _dynamo_is_here  # noqa: PLW0603  greenlet is imported by those only who intervene
    _greenlet = current
    _dynamo_is_here = "torch._dynamo" in sys.modules
    keep_from_dynamo(Slot.__call__, _hide, _show)
    if entry is not None:
        skip_in_dynamo(entry)


_greenlet: Callable[[], Any] = _nothing
_dynamo_is_here = False


def tap(module: nn.Module, through: Tap) -> Callable[[], None]:
    """Let a tap look at each of the module's calls; returns the undo of just this, idempotent."""
    with _lock:
        slot = _joined(module)
        slot.taps += (through,)

    def undo() -> None:
        with _lock:
            if through not in slot.taps:
                return
            slot.taps = tuple([other for other in slot.taps if other is not through])
            _take_out_unwanted(slot)

    return undo


def _call_tapped(
    taps: tuple[Tap, ...],
    module: nn.Module,
    below: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    output: Any = None
    failed = True
    opened: list[tuple[Tap, Any]] = []
    if not torch.compiler.is_compiling() and not _is_notifying() and is_real_run():
        opened = [(each, GUARD.call("torch.tap", each.enter, module, args, kwargs)) for each in taps]
    try:
        kind = class_of(module)
        output = kind._call_impl(module, *args, **kwargs) if below is None else below(*args, **kwargs)
        failed = False
        return output
    finally:
        for each, handle in reversed(opened):
            if handle is not None:
                GUARD.call("torch.tap", partial(each.leave, handle, output, failed=failed))


def _slot_of(module: nn.Module) -> Slot | None:
    """The slot that this module's calls go through now."""
    if CALL not in module.__dict__ and COMPILED_CALL not in module.__dict__ and not _hidden:
        return None
    compiled = module.__dict__.get(COMPILED_CALL)
    found = compiled if compiled is not None else module.__dict__.get(CALL)
    if not isinstance(found, Slot):  # a visitor's entry, perhaps: then its slot is where its companions are
        companion = module.__dict__.get("compile")
        slot = companion.slot if isinstance(companion, _WithoutUs) else None
        found = slot if slot is not None and slot.entry is found else None
    if found is not None and found.module() is module:
        return found
    return next((slot for slot, owner in _hidden if owner is module), None)


def _notify(observers: tuple[Observer, ...], output: object) -> None:
    """Hand the output's first tensor to the observers; what they run is not observed itself."""
    if _notifying.now:
        return
    tensor = first_tensor(output)
    if tensor is None:
        return
    snapshot = TorchSnapshot(tensor)
    _notifying.now = True
    try:
        for observer in observers:
            if observer.active:
                GUARD.call(observer.site, observer.callback, snapshot)
    finally:
        _notifying.now = False
        snapshot.close()


leave: Final[Callable[[list[Any]], None]] = choose("leave", _leave)

_dynamo_traces: Final = torch.compiler.is_dynamo_compiling


def _plain_is_notifying() -> bool:
    return _notifying.now


# Do observers run in this thread?
_is_notifying: Final = choose("notifying", _plain_is_notifying)
# What ends `Slot.__call__`, compiled, with the guard around each observer.
_tell: Final[Callable[[tuple[Observer, ...], object], None] | None] = find("tell")


def _bind() -> None:
    bind = find("bind_tensors")
    if bind is not None:
        compiled, _ = kernel.load()
        bind(
            *FOR_COMPILED, set_dynamo, is_real_run, first_tensor, TorchSnapshot, GUARD.fault,
            torch.Tensor, torch.nn.Parameter, ELEMENTS, OTHER_KEYS, TensorSummary, GUARD.disabled, *COMPILING,
            NOTHING, 0 if compiled is None else compiled.address, kernel.HOLD_GIL,
        )  # fmt: skip


_bind()
if (_bind_layout := find("bind_layout")) is not None:
    layout.bind(_bind_layout, find("laid_out"))


# Dynamo would trace through slots, guard on them, and compile anew once they are gone.  So they step
# aside while it traces, in whichever thread: graphs and recompilations are those of the plain model.
_live: Final[dict[int, Slot]] = {}  # by the identity of the reference to their module
_hidden: Final[list[tuple[Slot, nn.Module]]] = []

if (_bind_slots := find("bind_slots")) is not None:
    _bind_slots(_lock.acquire, _lock.release, _leave_others, _hidden, _live, CALL)


def _forget(module: weakref.ref[nn.Module]) -> None:
    _live.pop(id(module), None)


def _hide(_: object) -> None:
    with _lock:
        for slot in list(_live.values()):
            module = slot.module()
            if module is not None and slot.remove(module):
                _hidden.append((slot, module))


def _show(_: object) -> None:
    with _lock:
        while _hidden:
            slot, module = _hidden.pop()
            if slot.wanted:
                slot.install(module)
