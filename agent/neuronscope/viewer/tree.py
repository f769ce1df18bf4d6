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

    Every span is somewhere: of those that have one id each has a place of its own, and of those that are each
    other's parents the first is a root.

    Args:
        services: name of the process's service by (trace id, span id), where known.
    """
    named = services or {}
    nodes: dict[tuple[int, int], Node] = {}
    everything: list[Node] = []
    for span in spans:
        key = (span.trace_id, span.span_id)
        node = Node(span, named.get(key, ""))
        everything.append(node)
        nodes.setdefault(key, node)
    found: dict[int, Trace] = {}
    for node in everything:
        span = node.span
        trace = found.setdefault(span.trace_id, Trace(span.trace_id))
        holder = None if span.parent_span_id is None else nodes.get((span.trace_id, span.parent_span_id))
        (trace.roots if holder is None else holder.children).append(node)
    _break_circles(everything, nodes, found)
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
    for node in everything:
        node.children.sort(key=lambda child: child.span.start_unix_ns)
    for trace in found.values():
        trace.roots.sort(key=lambda root: root.span.start_unix_ns)
    return sorted(found.values(), key=lambda trace: trace.start_unix_ns)


def _break_circles(
    everything: Sequence[Node], nodes: Mapping[tuple[int, int], Node], found: Mapping[int, Trace]
) -> None:
    """Spans that are each other's parents, in a file made by hand or by ranks of one seed, get a root."""
    below = [node for trace in found.values() for node in trace.roots]
    for node in below:  # grows while it is walked
        below += node.children
    if len(below) == len(everything):
        return
    reached = set(map(id, below))
    for node in everything:
        if id(node) in reached:
            continue
        span = node.span
        holder = nodes[span.trace_id, span.parent_span_id or 0]
        holder.children = [child for child in holder.children if child is not node]
        found[span.trace_id].roots.append(node)
        below = [node]
        for each in below:
            below += each.children
        reached.update(map(id, below))
