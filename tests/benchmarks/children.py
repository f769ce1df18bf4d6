"""Child processes: each peer lives in one, answers commands, and so all are measured in turn, in one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from tests.benchmarks.venvs import CACHE, ROOT

OUR_ROOTS = [str(ROOT / name) for name in ("agent", "instrumentation", "exporters")]


class ChildError(Exception):
    """A child failed; the message ends with the last line of its log."""


def child_environment(python: Path | str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables of a child: one thread, fixed hashes, and none of our settings.

    Our own packages are on the path only under our own interpreter.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OTEL_", "NEURONSCOPE_", "PYTHON"))
    }
    roots = OUR_ROOTS if str(python) == sys.executable else []
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *roots]),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        **(extra or {}),
    }


class Child:
    """A child that runs ``python -m module arguments`` and answers one JSON line to each JSON line.

    Raises:
        ChildError: (from `ask`) it ended instead of answering.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: Path | str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = " ".join([module.rpartition(".")[2], *arguments])
        log = log_path(self.name)
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=child_environment(python, env),
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise ChildError(self._epitaph()) from error
        line = stdout.readline()
        if not line:
            raise ChildError(self._epitaph())
        return json.loads(line)

    def close(self) -> None:
        """End the child."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _epitaph(self) -> str:
        self._process.wait(10)
        return f"{self.name} ended with status {self._process.returncode}: {last_line(log_path(self.name))}"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(answer: Callable[..., Any]) -> NoReturn:
    """The child's side: answer commands until the parent closes the pipe, then end at once.

    Whatever else is printed goes to the log.  The process ends without clean-up, because that of some
    peers takes many seconds.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(answer(**json.loads(line))) + "\n")
        out.flush()
    os._exit(0)


def run_once(command: Sequence[str], env: Mapping[str, str], log: Path, timeout_s: float) -> str:
    """Run a child to its end; returns its output.

    Raises:
        ChildError: it failed, or took longer than `timeout_s` seconds.
    """
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                list(command),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=dict(env),
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"no end after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise ChildError(f"ended with status {done.returncode}: {last_line(log)}")
    return done.stdout


def log_path(name: str) -> Path:
    """Where a child's log goes."""
    folder = CACHE / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace(' ', '-').replace('/', '-')}.log"


def last_line(log: Path) -> str:
    """The last line of a log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing in its log"
