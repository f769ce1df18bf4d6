"""The trace tree for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from opentelemetry.trace import SpanKind, StatusCode
from rich.console import Console

from neuronscope.probes import OUTPUT
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord
from neuronscope.viewer.coverage import layer_words
from neuronscope.viewer.outline import Outline, Outlines, Piece
from neuronscope.viewer.safe import number, visible
from neuronscope.viewer.tree import Node, Trace

MAX_LAYERS: Final = 8
BAR_WIDTH: Final = 16
MAX_TEXT: Final = 500
MAX_DEPTH: Final = 30
_AT_ONCE: Final = 100  # traces: what rich does once a print costs more than to lay out a short one
_LEAST_WIDTH: Final = 48  # of a line: bar, time, and something of its name
_WARN: Final = 13  # OpenTelemetry's severities
_ERROR: Final = 17
_KIND_STYLE: Final = {
    SpanKind.SERVER: "bold cyan",
    SpanKind.CLIENT: "bold green",
    SpanKind.INTERNAL: "bold magenta",
}


def print_traces(console: Console, traces: Sequence[Trace], *, all_layers: bool = False) -> None:
    """Print traces as trees, in this order."""
    for first in range(0, len(traces), _AT_ONCE):
        shown = (_outline(trace, console.width, all_layers) for trace in traces[first : first + _AT_ONCE])
        console.print(Outlines(shown), crop=False)


def _outline(trace: Trace, width: int, all_layers: bool) -> Outline:
    total = max(_ends(trace.roots), default=0) - trace.start_unix_ns
    title = (("trace ", "dim"), (f"{trace.trace_id:032x}", "yellow"), (f"  {ms(total / 1e6)}", "bold"))
    tree = Outline(title, wraps=True)
    shown = _Shown(trace.start_unix_ns, max(total, 1), all_layers, max(2, (width - _LEAST_WIDTH) // 4))
    for root in trace.roots:
        _add(tree, root, shown, "", 0)
    if trace.orphans:
        tree.add((f"{len(trace.orphans)} layer records without a span", "dim"), wraps=True)
    for line in _log_lines(trace.logs):
        tree.add(*line)
    return tree


@dataclass(frozen=True, slots=True)
class _Shown:
    """What all lines of a trace have in common.

    Attributes:
        origin, total: when the trace begins, and how long it takes, in ns.
        levels: how many there is room to indent.
    """

    origin: int
    total: int
    all_layers: bool
    levels: int


def _add(tree: Outline, node: Node, shown: _Shown, service: str, depth: int) -> None:
    span = node.span
    line: list[Piece] = []
    if depth > shown.levels:  # no room to indent it any more
        line.append((f"{depth - shown.levels} ↳ ", "dim"))
    line.append((_bar(span, shown.origin, shown.total), "dim"))
    line.append((f" {ms(span.duration_ms):>9}  ", ""))
    line.append((visible(span.name, MAX_TEXT), _KIND_STYLE.get(span.kind, "bold")))
    if node.service and node.service != service:
        line.append((f"  [{visible(node.service, MAX_TEXT)}]", "blue"))
    if span.status is StatusCode.ERROR:
        error = visible(str(span.attributes.get(names.ERROR_TYPE, "")), MAX_TEXT)
        line.append((f"  ERROR {error}", "bold red"))
    branch = tree.add(*line)
    for fact in facts(span):
        branch.add((visible(fact, MAX_TEXT), "dim"))
    for pieces in (*_layer_lines(node.layers, shown.all_layers), *_log_lines(node.logs)):
        branch.add(*pieces)
    below = branch if depth < shown.levels else tree
    if depth == MAX_DEPTH and node.children:
        below.add((f"and {sum(1 for _ in _ends(node.children))} spans below", "dim"), wraps=True)
        return
    for child in node.children:
        _add(below, child, shown, node.service or service, depth + 1)


def facts(span: SpanRecord) -> Iterator[str]:
    """What is worth a line under a span, in a person's words."""
    get = span.attributes.get
    if get(names.PROVIDER_NAME) and (words := " · ".join(filter(None, _model_words(span)))):
        yield words
    if (chunk := number(get(names.TIME_TO_FIRST_CHUNK))) is not None:
        yield f"first chunk after {ms(chunk * 1000)}, {get(names.STREAM_CHUNKS)} chunks"
    if get(names.DB_SYSTEM):
        yield " · ".join(filter(None, _store_words(span)))
    if ids := get(names.RETRIEVAL_IDS):
        yield "  ".join(_hits(ids, get(names.RETRIEVAL_SCORES)))
    if get(names.MODEL_FORWARDS):
        yield " · ".join(filter(None, _phases(span)))
    if get(names.LAYERS_OBSERVED) is not None:
        yield " · ".join(filter(None, layer_words(span)))
    if never := get(names.LAYERS_NOT_VISITED):
        yield "not visited: " + ", ".join(map(str, _items(never)[:MAX_LAYERS]))


def _model_words(span: SpanRecord) -> Iterator[str]:
    answered = span.attributes.get(names.RESPONSE_MODEL)
    if answered and answered != span.attributes.get(names.REQUEST_MODEL):
        yield f"answered by {answered}"
    yield _tokens(span)
    yield _ending(span)


def _tokens(span: SpanRecord) -> str:
    read, written = span.attributes.get(names.INPUT_TOKENS), span.attributes.get(names.OUTPUT_TOKENS)
    if read is None and written is None:
        return ""
    return f"{'?' if read is None else read} → {'?' if written is None else written} tokens"


def _ending(span: SpanRecord) -> str:
    reasons = ", ".join(map(str, _items(span.attributes.get(names.FINISH_REASONS))))
    end = span.attributes.get(names.STREAM_END)
    return ", ".join(
        filter(None, (reasons and f"finish {reasons}", "" if end in (None, "complete") else str(end)))
    )


def _store_words(span: SpanRecord) -> Iterator[str]:
    get = span.attributes.get
    yield f"{get(names.DB_SYSTEM)} {get(names.DB_OPERATION) or ''} {get(names.DB_COLLECTION) or ''}".strip()
    if (k := get(names.RETRIEVAL_TOP_K)) is not None:
        yield f"k {k}"
    if isinstance(count := get(names.QUERY_COUNT), int) and count > 1:
        yield f"{count} queries"
    if get(names.RETRIEVAL_EMPTY):
        yield "EMPTY"
    elif (margin := number(get(names.RETRIEVAL_MARGIN))) is not None:
        yield f"margin {margin:.3f}"
    if metric := get(names.RETRIEVAL_METRIC):
        yield str(metric)


def _hits(ids: Any, scores: Any) -> Iterator[str]:
    found, scored = _items(ids), _items(scores)
    for position, hit in enumerate(found[:MAX_LAYERS]):
        score = number(scored[position]) if position < len(scored) else None
        yield str(hit) if score is None else f"{hit} {score:.3f}"
    if len(found) > MAX_LAYERS:
        yield f"and {len(found) - MAX_LAYERS} more"


def _phases(span: SpanRecord) -> Iterator[str]:
    get = span.attributes.get
    forwards = get(names.MODEL_FORWARDS)
    yield f"{forwards} forward{'' if forwards == 1 else 's'}"
    if (prefill := number(get(names.MODEL_PREFILL))) is not None:
        yield f"prefill {ms(prefill * 1000)}"
    if (decode := number(get(names.MODEL_DECODE))) is not None:
        yield f"decode {ms(decode * 1000)}"
    if (rate := number(get(names.MODEL_DECODE_RATE))) is not None:
        yield f"{rate:.1f} tokens/s"


def _layer_lines(records: Sequence[LayerRecord], all_layers: bool) -> Iterator[Sequence[Piece]]:
    by_layer: dict[str, list[LayerRecord]] = defaultdict(list)
    for record in records:
        # A layer's output and the gradient by it are no numbers of one kind.
        what = "" if record.role == OUTPUT else f" ({record.role})"
        by_layer[f"{record.layer_id}{what}"].append(record)
    shown = list(by_layer.items())
    hidden = 0 if all_layers else max(0, len(shown) - MAX_LAYERS)
    width = min(max((len(layer) for layer in by_layer), default=0), MAX_TEXT)
    for layer, taken in shown[: len(shown) - hidden]:
        summaries = [record.summary for record in taken if record.summary is not None]
        if not summaries:
            continue
        count = len(summaries)
        bad = sum(s.nan_count + s.inf_count for s in summaries)
        full = sum(record.tensor is not None for record in taken)
        line: list[Piece] = [
            (f"{visible(layer, MAX_TEXT):<{width}}", "magenta"),
            (
                f" mean {sum(s.mean for s in summaries) / count:+.3f}"
                f" std {sum(s.std for s in summaries) / count:.3f}"
                f" max {max(s.abs_max for s in summaries):.4g}",
                "",
            ),
        ]
        if count > 1:
            line.append((f" ×{count}", "dim"))
        if full:
            line.append((f" {full} full", "dim"))
        if bad:
            line.append((f" {bad} NON-FINITE", "bold red"))
        yield line
    if hidden:
        # A layer whose gradients are told has a line for these, too.
        lines = shown[len(shown) - hidden :]
        layers = {taken[0].layer_id for _, taken in lines} - {
            taken[0].layer_id for _, taken in shown[:-hidden]
        }
        what = "layer" if len(layers) == hidden else "line"
        what, them = (f"{what}s", "them") if hidden > 1 else (what, "it")
        yield [(f"and {hidden} more {what} (--all-layers shows {them})", "dim")]


def _log_lines(logs: Sequence[LogRecord]) -> Iterator[Sequence[Piece]]:
    """What was logged; events without a message repeat their span."""
    told = sorted((log for log in logs if log.body is not None), key=lambda log: log.time_unix_ns)
    for log in told[:MAX_LAYERS]:
        style = "red" if log.severity >= _ERROR else ("yellow" if log.severity >= _WARN else "dim")
        yield [(visible(f"{log.severity_text} {log.body}".strip(), MAX_TEXT), style)]
    if len(told) > MAX_LAYERS:
        yield [(f"and {len(told) - MAX_LAYERS} more log records", "dim")]


def _bar(span: SpanRecord, origin: int, total: int) -> str:
    start = int(BAR_WIDTH * (span.start_unix_ns - origin) / total)
    length = max(1, round(BAR_WIDTH * (span.end_unix_ns - span.start_unix_ns) / total))
    start = min(max(start, 0), BAR_WIDTH - 1)
    return ("·" * start + "█" * length)[:BAR_WIDTH].ljust(BAR_WIDTH, "·")


def _ends(nodes: Sequence[Node]) -> Iterator[int]:
    """When these spans and all below them ended."""
    left = list(nodes)
    while left:
        node = left.pop()
        yield node.span.end_unix_ns
        left.extend(node.children)


def _items(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else []


def ms(milliseconds: float) -> str:
    """A duration for people."""
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2f} ms"
