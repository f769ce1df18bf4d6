"""Spans as trees: who called whom, across processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord


@dataclass(slots=True)
class Node:
    """A span, its children in order of their start, and the layer and log records made in it."""

    span: SpanRecord
    service: str = ""
    children: list[Node] = field(default_factory=list["Node"])
    layers: list[LayerRecord] = field(default_factory=list[LayerRecord])
    logs: list[LogRecord] = field(default_factory=list[LogRecord])


@dataclass(slots=True)
class Trace:
    """One trace: usually one root; more where a parent was not recorded.

    Attributes:
        orphans: layer records of this trace whose span is not here.
        logs: log records of this trace whose span is not here.
    """

    trace_id: int
    roots: list[Node] = field(default_factory=list[Node])
    orphans: list[LayerRecord] = field(default_factory=list[LayerRecord])
    logs: list[LogRecord] = field(default_factory=list[LogRecord])

    @property
    def start_unix_ns(self) -> int:
        """When the trace began."""
        return min(node.span.start_unix_ns for node in self.roots)


def traces(
    spans: Sequence[SpanRecord],
    layers: Sequence[LayerRecord] = (),
    services: Mapping[tuple[int, int], str] | None = None,
    logs: Sequence[LogRecord] = (),
) -> list[Trace]:
    """Arrange spans, layer records and log records into traces, oldest first.

    Args:
        services: name of the process's service by (trace id, span id), where known.
    """
    named = services or {}
    nodes: dict[tuple[int, int], Node] = {}
    for span in spans:
        key = (span.trace_id, span.span_id)
        nodes[key] = Node(span, named.get(key, ""))
    found: dict[int, Trace] = {}
    for (trace_id, _), node in nodes.items():
        trace = found.setdefault(trace_id, Trace(trace_id))
        parent = node.span.parent_span_id
        holder = nodes.get((trace_id, parent)) if parent is not None else None
        (trace.roots if holder is None else holder.children).append(node)
    for record in layers:
        holder = nodes.get((record.trace_id or 0, record.span_id or 0))
        if holder is not None:
            holder.layers.append(record)
        elif record.trace_id in found:
            found[record.trace_id].orphans.append(record)
    for log in logs:
        place: Node | Trace | None = nodes.get((log.trace_id, log.span_id)) or found.get(log.trace_id)
        if place is not None:
            place.logs.append(log)
    for node in nodes.values():
        node.children.sort(key=lambda child: child.span.start_unix_ns)
    for trace in found.values():
        trace.roots.sort(key=lambda root: root.span.start_unix_ns)
    return sorted((trace for trace in found.values() if trace.roots), key=lambda trace: trace.start_unix_ns)
