"""An append-only file that never keeps half an append."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from neuronscope import native
from neuronscope_exporters.nsz.layout import Buffer

_SINKS: Final[weakref.WeakSet[Sink]] = weakref.WeakSet()
# A sweep may look at a file between its creation and its lock; it lets go of it within milliseconds.
_LOCK_WAIT_S: Final = 1.0
_CREATE_TRIES: Final = 10


class Sink:
    """A file that grows by whole appends; one that fails is cut off again.

    It is locked while it is open, so that others can tell a file whose process has died.  In the child of
    a fork it is closed: a file has one writer.  Not thread-safe.

    Attributes:
        position: size of the file: where the next append goes.
    """

    __slots__ = ("__weakref__", "_fd", "position")

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self.position = 0
        _SINKS.add(self)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Sink:
        """A new file, readable by its owner only; never an existing one, never through a link.

        Raises:
            OSError: it cannot be created.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(_CREATE_TRIES):
            fd = os.open(path, flags, 0o600)
            try:
                lock_new(fd)
                if os.fstat(fd).st_nlink:
                    return cls(fd)
            except OSError:
                os.close(fd)
                with suppress(OSError):
                    os.unlink(path)
                raise
            os.close(fd)  # a sweep was faster: it took the empty file for a dead process's
        raise OSError(errno.EBUSY, "the file is deleted whenever it is created", os.fspath(path))

    @property
    def closed(self) -> bool:
        """True when nothing can be appended any more."""
        return self._fd is None

    def append(self, buffers: Sequence[Buffer], *, looked_for: bool = True) -> None:
        """Write all of `buffers` in one system call, or nothing.

        Args:
            looked_for: see first whether the file is still there; else a later append or `check` tells.

        Raises:
            OSError: nothing was kept.  After ENOENT (the file was deleted) and EBADF (half an append
                could not be cut off) the sink is closed.
        """
        fd = self.check() if looked_for else self._open_fd()
        size = sum(map(len, buffers))
        try:
            written = os.writev(fd, buffers)
        except OSError:
            self._cut_back(fd)
            raise
        if written != size:
            self._cut_back(fd)
            raise OSError(errno.ENOSPC, "no room for the whole record")
        self.position += size

    def check(self) -> int:
        """The descriptor, if the file can still be found under some name.

        Raises:
            OSError: the file was deleted (ENOENT) or is closed (EBADF).
        """
        fd = self._open_fd()
        if os.fstat(fd).st_nlink == 0:
            self.close()
            raise OSError(errno.ENOENT, "the file was deleted")
        return fd

    def _open_fd(self) -> int:
        if self._fd is None:
            raise OSError(errno.EBADF, "the file is closed")
        return self._fd

    def _cut_back(self, fd: int) -> None:
        try:
            os.ftruncate(fd, self.position)
            os.lseek(fd, self.position, os.SEEK_SET)
        except OSError as error:
            self.close()
            raise OSError(errno.EBADF, "half a record could not be cut off") from error

    def sync(self) -> None:
        """Have the file on the disk, not just in the system's cache.

        Raises:
            OSError: the disk refuses.
        """
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; again does nothing."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                os.close(fd)
            except OSError:  # a network file system may report a late failure; nothing can be done here
                return


def lock_new(fd: int) -> None:
    """Lock a file that was just created; where files cannot be locked it has to do without.

    Raises:
        BlockingIOError: somebody holds it and does not let go.
    """
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            native.sleep(0.001)
        except OSError:
            return
        else:
            return


def lock(fd: int) -> bool:
    """Take a file for oneself until it is closed; False if another process has it, or nobody can tell."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _close_in_child() -> None:
    for sink in tuple(_SINKS):
        sink.close()


os.register_at_fork(after_in_child=_close_in_child)
