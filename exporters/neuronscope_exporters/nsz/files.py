"""Which files of a directory are recordings, and their names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SUFFIX: Final = ".nsz"
# A segment that its process still writes, or left when it was killed.
OPEN_SUFFIX: Final = ".nsz.open"


def recordings(directory: Path) -> list[Path]:
    """The recordings of a directory, open ones too; without any, those of its directories (one a rank)."""
    found = _own(directory)
    if found:
        return found
    return [path for item in sorted(directory.iterdir()) if item.is_dir() for path in _own(item)]


def _own(directory: Path) -> list[Path]:
    return sorted(
        item
        for item in directory.iterdir()
        if item.name.endswith((SUFFIX, OPEN_SUFFIX)) and not item.name.startswith(".")
    )


def closed_name(path: str | os.PathLike[str]) -> Path:
    """What an open segment is called once it is finished; other names stay."""
    text = os.fspath(path)
    return Path(text[: -len(OPEN_SUFFIX)] + SUFFIX if text.endswith(OPEN_SUFFIX) else text)
