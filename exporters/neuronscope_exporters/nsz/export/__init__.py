"""A recording in other people's formats: what `neuronscope export` writes.

Every function takes the open files of a recording and a target, writes the target whole or not at all,
and returns how much it wrote.  Nothing that a file says becomes a path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, Any

from neuronscope.replacing import replacement

Progress = Callable[[int, int], Any]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """A file that takes its name when it is complete; private."""
    with replacement(path) as new:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", 1 << 20) as file:
            yield file
