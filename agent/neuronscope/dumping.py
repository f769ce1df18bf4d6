"""`ns.dump()`: write down what the flight recorder holds, now; also on the signal SIGUSR2."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final

from neuronscope import native
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.exporters import Recorder

SIGNAL: Final = getattr(signal, "SIGUSR2", None)


def dump(reason: str = "request", timeout_s: float = 10.0) -> list[str]:
    """Write what the recorder holds into a finished `.nsz` file.

    With `nsz_mode="flight"` these are the last seconds; else the current segment is finished and the next
    one begun.  Thread-safe.

    Args:
        reason: is noted in the file.
        timeout_s: how long to wait for the file.

    Returns:
        The files; none without a recorder, or where there was nothing to write.
    """
    paths: list[str] = []
    recorders = [exporter for exporter in ENGINE.exporters if isinstance(exporter, Recorder)]
    for recorder in recorders:
        recorder.request_dump(reason, paths.append)
    if recorders:
        ENGINE.flush(timeout_s)
    return paths


def dump_on_signal() -> None:
    """Have SIGUSR2 dump, unless the service uses it; only in the main thread, the one that may ask."""
    if SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(SIGNAL) in (signal.SIG_DFL, None):
        signal.signal(SIGNAL, _on_signal)


def leave_signal() -> None:
    """Put SIGUSR2 back, unless the service has taken it since."""
    if SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(SIGNAL) is _on_signal:
        signal.signal(SIGNAL, signal.SIG_DFL)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    # Not here: the handler has interrupted the main thread, which may hold any lock.
    start: Any = native.original("_thread", "start_new_thread")
    start(GUARD.call, ("dump.signal", dump, "signal"))
