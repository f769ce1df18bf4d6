"""The trace tree: nothing that was recorded is missing from it, whatever the spans say of each other."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import SpanKind
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

import strange
from neuronscope.cli import view as command
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.tensors import TensorSummary
from neuronscope.viewer.outline import Outline, Outlines, Piece
from neuronscope.viewer.terminal import print_traces
from neuronscope.viewer.tree import traces


def test_every_span_is_in_the_tree() -> None:
    """Two ranks of one seed have spans of the same ids; a file made by hand has a circle of parents."""

    def span(number: int, parent: int | None, name: str) -> SpanRecord:
        return SpanRecord(1, number, name, SpanKind.CLIENT, number, number + 1, {}, parent_span_id=parent)

    twins = [
        span(1, None, "rank 0"),
        span(1, None, "rank 1"),
        span(2, 1, "below"),
        span(2, 2, "its own child"),
    ]
    circle = [span(number, number % 3 + 4, f"in a circle {number}") for number in (4, 5, 6)]
    deep = [span(10 + level, 9 + level if level else None, f"level {level}") for level in range(40)]
    (trace,) = traces([*twins, *circle, *deep])
    names_of = [root.span.name for root in trace.roots]
    assert names_of == ["rank 0", "rank 1", "in a circle 4", "level 0"]
    out = io.StringIO()
    print_traces(Console(file=out, width=80), [trace])
    text = out.getvalue()
    for one in (*twins, *circle, *deep[:31]):
        assert one.name in text, text
    assert "and 9 spans below" in text


def test_gradients_are_not_averaged_with_outputs() -> None:
    """What probes of two roles saw of one layer are two lines."""
    array = np.ones(4, np.float32)
    span = SpanRecord(1, 1, "train", SpanKind.INTERNAL, 0, 1, {})
    layers = [
        strange.layer(1, step, span, layer_id="block", role=role, summary=TensorSummary.of(scale * array))
        for step in range(2)
        for role, scale in (("output", 8.0), ("gradient", 0.25))
    ]
    (trace,) = traces([span], layers)
    out = io.StringIO()
    print_traces(Console(file=out, width=100), [trace])
    lines = [re.sub(r" +", " ", line).strip("─├└│ ") for line in out.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("block")] == [
        "block mean +8.000 std 0.000 max 8 ×2",
        "block (gradient) mean +0.250 std 0.000 max 0.25 ×2",
    ]


TEXTS = st.sampled_from(
    ["", "a", "two words", "long " * 12, "漢字の名前", "e\u0301", "two\nlines", "a\ttab", "→ 7 tokens", "█·"]
)
PIECES = st.lists(st.tuples(TEXTS, st.sampled_from(["", "dim", "bold red"])), max_size=3)
LINES = st.lists(st.tuples(PIECES, st.integers(0, 5)), min_size=1, max_size=12)


@given(title=PIECES, lines=LINES, width=st.integers(8, 70), colours=st.booleans())
def test_an_outline_looks_as_richs_tree_does(
    title: Sequence[Piece], lines: Sequence[tuple[Sequence[Piece], int]], width: int, colours: bool
) -> None:
    """The same rows and styles, for lines that fit, that are too long, wide, or more than one."""
    ours = [Outline(title, wraps=True)]
    theirs = [Tree(Text.assemble(*title), guide_style="dim")]
    for pieces, above in lines:
        ours.append(ours[above % len(ours)].add(*pieces))
        text = Text.assemble(*pieces, no_wrap=True, overflow="ellipsis")
        theirs.append(theirs[above % len(theirs)].add(text))

    def shown(what: Outlines | Tree) -> str:
        out = io.StringIO()
        Console(file=out, width=width, force_terminal=colours, color_system="standard").print(
            what, crop=False
        )
        return re.sub("\x1b\\[0m\x1b\\[2m", "", out.getvalue())  # a row's guides are one text of ours

    assert shown(Outlines([ours[0]])) == shown(theirs[0])


def test_a_long_recording_is_laid_out_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich is asked for what does not fit in a row only, and once for a hundred traces."""
    laid_out: list[Any] = []
    writes: list[str] = []
    lay_out = Console.render_lines

    def counted(console: Console, what: Any, options: ConsoleOptions, **how: Any) -> list[list[Segment]]:
        laid_out.append(what)
        return lay_out(console, what, options, **how)

    class Counting(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr(Console, "render_lines", counted)
    command.show(Console(file=Counting(), width=120), strange.many_spans(2_000, 2))
    assert "".join(writes).count("trace 000") == 1_000
    assert len(writes) <= 10
    assert laid_out == []
    long = strange.artifact([strange.span(1, name="a\nb"), strange.span(2)])
    command.show(Console(file=Counting(), width=120), long)
    assert len(laid_out) == 1


def test_a_terminal_is_given_the_newest_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And told how many there are besides; --all, --last and pipes get what they ask for."""
    strange.many_spans(6, 2).save(tmp_path / "three.nsz")
    monkeypatch.setattr(command, "MOST", 2)

    def run(terminal: bool, *asked: str) -> tuple[int, str]:
        out = io.StringIO()
        out.isatty = lambda: terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdout", out)
        command.view.main([str(tmp_path / "three.nsz"), *asked], standalone_mode=False)
        text = out.getvalue()
        return len(re.findall("trace .*[0-9a-f]{32}", text)), text

    shown, text = run(True)
    assert shown == 2
    assert "span 0" not in text
    assert "1 earlier traces; --all shows them" in text
    assert run(True, "--all")[0] == run(False)[0] == run(True, "--last", "3")[0] == 3
    assert "earlier" not in run(True, "--trace", f"{0xD0000:032x}")[1]
    with pytest.raises(click.UsageError, match="contradict"):
        run(True, "--all", "--last", "1")
