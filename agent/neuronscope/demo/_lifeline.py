"""Run a program that must not outlive its starter: `python _lifeline.py GRACE PROGRAM ARG…`.

The starter holds the other end of this process's standard input. When that end closes, on
purpose or because the starter was killed in whatever way, the program and everything that it
started get SIGTERM and, after GRACE seconds, SIGKILL. The same clears up after a program that
ends by itself. The exit status is the program's, or 128 and the number of the signal that
ended it.

Only the standard library, and little of it: this runs beside every program, under `python -I -S`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

_POLL_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Start the program, wait for its end or the starter's, and clear its process group."""
    grace_seconds, command = float(sys.argv[1]), sys.argv[2:]
    # Terminals and supervisors signal many processes at once. Only the closed pipe may end this one,
    # since it alone knows what has to be stopped.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_child_preparation(),  # noqa: PLW1509 - unsafe beside threads, and there are none here
    )
    while program.poll() is None and not _starter_is_gone():
        pass
    _signal_group(program.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while (program.poll() is None or _group_exists(program.pid)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    _signal_group(program.pid, signal.SIGKILL)
    status = program.wait()
    return status if status >= 0 else 128 - status


def _starter_is_gone() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
    return bool(readable) and os.read(sys.stdin.fileno(), 1) == b""


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(group: int, number: signal.Signals) -> None:
    # macOS reports a group in which only zombies are left as a lack of permission.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _child_preparation() -> Callable[[], None]:
    # Looked up before the fork: a child of a fork should do as little as possible.
    tie_to_this_process = _death_signal_setter()

    def prepare() -> None:
        # Programs inherit ignored signals, but not handlers.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        tie_to_this_process()

    return prepare


def _death_signal_setter() -> Callable[[], object]:
    """Let Linux kill the program should this process itself be killed; elsewhere, do nothing."""
    if sys.platform != "linux":
        return lambda: None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
