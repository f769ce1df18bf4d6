"""Where the pages that are made stand, how they begin, and how their tables are written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REFERENCE: Final = Path(__file__).resolve().parent / "reference"
MADE: Final = "<!-- made by docs/generate.py: do not edit -->"


def page(title: str, text: str) -> list[str]:
    """The beginning of a page that is made as a whole."""
    return [f"# {title}", "", MADE, "", text.rstrip()]


def row(*cells: str) -> str:
    """A row of a table; a cell may hold bars and line breaks."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
