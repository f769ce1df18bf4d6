"""Follows recordings while they are written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz.damage import Limits
from neuronscope_exporters.nsz.files import closed_name, recordings
from neuronscope_exporters.nsz.reader import NszFile, Record, Resource

_Identity = tuple[int, int, str]  # device, inode, name of the finished file


@dataclass(slots=True)
class _Followed:
    file: NszFile
    chunks_read: int = 0


class Tail:
    """What is new in a file, or in the files of a directory, at each `poll`.

    Segments that appear later are found, renamed ones recognised.  Costs a look at each unfinished file,
    and the reading of what is new.  Not thread-safe.

    Args:
        path: a file, or a directory; it may still be empty.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        self._path = Path(path)
        self._limits = limits
        self._open: dict[_Identity, _Followed] = {}
        self._done: set[_Identity] = set()

    def poll(self) -> list[tuple[Record, Resource]]:
        """Records since the last poll, each with its resource, in the order in which they were written.

        Raises:
            FileNotFoundError: the path does not exist.
        """
        self._discover()
        found: list[tuple[Record, Resource]] = []
        for identity, followed in list(self._open.items()):
            file = followed.file
            file.refresh()
            found.extend(file.records(followed.chunks_read))
            followed.chunks_read = len(file.chunks)
            if file.finished:
                file.close()
                del self._open[identity]
                self._done.add(identity)
        return found

    def close(self) -> None:
        """Release all files."""
        for followed in self._open.values():
            followed.file.close()
        self._open.clear()

    def _discover(self) -> None:
        found = recordings(self._path) if self._path.is_dir() else [self._path]
        known: set[_Identity] = set()
        for path in found:
            try:
                known.add(self._look_at(path))
            except FileNotFoundError:  # deleted by its retention between two looks
                if path == self._path:
                    raise
        self._done &= known

    def _look_at(self, path: Path) -> _Identity:
        try:
            status = path.stat()
        except FileNotFoundError:
            path = closed_name(path)  # renamed between two looks
            status = path.stat()
        # The name as well: the file system gives the number of a deleted file to the next one.
        identity = status.st_dev, status.st_ino, closed_name(path).name
        if identity in self._open or identity in self._done:
            return identity
        try:
            self._open[identity] = _Followed(NszFile(path, self._limits))
        except NszError:
            if path == self._path and status.st_size:
                raise  # else just begun, or no recording: looked at again
        return identity
