"""Observers of models that run in this process: how they are kept, told and let go, in every runtime."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from neuronscope.compiled import find
from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import TensorSnapshot

# Why a run shows nothing, and where attention weights are from (`source`).
NO_GRADIENT: Final = "no gradient"
NO_ATTENTION: Final = "no attention"
MODEL: Final = "model"
RECOMPUTED: Final = "recomputed from q and k"


class Watched(Protocol):
    """What observers are on: whatever stands in a model for one of its layers.

    Attributes:
        lock: held while observers come and go.
    """

    lock: ClassVar[AbstractContextManager[Any]]

    def drop(self, observer: Observer) -> None:
        """One of its observers has left; without anybody the model is as it was."""
        ...


class Loan(Protocol):
    """A snapshot that can be read until it is closed."""

    def close(self) -> None:
        """End the loan."""
        ...


class PlainObserverTurns:
    """What telling an observer needs of it."""

    __slots__ = ("active", "callback", "site", "slot")

    active: bool
    callback: LayerCallback
    site: str
    slot: Watched


ObserverTurns = PlainObserverTurns
if not TYPE_CHECKING:
    ObserverTurns = find("ObserverTurns") or PlainObserverTurns


class Observer(ObserverTurns):
    """One callback on one layer.

    Attributes:
        slot: what it is on, which tells it.
        active: False once undone; a run already under way then no longer calls it.
        site: its own at the guard: a callback that keeps failing is switched off alone.
    """

    __slots__ = ()

    def __init__(self, slot: Watched, callback: LayerCallback, runtime: str) -> None:
        self.slot = slot
        self.callback = callback
        self.active = True
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        self.site = f"{runtime}.observer:{name}"

    def undo(self) -> None:
        """Stop watching: idempotent, from any thread, also after the layer is gone."""
        slot = self.slot
        with slot.lock:
            if self.active:
                self.active = False
                slot.drop(self)


class Lender(threading.local):
    """Lends a runtime's snapshots to observers, and knows in which threads they run.

    What observers run is not observed itself.

    Attributes:
        busy: do observers of this runtime run in this thread?
    """

    busy = False

    def lend(self, observers: Iterable[Observer], snapshot: Any) -> None:
        """Let observers look at a snapshot (a `Loan`); what they do wrong never gets to the model."""
        if self.busy:
            return
        loan: Loan = snapshot
        self.busy = True
        try:
            for observer in observers:
                if observer.active:
                    GUARD.call(observer.site, observer.callback, snapshot)
        finally:
            self.busy = False
            loan.close()


class OfHeads:
    """A callback that gets the attention weights of some heads only.

    Args:
        narrow: the part of a snapshot that is these heads'.
    """

    __slots__ = ("_callback", "_heads", "_narrow")
    needs: Final = Fidelity.FULL

    def __init__(
        self,
        callback: LayerCallback,
        heads: Sequence[int],
        narrow: Callable[[Any, Sequence[int]], TensorSnapshot],
    ) -> None:
        self._callback = callback
        self._heads = heads
        self._narrow = narrow

    def __call__(self, snapshot: TensorSnapshot) -> None:
        """Hand these heads' weights on."""
        with suppress(UnsupportedTensorError):  # the callback will find out, and tell why
            snapshot = self._narrow(snapshot, self._heads)
        self._callback(snapshot)


class InstalledHooks(ABC):
    """The two methods of `BackendAdapter` that install and remove hooks, by `observe_layer`.

    Models are told apart by identity, since many have no hash, and are held weakly.
    """

    def __init__(self) -> None:
        self._installed: dict[int, tuple[weakref.ref[Any], list[Callable[[], None]]]] = {}

    @abstractmethod
    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one layer; returns the undo of just this."""

    def install_observer_hook(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> None:
        """Call `callback` after each run of the layer, until `remove_hooks`.

        Raises:
            LayerNotFoundError: the model has no such layer; the message names what is close.
        """
        undo = self.observe_layer(model_obj, layer_id, callback)
        key, installed = id(model_obj), self._installed
        if key not in installed:
            installed[key] = (weakref.ref(model_obj, lambda _: installed.pop(key, None)), [])
        installed[key][1].append(undo)

    def remove_hooks(self, model_obj: Any) -> None:
        """Undo every `install_observer_hook` on this model; observers of `observe_layer` stay."""
        _, undos = self._installed.pop(id(model_obj), (None, ()))
        for undo in undos:
            undo()
