"""Runs one of the demo's programs as ``neuronscope run`` does, and lets the benchmark switch its observation.

``python -m tests.benchmarks.governor_program PYTHON [-m MODULE | FILE] ARGUMENT …``; at its Unix socket,
one JSON line is answered to each JSON line.  `Program` is the benchmark's end of it.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.governor_arms import Arms

SOCKETS: Final = "GOVERNOR_PROGRAM_SOCKETS"  # the folder of the programs' sockets
# Applications that uvicorn has loaded are wrapped once; nobody could wrap them again.  A request's span costs
# some ten millionths of the seconds that a question takes, and is in all arms.
KEPT: Final = "uvicorn"


def socket_path(folder: Path, program: str) -> Path:
    """Where a program listens."""
    return folder / f"{program}.sock"


class Program:
    """A running program of the demo."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rw")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer."""
        self._file.write(json.dumps({"command": command, **arguments}) + "\n")
        self._file.flush()
        return json.loads(self._file.readline())

    def close(self) -> None:
        """Let it go on by itself."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- the program's side --------------------------------------------------------------------------
class Switch:
    """Answers the benchmark."""

    def __init__(self) -> None:
        import neuronscope as ns
        from neuronscope.instrumentation import registry

        # Without names, the settings say which: those that are on request only stay as they are.
        others = [name for name in registry.client_names() if name != KEPT]
        self._arms = Arms(ns.instrument, lambda: ns.uninstrument(*others))

    def answer(self, command: str, **arguments: Any) -> Any:
        """Do it."""
        return getattr(self, f"do_{command}")(**arguments)

    def do_switch(self, arm: str) -> None:
        """Be one arm from now on."""
        self._arms.switch(arm)

    def do_cpu(self) -> float:
        """CPU time of this process in µs, when the worker has emptied its queue."""
        self._arms.flush()
        return time.process_time_ns() / 1e3

    def do_start_experiment(self) -> None:
        """Let the agent measure itself."""
        self._arms.start_experiment()

    def do_experiment_ended(self) -> bool:
        """Has it?"""
        return self._arms.experiment_ended

    def do_end_experiment(self) -> list[float] | None:
        """What came of it."""
        return self._arms.end_experiment()

    def do_accounts(self) -> Mapping[str, Any]:
        """What the agent says of itself."""
        return self._arms.accounts()


def listen(path: Path) -> None:
    """Answer whoever connects, one after the other, from a thread of its own."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    switch = Switch()

    def answer() -> None:
        while True:
            with listener.accept()[0] as connection, connection.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(switch.answer(**json.loads(line))) + "\n")
                    lines.flush()

    threading.Thread(target=answer, name="benchmark", daemon=True).start()


def main() -> None:
    """Observe this process, and run the program in it."""
    from neuronscope import auto

    _, _python, *program = sys.argv
    auto.start()
    listen(socket_path(Path(os.environ[SOCKETS]), os.environ["OTEL_SERVICE_NAME"]))
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
