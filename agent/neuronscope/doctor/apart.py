"""Libraries examined side by side, in processes that they cannot take the doctor down with.

Looking at a library means to import it, and an environment may have dozens: some take seconds, some do not
get on with each other in one process, and one whose compiled part is broken ends its process by a signal.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import msgspec

from neuronscope.doctor.libraries import LibraryReport, distribution, examine_library, installed
from neuronscope.instrumentation.registry import BACKENDS

MOST: Final = 4  # processes: each may import a framework, and needs its memory
# What imports the same frameworks is examined in one process; what takes long begins first.
_ON_FRAMEWORKS: Final = (
    "sentence_transformers", "transformers", "continuous_batching", "pipelines", "tokenizers", *BACKENDS,
)  # fmt: skip
_LONG: Final = ("litellm", "llama_index", "mistral", "openai", "anthropic", "lancedb", "elasticsearch")
_CODE: Final = "import sys; sys.path[:] = {path!r}; from neuronscope.doctor.apart import serve; serve()"


def examine_apart(
    names: Sequence[str],
    *,
    disabled: Sequence[str] = (),
    seen: Mapping[str, float] | None = None,
    done: Callable[[str], object] = str,
) -> list[LibraryReport]:
    """As `examine_library` tells of each; in the order of the names.

    Args:
        disabled: adapters that the settings leave alone.
        seen: when a library's first call was recorded.
        done: called with a library's name when it was examined, from several threads.
    """
    here = [name for name in names if installed(name)]
    reports = {name: examine_library(name) for name in names if name not in here}
    for name in reports:
        done(name)
    groups = deque(_groups(here))
    workers = min(MOST, os.cpu_count() or 1, len(groups))

    def work(examiner: _Examiner) -> None:
        while group := _next(groups):
            for name in group:
                if examiner.closed:
                    return
                reports[name] = examiner.examine(name)
                done(name)

    # The processes end before their threads are waited for: also where Ctrl-C ends all of it.
    with ThreadPoolExecutor(max(1, workers)) as pool, ExitStack() as stack:
        examiners = [_Examiner(disabled) for _ in range(workers)]
        for examiner in examiners:
            stack.callback(examiner.close)
        for running in [pool.submit(work, examiner) for examiner in examiners]:
            running.result()
    when = seen or {}
    return [replace(reports[name], seen=when.get(name, reports[name].seen)) for name in names]


def _groups(names: Sequence[str]) -> Iterator[list[str]]:
    together = [name for name in names if name in _ON_FRAMEWORKS]
    if together:
        yield together
    alone = [name for name in names if name not in together]
    for name in sorted(alone, key=lambda name: name not in _LONG):
        yield [name]


def _next(groups: deque[list[str]]) -> list[str]:
    try:
        return groups.popleft()
    except IndexError:
        return []


class _Examiner:
    """A process that examines libraries, and the next one where one did not survive it.

    Attributes:
        closed: nothing is examined any more.
    """

    def __init__(self, disabled: Sequence[str]) -> None:
        self._disabled = list(disabled)
        self._process: subprocess.Popen[bytes] | None = None
        self.closed = False

    def examine(self, name: str) -> LibraryReport:
        """What the process says; `broken` if it ended over it."""
        process = self._process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
        except BrokenPipeError:
            line = b""
        else:
            line = process.stdout.readline()
        if line:
            return msgspec.json.decode(line, type=LibraryReport)
        process.communicate()
        code, self._process = process.returncode, None
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return LibraryReport(
            name, "", "broken", distribution(name), installed(name),
            problem=f"importing it ended the process {how}",
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        self.closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.communicate()

    def _begin(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE.format(path=sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._disabled).encode() + b"\n")
        process.stdin.flush()
        return process


def serve() -> None:
    """In the process: a report, a line of JSON, for each line with a name; before them, what is disabled."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the doctor's own
    gc.disable()  # a fifth of the time that importing takes, and the process ends soon
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints when it is imported is no report
    disabled = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        told.write(msgspec.json.encode(examine_library(line.strip(), disabled=disabled)) + b"\n")
        told.flush()
