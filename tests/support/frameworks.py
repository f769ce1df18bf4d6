"""What tests of frameworks see: whose spans are around whose."""

from __future__ import annotations

from neuronscope.signals.records import SpanRecord


def tree(spans: list[SpanRecord]) -> list[str]:
    """Each span with all that is around it, sorted."""
    known = {span.span_id: span for span in spans}

    def path(span: SpanRecord) -> str:
        around = known.get(span.parent_span_id or 0)
        own = f"{span.library.removeprefix('neuronscope.')}:{span.name}"
        return own if around is None else f"{path(around)} > {own}"

    return sorted(map(path, spans))
