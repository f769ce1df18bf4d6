"""Where slots are while they are not in their modules, and how one that was in a module comes back.

Who samples one forward of many comes to every module of a model and leaves it, again and again.  A slot that
nobody wants any more rests, with all that it had put into the module.  If the module still is as it was left,
coming back is one update of its dictionary, and leaving is the reverse.

All of it under the slots' lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from neuronscope.compiled import choose, find
from neuronscope_instrumentation.torch.internals import COMPILED_CALL, class_of

if TYPE_CHECKING:
    from torch import nn

    from neuronscope_instrumentation.torch.slot import Slot

# Slots in place, by the identity of the reference to their module; and those that step aside while Dynamo
# traces, in whichever thread.
LIVE: Final[dict[int, Slot]] = {}
HIDDEN: Final[list[tuple[Slot, nn.Module]]] = []
# Slots that left a module as if they had never been there, by its identity.
RESTING: Final[dict[int, Slot]] = {}


def reference(module: nn.Module) -> weakref.ref[nn.Module]:
    """A slot's to its module: when that dies, nothing is kept of the slot.

    No class of ours: where Dynamo traces through a slot, it knows how to follow this one.
    """
    return weakref.ref(module, partial(_forget, id(module)))


def _forget(identity: int, gone: weakref.ref[nn.Module]) -> None:
    for slot in (LIVE.pop(id(gone), None), RESTING.pop(identity, None)):
        if slot is not None:
            slot.entries = {}  # they refer to it, and it should go without the cycle collector


def _come_back(module: nn.Module) -> Slot | None:
    """Put the module's resting slot in again; None: it has none, or is not as the slot left it."""
    slot = None if HIDDEN else RESTING.pop(id(module), None)
    if slot is None or slot.module() is not module or slot.kind is not class_of(module):
        return None
    entries = module.__dict__
    # With an entry of its own it has had a visitor since.
    if slot.entry is not None or COMPILED_CALL in entries or not entries.keys().isdisjoint(slot.entries):
        return None
    entries.update(slot.entries)
    LIVE[slot.identity] = slot
    return slot


def _rest(slot: Slot) -> bool:
    """Take a slot out of its module and keep it; False, and nothing done, if it must be taken out otherwise.

    That is where the slot covers somebody else's entry, or any of its own is gone or replaced.
    """
    module, ours = slot.module(), slot.entries
    if module is None or not ours or slot.below is not None or slot.entry is not None:
        return False
    entries = module.__dict__
    for name, entry in ours.items():
        if entries.get(name) is not entry:
            return False
    for name in ours:
        del entries[name]
    LIVE.pop(slot.identity, None)
    RESTING[id(module)] = slot
    return True


come_back: Final[Callable[[nn.Module], Slot | None]] = choose("come_back", _come_back)
rest: Final[Callable[[Slot], bool]] = choose("rest", _rest)

if (_bind := find("bind_resting")) is not None:
    _bind(HIDDEN, LIVE, RESTING, COMPILED_CALL)
