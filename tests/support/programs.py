"""Runs small programs with the agent in them, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / part for part in ("agent", "instrumentation", "exporters", "tests/support")]

# What every program begins with: the agent, observing the fake library.
PRELUDE = """
import os, sys, threading, time
import neuronscope as ns, fakelib

def start(**settings):
    ns.registry.register_adapter(fakelib.integration("fakelib"))
    platform = ns.Platform(**settings)
    ns.instrument("fake")
    return platform

client = fakelib.Client()
"""


def environment(**more: str) -> dict[str, str]:
    """The environment of a program, without what configures the tests' own process."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "NEURONSCOPE"))
    }
    path = os.pathsep.join(map(str, SOURCES))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **more}


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended; `ended_at` is the time of day."""

    code: int
    output: str
    errors: str
    ended_at: float


def run(
    body: str,
    *arguments: str,
    timeout_s: float = 250,
    prelude: str = PRELUDE,
    file: Path | None = None,
    **env: str,
) -> Done:
    """Run a program to its end; from `file`, where it matters that it has one."""
    code = prelude + textwrap.dedent(body)
    if file is not None:
        file.write_text(code)
    process = subprocess.run(
        [sys.executable, *(["-c", code] if file is None else [str(file)]), *arguments],
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(process.returncode, process.stdout, process.stderr, time.time())


@contextmanager
def running(
    command: list[str], *, output: IO[bytes] | None = None, cwd: Path | None = None, **env: str
) -> Generator[subprocess.Popen[bytes]]:
    """A program in the background; ended, with its children, at the end of the block."""
    process = subprocess.Popen(
        command, env=environment(**env), cwd=cwd, stdout=output, stderr=output, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
