"""Threads and locks of the operating system, whatever the program has monkey-patched.

gevent and eventlet replace `threading` by cooperative twins.  A worker that were one of their greenlets
would stop when the program computes, and could wait for a lock that its own thread holds.  So our threads
are real ones, and what they share with others is guarded by real locks.

After a fork locks are as they were, also those that a thread held which does not exist in the child.
`new_lock` makes locks that are free again there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from _thread import RLock
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

_COARSE: Final = max(time.get_clock_info(each).resolution for each in ("process_time", "thread_time")) > 1e-6
_NOISE_NS: Final = 1_500  # between the readings of two clocks; to wake up and to wait takes longer
_LOCKS: Final[weakref.WeakSet[RLock]] = weakref.WeakSet()


class Lock(Protocol):
    """What is used of `_thread.lock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for the lock."""
        ...

    def release(self) -> None:
        """Free the lock; any thread may."""
        ...


def original(module: str, name: str) -> Any:
    """An attribute of a standard module as Python made it."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None:
        return gevent.get_original(module, name)
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None:
        return getattr(eventlet.original(module), name)
    return getattr(sys.modules[module], name)


def allocate_lock() -> Lock:
    """A plain lock between threads of the operating system."""
    return cast(Lock, original("_thread", "allocate_lock")())


def new_lock() -> RLock:
    """A re-entrant lock between real threads that is free in the child of a fork.

    Re-entrant, because garbage collection can end a stream, and so enter our code, at any allocation.

    Keep it in an object with `__slots__`: eventlet, when it patches, replaces the locks of this kind that it
    finds in dictionaries, by ones that do not wake other threads.
    """
    lock = RLock()
    _LOCKS.add(lock)
    return lock


def sleep(seconds: float) -> None:
    """Let other threads run."""
    _sleep(seconds)


class Courtesy:
    """Offers the GIL to the process's other threads, as long as one of them has done something.

    To let go of it for as long as another thread needs to take it costs ten microseconds and more.  So that
    is spared while nobody else has run since the last time: whoever waits for the GIL has woken up before,
    which took time of a CPU, and the kernel has counted that when the thread lay down again.  Where clocks
    of CPU time are coarse it is offered every time.
    """

    __slots__ = ("_others",)

    def __init__(self) -> None:
        self._others = 0

    def offer(self) -> None:
        """Let others run, if there are any that may want to."""
        others = time.process_time_ns() - time.thread_time_ns()
        if _COARSE or abs(others - self._others) > _NOISE_NS:
            self._others = others
            _sleep(0)


class Thread:
    """A real daemon thread, begun at once.

    Raises:
        RuntimeError: no thread can be started (any more).
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        global _sleep  # noqa: PLW0603 - the program may have been patched since
        _sleep = original("time", "sleep")
        self._run = run
        self._ended = allocate_lock()
        self._ended.acquire()
        start = original("_thread", "start_new_thread")
        if start is threading._start_new_thread:  # type: ignore[attr-defined] # that is: nothing is patched
            threading.Thread(target=self._main, name=name, daemon=True).start()
        else:
            start(self._main, ())

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self._ended.release()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; True if it came."""
        if not self._ended.acquire(timeout=timeout_s):
            return False
        self._ended.release()
        return True


class Condition:
    """`threading.Condition`, of real locks.  To be entered once, not again by the thread that is in it."""

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = new_lock()
        self._waiting: list[Lock] = []

    def __enter__(self) -> Condition:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Leave, wait to be notified, and enter again; False if the time came first."""
        mine = allocate_lock()
        mine.acquire()
        self._waiting.append(mine)
        self._lock.release()
        try:
            return mine.acquire(timeout=-1 if timeout_s is None else timeout_s)
        finally:
            self._lock.acquire()
            if mine in self._waiting:
                self._waiting.remove(mine)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition()` is true; False if the time came first."""
        end = time.monotonic() + timeout_s
        while not (done := condition()):
            left = end - time.monotonic()
            if left <= 0:
                break
            self.wait(left)
        return done

    def notify_all(self) -> None:
        """Wake everybody who waits."""
        waiting, self._waiting = self._waiting, []
        for lock in waiting:
            lock.release()


_sleep: Callable[[float], None] = time.sleep


def _free_in_child() -> None:
    for lock in tuple(_LOCKS):
        lock._at_fork_reinit()  # type: ignore[attr-defined] # as the standard library does it


os.register_at_fork(after_in_child=_free_in_child)
