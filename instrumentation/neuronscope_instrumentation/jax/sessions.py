"""Who watches what in which thread, as part of the key under which JAX keeps compiled code.

`jax.jit` gives compiled code again for equal arguments and equal context.  What a thread watches is such a
context (`jax.make_user_context`): so code compiled before is traced once more when somebody watches, and
outside of that the old code runs, which knows nothing of us.

A thread that watches has a lane, a small number that its compiled code carries: two threads that watch the
same model have code of their own, and no record goes to the wrong one.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, Final, NamedTuple

from neuronscope.instrumentation import LayerCallback
from neuronscope.native import new_lock
from neuronscope.probes import OUTPUT
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.common.observing import Lender, Observer
from neuronscope_instrumentation.jax.models import Handle
from neuronscope_instrumentation.jax.untyped import RuntimeFailure, effects_barrier, make_user_context

NEEDS: Final = {Fidelity.OFF: 0, Fidelity.CRITICAL: 0, Fidelity.SUMMARY: 1, Fidelity.FULL: 2}
WORD, STATISTICS, WHOLE = 0, 1, 2  # what a layer's run sends: word that it ran, statistics, the array
FAILED: Final = "compiled without us"
_lock: Final = new_lock()
_LENDER: Final = Lender()


class Site(NamedTuple):
    """What somebody watches, as it enters the key: a path or a pattern of a model, how closely, and what."""

    token: int
    pattern: str
    detail: int
    role: str = OUTPUT


class Key(NamedTuple):
    """What a thread watches."""

    lane: int
    sites: frozenset[Site]

    def of(self, tokens: frozenset[int]) -> Key | None:
        """The same for these models only."""
        kept = frozenset([site for site in self.sites if site.token in tokens])
        return Key(self.lane, kept) if kept else None


CONTEXT: Final = make_user_context(None)


class Watcher:
    """One who watches a path, or all layers that a pattern turns out to name: with an observer of each.

    Attributes:
        role: which of a layer's arrays: its output, the gradient by it, or its attention weights.
    """

    __slots__ = ("_chosen", "_make", "handle", "pattern", "role", "session", "site")
    lock: ClassVar[AbstractContextManager[Any]] = _lock

    def __init__(
        self,
        handle: Handle,
        session: Session,
        pattern: str,
        make: Callable[[str], LayerCallback],
        detail: int,
        role: str,
    ) -> None:
        self.handle = handle
        self.session = session
        self.pattern = pattern
        self.role = role
        self.site = Site(handle.token, pattern, detail, role)
        self._make = make
        self._chosen: dict[str, Observer] = {}

    def wants(self, path: str, role: str) -> bool:
        """Does this one watch the layer?"""
        return self.role == role and self.handle.names(self.pattern, path)

    def observer(self, path: str) -> Observer:
        """Who is told of the layer; made when it first runs."""
        found = self._chosen.get(path)
        if found is None:
            found = self._chosen[path] = Observer(self, self._make(path), "jax")
        return found

    def drop(self, observer: Observer) -> None:
        """Nothing is left to do: all observers leave at once, with `remove`."""

    def remove(self) -> None:
        """Stop watching; again is no harm, from any thread."""
        with _lock:
            if self not in self.handle.observers:
                return
        # What runs still belongs to this observer.
        self.session.settle()
        with _lock:
            if self in self.handle.observers:
                self.handle.observers.remove(self)
                self.session.drop(self)
                for observer in self._chosen.values():
                    observer.undo()
        if not self.handle.observers or not _lanes or self.role != OUTPUT:
            _changed()


class Session:
    """What one thread watches.

    Attributes:
        key: what compiled code of this thread is kept under; None when nothing is watched.
        context: of the call whose compiled code is running: callbacks come from other threads.
        missed: layers that were traced for a key without them.
    """

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.thread = threading.get_ident()
        self.key: Key | None = None
        self.context = contextvars.copy_context()
        self.lock = threading.RLock()
        self.missed = 0
        self._seen_as: tuple[tuple[int, int], ...] = ()
        self._sites: Counter[Site] = Counter()
        self._entered: Any = None
        self._running = False
        self._handles: dict[int, Handle] = {}

    def add(self, observer: Watcher) -> None:
        """Somebody watches from now on."""
        self._sites[observer.site] += 1
        self._handles[observer.handle.token] = observer.handle
        self.refresh()

    def drop(self, observer: Watcher) -> None:
        """Somebody stops watching."""
        self._sites[observer.site] -= 1
        self._sites = +self._sites
        if not any(site.token == observer.site.token for site in self._sites):
            self._handles.pop(observer.site.token, None)
        self.refresh()

    def refresh(self) -> bool:
        """Bring JAX's context in line with what is watched; only the thread itself can.  Did it change?"""
        if threading.get_ident() != self.thread:
            return False
        key = Key(self.lane, frozenset(self._sites)) if self._sites else None
        if key == self.key:
            return False
        if self._entered is not None:
            self._entered.__exit__(None, None, None)
            self._entered = None
        self.key = key
        if key is not None:
            self._entered = CONTEXT(key)
            self._entered.__enter__()
        elif _here.session is self:
            _here.session = None
            _lanes.pop(self.lane, None)
        return True

    def detail(self, handle: Handle, path: str, role: str) -> int | None:
        """How much of a layer the program being traced has to send; None: nothing."""
        found = _detail(CONTEXT.value, handle, path, role)
        if found is None and _detail(self.key, handle, path, role) is not None:
            self.missed += 1
        return found

    def dispatch(self) -> None:
        """Compiled code of this thread is about to run: what it sends belongs to the current context."""
        context = contextvars.copy_context()
        # By identity: values of strangers may not be comparable.
        seen_as = tuple([(id(variable), id(value)) for variable, value in context.items()])
        if seen_as != self._seen_as:
            self.settle()
            self._seen_as, self.context = seen_as, context
        self._running = True

    def settle(self) -> None:
        """Wait for what compiled code has yet to send; only the thread itself can."""
        if self._running and threading.get_ident() == self.thread:
            self._running = False
            # Where the program failed, whoever reads its result gets the error.
            with suppress(RuntimeFailure):
                effects_barrier()

    def tell(self, why: str) -> None:
        """Why layers that this thread watches may have run unobserved."""
        for handle in list(self._handles.values()):
            handle.told[why] = None

    def deliver(self, handle: Handle, path: str, role: str, snapshot: TensorSnapshot) -> None:
        """A layer has run in compiled code; called in a thread of XLA's."""
        with self.lock:
            for observer in tuple(handle.observers):
                if observer.session is self and observer.wants(path, role):
                    self.context.copy().run(lend, (observer,), path, snapshot)


def lend(watching: Iterable[Watcher], path: str, snapshot: TensorSnapshot) -> None:
    """The layer has run: those who watch it may look at what it gave."""
    _LENDER.lend([watcher.observer(path) for watcher in watching], snapshot)


def _detail(key: Any, handle: Handle, path: str, role: str) -> int | None:
    if not isinstance(key, Key):
        return None
    sites = [site for site in key.sites if site.token == handle.token and site.role == role]
    return max((site.detail for site in sites if handle.names(site.pattern, path)), default=None)


# --- sessions of threads ------------------------------------------------------------------------------------
class _Here(threading.local):
    session: Session | None = None


_lanes: Final[dict[int, Session]] = {}
_here: Final = _Here()
_on_change: Final[list[Callable[[], None]]] = []


def current() -> Session | None:
    """This thread's session, if it watches anything."""
    return _here.session


def by_lane(lane: int) -> Session | None:
    """The session that compiled code belongs to, while it watches."""
    return _lanes.get(lane)


def watching() -> bool:
    """Does any thread watch?"""
    return bool(_lanes)


def observe(
    handle: Handle, pattern: str, make: Callable[[str], LayerCallback], detail: int, role: str = OUTPUT
) -> Callable[[], None]:
    """Watch what a pattern names, in compiled code of this thread and eager code of all; returns the undo."""
    with _lock:
        session = _here.session
        if session is not None:
            session.refresh()
            session = _here.session
        if session is None:
            session = _here.session = _open_lane()
        if not any(other.session is session for other in handle.observers):
            handle.told.clear()
        observer = Watcher(handle, session, pattern, make, detail, role)
        handle.observers.append(observer)
        session.add(observer)
    if len(handle.observers) == 1 or role != OUTPUT:
        _changed()
    return observer.remove


def on_change(step: Callable[[], None]) -> None:
    """Call `step` whenever somebody begins or ends to watch."""
    _on_change.append(step)


def _open_lane() -> Session:
    alive = {thread.ident for thread in threading.enumerate()}
    for lane in [lane for lane, session in _lanes.items() if session.thread not in alive]:
        del _lanes[lane]  # what it watched was given up by another thread, after this one had ended
    lane = next(number for number in range(len(_lanes) + 1) if number not in _lanes)
    session = _lanes[lane] = Session(lane)
    return session


def _changed() -> None:
    for step in _on_change:
        step()
