"""A real Milvus in this process (`milvus-lite`): a few local files, each used by one test at a time."""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["CONNECTED_S", "store"]

CONNECTED_S: Final = 60.0  # its clients give up after ten seconds else, which a loaded machine may need
_free: list[str] = []
_folders: list[str] = []
# It tells of every refused call with a trace in which there are times.
for _name in ("pymilvus", "milvus_lite"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@contextmanager
def store() -> Generator[str]:
    """The path of a database that nobody else uses meanwhile."""
    path = _free.pop() if _free else _new()
    try:
        yield path
    finally:
        _free.append(path)


def _new() -> str:
    folder = tempfile.mkdtemp(prefix="neuronscope-milvus-")
    _folders.append(folder)
    return str(Path(folder) / "store.db")


@atexit.register  # now, before Milvus registers its own end: that comes first then, and writes once more
def _remove() -> None:
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
