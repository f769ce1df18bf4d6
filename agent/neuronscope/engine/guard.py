"""The one guard between our code and the service.

Every entry into our code from a thread of the service goes through `Guard.call` (or reports to
`Guard.fault`): a fault of ours is counted, logged once per cause, and after `MAX_FAULTS` the site is
left alone for good.  Nothing is raised into the service.  Under our own tests `reraise` is set, so that
the rule cannot hide our bugs.

What a signal handler of the service raises while our code runs is no fault of ours: it goes on.

`except Exception` stands in this file and nowhere else.
"""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

MAX_FAULTS = 100
_log = logging.getLogger("neuronscope")
# A library must not print through logging's last-resort handler.
_log.addHandler(logging.NullHandler())


class Guard:
    """Counts and contains faults of NeuronScope's own code.  Thread-safe by the GIL's atomic dict ops.

    Attributes:
        reraise: raise faults instead of containing them (our own tests).
        faults: number of faults by ``(site, exception type)``.
        disabled: sites that are not called any more.
    """

    def __init__(self) -> None:
        self.reraise = False
        self.faults: dict[tuple[str, str], int] = {}
        self.disabled: set[str] = set()
        self.on_fault: Callable[[str, str], None] | None = None

    def call(self, site: str, function: Callable[..., R], *args: object, default: D = None) -> R | D:  # type: ignore[assignment]
        """Call one of our functions; on a fault return `default`."""
        if site in self.disabled:
            return default
        try:
            return function(*args)
        except Exception as error:
            self.fault(site, error)
            return default

    def always(self, site: str, function: Callable[..., R], *args: object) -> R | None:
        """Like `call`, for what must happen though its site was switched off meanwhile: the end of a call."""
        try:
            return function(*args)
        except Exception as error:
            self.fault(site, error)
            return None

    # What every observed call passes, with as many arguments as it has: packing them costs as much again.
    def begin(self, site: str, function: Callable[[A, B, C], R], one: A, two: B, three: C) -> R | None:
        """`call` with three arguments."""
        if site in self.disabled:
            return None
        try:
            return function(one, two, three)
        except Exception as error:
            self.fault(site, error)
            return None

    def one(self, site: str, function: Callable[[A], R], value: A) -> R | None:
        """`call` with one argument."""
        if site in self.disabled:
            return None
        try:
            return function(value)
        except Exception as error:
            self.fault(site, error)
            return None

    def end(self, site: str, function: Callable[[A], R], value: A) -> R | None:
        """`always` with one argument."""
        try:
            return function(value)
        except Exception as error:
            self.fault(site, error)
            return None

    def contain(self, site: str, function: Callable[..., R], *args: object, default: D = None) -> R | D:  # type: ignore[assignment]
        """Like `call`, for the worker's work: nothing that it raises gets out, and it is always tried again.

        Even `SystemExit`: a `sys.exit` in an exporter must not end the worker.  Ctrl-C is the service's, and
        so is a `sys.exit` in a signal handler of its.
        """
        try:
            return function(*args)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            self.fault(site, error)
            return default

    def fault(self, site: str, error: BaseException) -> None:
        """Take note of a fault at `site`; raises it if it is none, and under our own tests."""
        if self.reraise:
            raise error
        try:
            ours = not _is_of_signal(error)
            if ours:
                self._note(site, error)
        except Exception:
            # A handler of the service's log may raise, and so may counting; there is nobody left to tell.
            return
        if not ours:
            raise error

    def _note(self, site: str, error: BaseException) -> None:
        kind = type(error).__name__
        key = (site, kind)
        count = self.faults.get(key, 0) + 1
        self.faults[key] = count
        if isinstance(error, RecursionError | MemoryError):
            pass  # the service's own depth or hunger, met in our code by chance
        elif count == 1:
            _log.warning(
                "a fault in NeuronScope at %s: your code runs on unharmed, with less telemetry.",
                site,
                exc_info=(type(error), error, error.__traceback__),
            )
        elif self._count(site) >= MAX_FAULTS and site not in self.disabled:
            self.disabled.add(site)
            _log.warning("%s failed %d times and is switched off for this process.", site, MAX_FAULTS)
        if self.on_fault is not None:
            self.on_fault(site, kind)

    def _count(self, site: str) -> int:
        return sum(count for (where, _), count in tuple(self.faults.items()) if where == site)

    def reset(self) -> None:
        """Forget all faults (tests, and the child of a fork)."""
        self.faults.clear()
        self.disabled.clear()


def _is_of_signal(error: BaseException) -> bool:
    """Has a signal handler of the service raised it: a time limit of Celery's, or `sys.exit` at SIGTERM?"""
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in that one
    where, handlers = error.__traceback__, frozenset(_handlers())
    while where is not None:
        if where.tb_frame.f_code in handlers:
            return True
        where = where.tb_next
    return False


def _handlers() -> Iterator[CodeType]:
    """The code of the signal handlers that are installed now."""
    for number in range(1, signal.NSIG):
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for function in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - its code is wanted
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code


GUARD = Guard()
