"""The slot: how a module's calls are seen without a hook, and without a trace once nobody watches.

`nn.Module.__call__` ends in ``self._call_impl(...)``.  While someone watches, the module's instance
dictionary holds a `Slot` under that name, outside the module's own hooks, PEFT's and accelerate's.
Coming and going (`slots`) costs 1 to 2 µs, the first time 5; a module that nobody watches is exactly as
before, and as fast.

A copied instance dictionary would carry the slot to another module, which would then compute with the
*original's* weights.  So companions go with it: ``__getstate__`` and ``__reduce__``, through which `copy`,
`deepcopy`, pickle and `torch.save` see the plain module, the class's own ``__deepcopy__`` if it has one,
``_replicate_for_data_parallel`` and ``compile``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import torch
from torch import nn

from neuronscope.compiled import find
from neuronscope.native import new_lock
from neuronscope_instrumentation.common.observing import Observer
from neuronscope_instrumentation.torch.internals import CALL, COMPILED_CALL, class_of
from neuronscope_instrumentation.torch.resting import HIDDEN, LIVE, reference, rest
from neuronscope_instrumentation.torch.telling import Tap, call_tapped, tell

# Methods, looked up on the instance, that copy its dictionary or keep its `_call_impl`.
_STEP_ASIDE_FOR: Final = (
    "__getstate__", "__reduce__", "__deepcopy__", "_replicate_for_data_parallel", "compile",
)  # fmt: skip

LOCK: Final = new_lock()  # re-entrant: the garbage collector may run an undo inside an install


class _Greenlets:
    """How slots tell greenlets apart: the library is imported by those only who intervene."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: Callable[[], Any] = _nothing


def _nothing() -> None:
    return None


GREENLETS: Final = _Greenlets()
_dynamo_traces: Final = torch.compiler.is_dynamo_compiling


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

    def see_edits(self) -> None:
        """Apply the slot's `edits` to the outputs of the calls that it makes."""
        ...


class PlainSlotTurns:
    """What coming to a module and leaving it needs of its slot; `Slot` says what it is."""

    __slots__ = (
        "below", "edits", "entries", "entry", "identity", "kind", "module", "observers", "ready", "size",
        "taps", "visitor", "visitors",
    )  # fmt: skip

    below: Callable[..., Any] | None
    edits: tuple[Callable[[Any], Any], ...]
    entries: dict[str, Any]
    entry: Callable[..., Any] | None
    identity: int
    kind: type | None
    module: Callable[[], nn.Module | None]
    observers: tuple[Observer, ...]
    ready: Visitor | None
    size: int
    taps: tuple[Tap, ...]
    visitor: Visitor | None
    visitors: dict[Any, Visitor]


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
        kind: the module's class then.
        size: of the dictionary then, if it had none of these; else -1.
        below: what is called in the module's class's stead, if anything is.
        edits: what changes outputs of every call, in order: from an output to an output.
        taps: what looks at a call from before it until after it, in order.
    """

    __slots__ = ("key",)
    lock: ClassVar[AbstractContextManager[Any]] = LOCK

    def __init__(self, module: nn.Module | None = None) -> None:
        self.module = _nothing if module is None else reference(module)
        self.key = CALL
        self.below = self.kind = None
        self.observers = ()
        self.visitor = self.ready = None
        self.visitors = {}
        self.identity = id(self.module)
        self.entries = {}
        self.entry = None  # the slot itself, without referring to itself
        self.size = -1
        self.edits = ()
        self.taps = ()

    @property
    def wanted(self) -> bool:
        """Is there anything left to be here for?"""
        return bool(self.observers or self.visitor or self.visitors or self.edits or self.taps)

    def drop(self, observer: Observer) -> None:
        """One of the observers has left."""
        if self.observers == (observer,):
            self.observers = ()
        else:
            self.observers = tuple([other for other in self.observers if other is not observer])
        self.leave_if_unwanted()

    def leave_if_unwanted(self) -> None:
        """Somebody has left: without anybody there is no slot."""
        if self.wanted or rest(self):
            return
        LIVE.pop(self.identity, None)
        owner = self.module()
        if owner is not None:
            self.remove(owner)

    def prepare(self, module: nn.Module) -> Slot:
        """Make what will be put into the module, for a slot that comes and goes many times."""
        self.kind = class_of(module)
        self.entries = {name: WithoutUs(self, name) for name in _companions(self.kind)}
        self.entries[CALL] = self
        self.key, self.below, self.entry, self.ready, self.visitor = CALL, None, None, None, None
        taken = module.__dict__
        self.size = len(taken) if taken.keys().isdisjoint((COMPILED_CALL, *self.entries)) else -1
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module as if the slot were not there, then tell the observers."""
        visitor = self.visitors.get(GREENLETS.current()) if self.visitors else None
        if visitor is not None:
            output = visitor.visit(*args, **kwargs)
        else:
            module = self.module()
            if module is None:
                module = self._leave_stranger()
            below, kind = self.below, class_of(module)
            if self.taps:
                output = call_tapped(self.taps, module, below, args, kwargs)
            else:
                output = kind._call_impl(module, *args, **kwargs) if below is None else below(*args, **kwargs)
            for edit in self.edits:
                output = edit(output)
        observers = self.observers
        if observers and not _dynamo_traces():  # to Dynamo a constant: it traces no further
            tell(observers, output)
        return output

    def install(self, module: nn.Module) -> None:
        """Put the slot and its companions into the module's instance dictionary."""
        entries = module.__dict__
        for name in _companions(class_of(module)):
            if name not in entries:
                entries[name] = self.entries.get(name) or WithoutUs(self, name)
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
            if isinstance(companion, WithoutUs) and companion.slot is self:
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


class WithoutUs:
    """A method of the module, run while the slot steps aside: what it sees is the plain module."""

    __slots__ = ("name", "slot")

    def __init__(self, slot: Slot, name: str) -> None:
        self.slot = slot
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The class's method of this name, of the module as it is without the slot."""
        module = self.slot.module()
        if module is None:
            raise ReferenceError("the observed module that this method belongs to is gone")
        with LOCK:
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


def slot_of(module: nn.Module) -> Slot | None:
    """The slot that this module's calls go through now."""
    if CALL not in module.__dict__ and COMPILED_CALL not in module.__dict__ and not HIDDEN:
        return None
    compiled = module.__dict__.get(COMPILED_CALL)
    found = compiled if compiled is not None else module.__dict__.get(CALL)
    if not isinstance(found, Slot):  # a visitor's entry, perhaps: then its slot is where its companions are
        companion = module.__dict__.get("compile")
        slot = companion.slot if isinstance(companion, WithoutUs) else None
        found = slot if slot is not None and slot.entry is found else None
    if found is not None and found.module() is module:
        return found
    return next((slot for slot, owner in HIDDEN if owner is module), None)
