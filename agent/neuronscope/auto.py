"""Zero code: what ``neuronscope run`` starts inside the program."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import NeuronscopeError
from neuronscope.settings import Settings


def start(disable: tuple[str, ...] = ()) -> None:
    """Start the platform from the environment and instrument everything, but for `disable`.  Never raises.

    The program matters more than its observation: whatever goes wrong, it runs on, and is told once.
    """
    if not GUARD.call("auto.start", _start, disable):
        faults = ", ".join(f"{kind} at {site}" for site, kind in GUARD.faults)
        sys.stderr.write(f"neuronscope: not observed: a fault of ours ({faults}). Please report it.\n")


def _start(disable: tuple[str, ...]) -> bool:
    from neuronscope import platform

    try:
        given: dict[str, Any] = {"disable": (*Settings.load().disable, *disable)} if disable else {}
        if platform.Platform(**given).settings.enabled:
            platform.instrument()
            _flush_on_sigterm()
    except NeuronscopeError as error:
        sys.stderr.write(f"neuronscope: not observed: {error}\n")
    return True


def _flush_on_sigterm() -> None:
    """A default SIGTERM kills without `atexit`, and uvicorn ends by raising it again: flush before.

    Only where nobody handles the signal; the process still dies of it.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def flush(signum: int, frame: FrameType | None) -> None:
        from neuronscope.engine import ENGINE

        signal.signal(signum, signal.SIG_DFL)
        GUARD.call("auto.sigterm", ENGINE.stop, ENGINE.settings.exit_timeout_s)
        os.kill(os.getpid(), signum)

    signal.signal(signal.SIGTERM, flush)
