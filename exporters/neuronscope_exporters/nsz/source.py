"""Reads of a `.nsz` file: small parts are copied out of it, tensors are views of it."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from neuronscope.exceptions import NszError

_SEARCH_BLOCK: Final = 1 << 20
_WINDOW: Final = 512
_PROBE: Final = (bytearray(1),)  # what is read into it does not matter
_ONLY_FROM_MEMORY: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class Source:
    """A file as it was when it was opened: what is appended later is seen after `refresh`.

    Small parts are read, not mapped, so that a file which another process cuts short gives short
    data and no fault; only tensors are mapped.

    Attributes:
        size: bytes of the file.
        bytes_read: bytes read so far, mapped ones not counted.

    Raises:
        FileNotFoundError: there is no such file.
        NszError: it is no regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # no wait on a FIFO
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no file {self.path}") from None
        except OSError as error:
            raise NszError(f"{self.path} cannot be read: {error.strerror}") from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise NszError(f"{self.path} is not a regular file")
        self.size = status.st_size
        self.bytes_read = 0
        self._map: mmap.mmap | None = None
        self._window = b""
        self._window_at = 0

    def refresh(self) -> bool:
        """See what was appended since; True if anything was."""
        self._check_open()
        size = os.fstat(self._fd).st_size
        if size <= self.size:
            return False
        self.size = size
        self._window = b""
        self._map = None  # views keep the old one
        return True

    @property
    def identity(self) -> tuple[int, int]:
        """What tells the file from every other, whatever it is called: (device, inode)."""
        self._check_open()
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`: fewer where the file ends or was cut short."""
        self._check_open()
        length = min(length, self.size - offset)
        if length <= 0 or offset < 0:
            return b""
        parts: list[bytes] = []
        while length > 0:
            try:
                data = os.pread(self._fd, length, offset)
            except OSError as error:
                raise NszError(f"{self.path} cannot be read at byte {offset}: {error.strerror}") from None
            if not data:
                break
            parts.append(data)
            offset += len(data)
            length -= len(data)
            self.bytes_read += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, offset: int, length: int) -> bytes:
        """As `read`, for the small headers that follow each other."""
        at = offset - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window, self._window_at, at = self.read(offset, max(length, _WINDOW)), offset, 0
        return self._window[at : at + length]

    def find(self, mark: bytes, start: int) -> int:
        """Offset of the first `mark` at or after `start`, or -1."""
        position = start
        while position < self.size:
            block = self.read(position, _SEARCH_BLOCK + len(mark) - 1)
            if not block:
                return -1
            found = block.find(mark)
            if found >= 0:
                return position + found
            position += _SEARCH_BLOCK
        return -1

    def view(self, offset: int, length: int) -> memoryview:
        """Read-only view of a part of the file, without a copy; it lives as long as it is used.

        Raises:
            NszError: the file is shorter (also: by now), or cannot be mapped.
        """
        self._check_open()
        in_memory = 0 <= offset <= offset + length and self._in_memory(offset, length)
        if not in_memory and not 0 <= offset <= offset + length <= os.fstat(self._fd).st_size:
            raise NszError(f"{self.path} ends before byte {offset + length}")
        if self._map is None:
            try:
                self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
                # Else the system reads megabytes around a page that it lacks; see `will_need`.
                self._map.madvise(mmap.MADV_RANDOM)
            except (OSError, ValueError) as error:
                raise NszError(f"{self.path} cannot be mapped: {error}") from None
        if not in_memory:
            self.will_need(offset, length)
        return memoryview(self._map)[offset : offset + length]

    def _in_memory(self, offset: int, length: int) -> bool:
        """Is a part in the file, and does the system have it?  Its ends tell sooner than all its pages."""
        if not _ONLY_FROM_MEMORY or not length:  # a system without that way to ask
            return False
        try:
            return bool(
                os.preadv(self._fd, _PROBE, offset, _ONLY_FROM_MEMORY)
                and os.preadv(self._fd, _PROBE, offset + length - 1, _ONLY_FROM_MEMORY)
            )
        except (OSError, OverflowError):  # not there; or the file system cannot tell
            return False

    def will_need(self, offset: int, length: int) -> None:
        """Have the system read a part of the file ahead, in the background; nothing if it has it."""
        with suppress(OSError):  # only a hint, which some file systems do not take
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def _check_open(self) -> None:
        if self._fd < 0:
            raise NszError(f"{self.path} was closed")

    def close(self) -> None:
        """Close the file; views of it stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
