"""The trace tree: nothing that was recorded is missing from it, whatever the spans say of each other."""

from __future__ import annotations

import io

from opentelemetry.trace import SpanKind
from rich.console import Console

from neuronscope.signals.records import SpanRecord
from neuronscope.viewer.terminal import print_trace
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
    print_trace(Console(file=out, width=80), trace)
    text = out.getvalue()
    for one in (*twins, *circle, *deep[:31]):
        assert one.name in text, text
    assert "and 9 spans below" in text
