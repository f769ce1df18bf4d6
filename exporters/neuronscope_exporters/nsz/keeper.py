"""A directory of segments, kept in order in the background.

One thread for each exporter: it waits for the disk, gives finished segments their names, finishes what
dead processes left, and deletes what is too old or too much.  Nobody waits for it.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuronscope import native
from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz.files import OPEN_SUFFIX, SUFFIX, closed_name
from neuronscope_exporters.nsz.repair import BusyError, repair
from neuronscope_exporters.nsz.sink import lock

# Names that recorders give: nobody else's file is ever deleted.
_OWN: Final = re.compile(r".*-\d+-\d{19}\.(?:flight)?\d{4,}\.nsz")
_SWEEP_S: Final = 300.0  # between looks for orphans and for what is to be deleted


@dataclass(frozen=True, slots=True)
class Retention:
    """What a directory may hold; 0 is no limit."""

    max_bytes: int = 0
    max_age_s: float = 0.0


class Keeper:
    """The background thread.  `finish`, `sync_soon` and `stop` are for the exporter's thread.

    Args:
        directory: where the segments are.
        retention: what may stay.
        sync_s: seconds between waits for the disk; 0 never waits.
    """

    def __init__(self, directory: Path, retention: Retention, sync_s: float) -> None:
        self._directory = directory
        self._retention = retention
        self._sync_s = sync_s
        self._to_finish: deque[tuple[Path, Callable[[Path], None]]] = deque()
        self._current: Path | None = None
        self._synced_size = 0
        self._bell = native.allocate_lock()
        self._bell.acquire()
        self._asked = 0  # segments to finish: written by the exporter's thread alone
        self._done = 0  # finished ones: written by the keeper's
        self._thread: native.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Begin; again does nothing."""
        if self._thread is None:
            try:
                self._thread = native.Thread(self._run, "neuronscope-nsz")
            except RuntimeError:  # the interpreter ends: `finish` does the work itself
                return

    def watch(self, path: Path | None) -> None:
        """This segment is being written: have it on the disk every few seconds."""
        self._current = path

    def finish(self, path: Path, done: Callable[[Path], None]) -> None:
        """A segment was closed: have it on the disk, and give it its name.

        Args:
            done: told the final path, in the keeper's thread.
        """
        self._asked += 1
        self._to_finish.append((path, done))
        if self._thread is not None:
            self._ring()
        else:
            self._finish_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until every closed segment has its name."""
        deadline = time.monotonic() + timeout_s
        while self._done < self._asked:
            if time.monotonic() >= deadline:
                return False
            native.sleep(0.002)
        return True

    def stop(self, timeout_s: float) -> None:
        """Finish what was closed, within the timeout, and end the thread."""
        deadline = time.monotonic() + timeout_s
        self.wait(timeout_s)
        self._stopping = True
        self._ring()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:  # it rings already
            return

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        next_sweep = 0.0
        while not self._stopping:
            self._finish_all()
            self._sync()
            if time.monotonic() >= next_sweep:
                self.sweep()
                next_sweep = time.monotonic() + _SWEEP_S
            if not self._to_finish and not self._stopping:
                self._bell.acquire(timeout=self._sync_s if self._sync_s and self._current else _SWEEP_S)

    def _finish_all(self) -> None:
        while True:
            try:
                path, done = self._to_finish.popleft()
            except IndexError:
                return
            target = closed_name(path)
            try:
                if self._sync_s:
                    _sync_file(path)
                os.rename(path, target)
            except OSError:
                # A sweep has named it already; or it was deleted, or the disk refuses: the next one tries.
                target = target if target.exists() else path
            done(target)
            self._done += 1
            self._retain()

    def _sync(self) -> None:
        path = self._current
        if path is None or not self._sync_s:
            return
        try:
            size = path.stat().st_size
            if size != self._synced_size:
                _sync_file(path)
                self._synced_size = size
        except OSError:  # deleted or renamed meanwhile, or the disk refuses: the writer will notice
            return

    # --- the directory --------------------------------------------------------------------------

    def sweep(self) -> None:
        """Finish the segments of dead processes, then delete what is too much."""
        for path in self._segments(OPEN_SUFFIX):
            if path == self._current:
                continue
            try:
                repair(path)
            except (BusyError, FileNotFoundError):
                continue
            except (NszError, OSError):
                _discard_if_empty(path)
        self._retain()

    def _retain(self) -> None:
        """Delete finished segments, the oldest first, until the rest is young and small enough."""
        limit, age = self._retention.max_bytes, self._retention.max_age_s
        if not limit and not age:
            return
        segments: list[tuple[float, int, Path]] = []
        for path in self._segments(SUFFIX):
            if not _OWN.fullmatch(path.name):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:  # another process of the service keeps the same directory
                continue
            segments.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in segments)
        for modified, size, path in sorted(segments):
            too_old = age and time.time() - modified > age
            if not too_old and (not limit or total <= limit):
                break
            try:
                path.unlink()
            except OSError:
                continue
            total -= size

    def _segments(self, suffix: str) -> list[Path]:
        try:
            entries = list(self._directory.iterdir())
        except OSError:
            return []
        return [path for path in entries if path.name.endswith(suffix) and not path.name.startswith(".")]


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _discard_if_empty(path: Path) -> None:
    """A process that died before its first record leaves a file of nothing; a living one has it locked."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if lock(descriptor) and os.fstat(descriptor).st_size == 0:
            path.unlink()
    except OSError:
        return
    finally:
        os.close(descriptor)
