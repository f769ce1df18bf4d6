"""Instructions of a call, counted by callgrind: the one measure that a loaded machine cannot disturb.

Repeats to about 0.15 %.  Counted per thread, so that a worker thread does not blur the caller's figure;
the garbage collector is off meanwhile.  Needs valgrind and a C compiler.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.children import child_environment, log_path, run_once
from tests.benchmarks.venvs import CACHE, UnavailableError

SOURCE = Path(__file__).with_name("callgrind_requests.c")
LIBRARY_ENV = "BENCH_CALLGRIND_LIBRARY"
MAIN_THREAD = 1
# CPython rewrites bytecode for speed during the first calls; what it spends on that is not the call's.
WARM_UP = 16


# --- the parent's side -----------------------------------------------------------------------------
def library() -> Path:
    """The compiled shim.

    Raises:
        UnavailableError: valgrind or a compiler is missing here.
    """
    if shutil.which("valgrind") is None:
        raise UnavailableError("instructions need valgrind (Debian: apt-get install valgrind)")
    built = CACHE / "callgrind_requests.so"
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise UnavailableError("instructions need a C compiler (Debian: apt-get install gcc libc6-dev)")
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            fresh = Path(folder) / built.name
            done = subprocess.run(
                [compiler, "-shared", "-fPIC", "-O2", "-o", str(fresh), str(SOURCE)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise UnavailableError(f"the callgrind shim does not compile: {done.stderr.strip()}")
            fresh.replace(built)
    return built


def count(
    python: Path | str, module: str, arguments: Sequence[str], timeout_s: float = 300
) -> dict[str, dict[int, float]]:
    """Run a child under callgrind; returns instructions a call by label and thread.

    Raises:
        UnavailableError: callgrind cannot be used here.
        ChildError: the child failed.
    """
    name = " ".join(["callgrind", module.rpartition(".")[2], *arguments])
    with tempfile.TemporaryDirectory(prefix="callgrind-") as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            f"--callgrind-out-file={folder}/out",
            str(python),
            "-m",
            module,
            *arguments,
        ]
        env = child_environment(python, {LIBRARY_ENV: str(library())})
        run_once(command, env, log_path(name), timeout_s)
        return read_dumps(Path(folder))


def read_dumps(folder: Path) -> dict[str, dict[int, float]]:
    """Instructions a call by label and thread, from callgrind's files."""
    found: dict[str, dict[int, float]] = {}
    for file in sorted(folder.iterdir()):
        with file.open(errors="replace") as lines:
            text = "".join(
                line for line in lines if line.startswith(("desc: Trigger", "thread:", "summary:", "totals:"))
            )
        label = re.search(r"^desc: Trigger: Client Request: (.*)\|(\d+)$", text, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        thread = re.search(r"^thread: (\d+)", text, re.MULTILINE)
        if label and total:
            threads = found.setdefault(label[1], {})
            threads[int(thread[1]) if thread else MAIN_THREAD] = int(total[1]) / int(label[2])
    return found


# --- the child's side ------------------------------------------------------------------------------
class Counter:
    """Counts instructions, in a process that runs under callgrind."""

    def __init__(self) -> None:
        self._requests = ctypes.CDLL(os.environ[LIBRARY_ENV])

    def count(self, label: str, call: Callable[[], Any], n: int) -> None:
        """Count `n` calls under this label."""
        for _ in range(WARM_UP):
            call()
        gc.collect()
        gc.disable()
        self._requests.start()
        call()  # valgrind translates what it has not seen yet
        self._requests.zero()
        for _ in range(n):
            call()
        self._requests.dump(f"{label}|{n}".encode())
        self._requests.stop()
        gc.enable()
