"""Lines below lines, for the terminal: what `rich.tree.Tree` shows, at a tenth of its cost.

rich lays every line out anew: it wraps, crops and pads it.  Most lines fit as they are, so that only those
which do not are given to it: a recording of 100,000 spans is shown in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

Piece = tuple[str, str]  # text and its style
_GUIDE: Final = "dim"
_NEW_LINE: Final = Segment.line()


@dataclass(frozen=True, slots=True)
class _Guides:
    """What stands before a line and before what is below it: among its siblings, and as the last of them."""

    fork: str = "├── "
    end: str = "└── "
    on: str = "│   "
    space: str = "    "


_DRAWN: Final = _Guides()
_ASCII: Final = _Guides("+-- ", "`-- ", "|   ")


@dataclass(slots=True)
class Outline:
    """A line and the lines below it.

    Attributes:
        pieces: what the line says.
        wraps: a line that is too long goes on in the next; others end in an ellipsis.
    """

    pieces: Sequence[Piece]
    wraps: bool = False
    below: list[Outline] = field(default_factory=list["Outline"])

    def add(self, *pieces: Piece, wraps: bool = False) -> Outline:
        """A new last line below this one."""
        line = Outline(pieces, wraps)
        self.below.append(line)
        return line

    def rows(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """It and all below it, as rich writes them."""
        guides = _ASCII if options.ascii_only else _DRAWN
        style = console.get_style(_GUIDE)
        left: list[tuple[Outline, str, str]] = [(self, "", "")]
        while left:
            line, before, after = left.pop()
            for segments in line._laid_out(console, options, options.max_width - len(before)):
                if before:
                    yield Segment(before, style)
                yield from segments
                yield _NEW_LINE
                before = after
            for place, child in enumerate(reversed(line.below)):
                if place == 0:
                    left.append((child, after + guides.end, after + guides.space))
                else:
                    left.append((child, after + guides.fork, after + guides.on))

    def _laid_out(self, console: Console, options: ConsoleOptions, width: int) -> Sequence[Sequence[Segment]]:
        """The rows that it takes."""
        text = "".join([piece for piece, _ in self.pieces])
        cells = len(text) if text.isascii() else cell_len(text)
        plain = text and "\n" not in text and "\t" not in text
        if plain and cells <= width:
            return (_segments(console, self.pieces),)
        if plain and not self.wraps and width > 1 and set(map(cell_len, text)) == {1}:
            return (_segments(console, _cropped(self.pieces, width)),)
        laid = Text.assemble(*self.pieces)
        if not self.wraps:
            laid.no_wrap, laid.overflow = True, "ellipsis"
        return console.render_lines(laid, options.update(width=width, height=None), pad=False)


@dataclass(frozen=True, slots=True)
class Outlines:
    """Outlines one after the other; `Console.print` shows them, once."""

    roots: Iterable[Outline]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for root in self.roots:
            yield from root.rows(console, options)


def _segments(console: Console, pieces: Sequence[Piece]) -> list[Segment]:
    return [Segment(text, console.get_style(style) if style else None) for text, style in pieces if text]


def _cropped(pieces: Sequence[Piece], width: int) -> list[Piece]:
    """The pieces, of one cell a character, cut to a width; the mark of it has the style of what it hides."""
    ends = accumulate(len(text) for text, _ in pieces)
    cut: list[Piece] = []
    for (text, style), end in zip(pieces, ends, strict=True):
        if end >= width:
            return [*cut, (text[: len(text) - end + width - 1] + "…", style)]
        cut.append((text, style))
    return cut
