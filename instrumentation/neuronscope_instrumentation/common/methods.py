"""Watching an object's methods through its instance dictionary, without a trace once nobody watches.

While someone watches, the instance dictionary holds an `Entry` under the method's name, which calls what
would have been called.  Whoever comes first puts it there, and whoever leaves last takes it out.
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

from neuronscope.engine.guard import GUARD
from neuronscope.native import new_lock
from neuronscope_instrumentation.common.observing import Observer

LOCK: Final = new_lock()  # re-entrant: the garbage collector may run an undo inside an install
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named ones of a call


class MethodSlot(ABC):
    """Tells one object's observers of what some of its methods return; one per object, however many watch.

    `observers` is replaced, never changed, so that a run under way needs no lock.  The object is held weakly:
    it owns the slot.
    """

    lock: ClassVar[AbstractContextManager[Any]] = LOCK

    def __init__(self, owner: Any, names: tuple[str, ...], runtime: str) -> None:
        self.owner = weakref.ref(owner)
        self.names = names
        self.runtime = runtime
        self.observers: tuple[Observer, ...] = ()
        self.entries: dict[str, Entry] = {}

    @abstractmethod
    def see(self, output: Any, call: Arguments) -> None:
        """A method has returned: lend what it returned to the observers."""

    def after(self, output: Any, call: Arguments) -> Any:
        """A method has returned; gives what its caller gets."""
        if self.observers:
            GUARD.call(f"{self.runtime}.slot", self.see, output, call)
        return output

    @property
    def wanted(self) -> bool:
        """Is anybody here?"""
        return bool(self.observers)

    def drop(self, observer: Observer) -> None:
        """One of the observers has left; without anybody the object is as it was."""
        self.observers = tuple([other for other in self.observers if other is not observer])
        if not self.wanted:
            self.remove()

    def install(self, owner: Any) -> None:
        """Put entries in the place of the object's methods, unless they are there."""
        if self.entries:
            return
        held = owner.__dict__
        for name in self.names:
            if hasattr(owner.__class__, name):
                held[name] = self.entries[name] = self.entry(name, held.get(name))

    def entry(self, name: str, below: Callable[..., Any] | None) -> Entry:
        """What stands for a method."""
        return Entry(self, name, below)

    def remove(self) -> None:
        """Take them out again; one that somebody else has wrapped stays, and passes through."""
        entries, self.entries = self.entries, {}
        owner = self.owner()
        if owner is None:
            return
        held = owner.__dict__
        for name, entry in entries.items():
            if held.get(name) is entry:
                if entry.below is None:
                    del held[name]
                else:
                    held[name] = entry.below


class Entry:
    """Stands for a method of a watched object, under its name in the object's instance dictionary.

    Attributes:
        below: what had that place before, if anything; else the class's method is called.
    """

    def __init__(self, slot: MethodSlot, name: str, below: Callable[..., Any] | None) -> None:
        self.slot = slot
        self.name = name
        self.below = below

    def _method(self) -> Callable[..., Any]:
        if self.below is not None:
            return self.below
        owner = self.slot.owner()
        if owner is None:
            raise ReferenceError("a watched method was called after its object was gone")
        method: Callable[..., Any] = getattr(owner.__class__, self.name).__get__(owner)
        return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method as if nobody watched, then tell the observers."""
        output = self._method()(*args, **kwargs)
        slot = self.slot
        # One that was taken out, and that somebody else's wrapper still calls, sees nothing any more.
        return slot.after(output, (args, kwargs)) if slot.entries.get(self.name) is self else output

    @property
    def __signature__(self) -> inspect.Signature:
        """The method's own: Keras names arguments in its messages."""
        return inspect.signature(self._method())

    def __getattr__(self, name: str) -> Any:
        if name in {"below", "name", "slot"}:
            raise AttributeError(name)  # while a copy is being made
        return getattr(self._method(), name)
